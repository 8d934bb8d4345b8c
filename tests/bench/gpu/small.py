"""Everything but products and attention: launches, memory-bound operators, losses, optimizers, convolutions, copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._functorch.config as functorch
from torch import Tensor
from torch.nn import functional

from tests.bench.gpu.work import Call, Place, Work, gradient_calls

__all__ = [
    "compiled_cases",
    "convolution_cases",
    "copy_cases",
    "elementwise_cases",
    "launch_cases",
    "lookup_cases",
    "loss_cases",
    "normalization_cases",
    "optimizer_cases",
]

_SIZES = (1 << 20, 1 << 24, 1 << 27)
_ROWS = ((8192, 768), (4096, 1600), (8192, 2048), (8192, 4096))
_CHAIN = 100
_TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def launch_cases(place: Place) -> Iterator[Work]:
    """Kernels of a few elements one behind the other: from Python, and replayed from a graph of the device's."""
    for name in ("add", "product", "linear of autograd"):
        yield Work("eager chain", _chain(place, name), {"kernel": name}, copies=1, repeats=_CHAIN)
    if place.device.type == "cuda":
        for name in ("add", "product"):
            yield Work("graph chain", _graph(place, name), {"kernel": name}, copies=1, repeats=_CHAIN)


def _chain(place: Place, kernel: str) -> Callable[[int], Call]:
    def make(_: int) -> Call:
        x = place.normal(16, 16)
        w = place.normal(16, 16, scale=0.1)
        layer = torch.nn.Linear(16, 16, device=place.device, dtype=torch.bfloat16)

        def run() -> Tensor:
            y = x
            for _ in range(_CHAIN):
                y = y + 1.0 if kernel == "add" else y @ w if kernel == "product" else layer(y)
            return y

        return run

    return make


def _graph(place: Place, kernel: str) -> Callable[[int], Call]:
    def make(number: int) -> Call:
        run = _chain(place, kernel)(number)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.no_grad():
            run()
        replay: Call = graph.replay
        return replay

    return make


def elementwise_cases(place: Place) -> Iterator[Work]:
    for wanted in _SIZES:
        n = place.size(wanted)
        for dtype, kind in _TYPES.items():
            b = n * kind.itemsize
            facts = {"elements": n, "type": dtype}

            def two(_: int, n: int = n, kind: torch.dtype = kind) -> tuple[Tensor, Tensor]:
                return place.normal(n, dtype=kind), place.normal(n, dtype=kind)

            def add(i: int, two: Any = two) -> Call:
                x, y = two(i)
                return lambda: x + y

            def gelu(i: int, two: Any = two) -> Call:
                x, _ = two(i)
                return lambda: functional.gelu(x, approximate="tanh")

            def gelu_back(i: int, two: Any = two) -> Call:
                return gradient_calls(lambda x: functional.gelu(x, approximate="tanh"), two(i)[0])

            def gate(i: int, two: Any = two) -> Call:
                x, y = two(i)
                return lambda: functional.silu(x) * y

            def cast(i: int, two: Any = two, kind: torch.dtype = kind) -> Call:
                x, _ = two(i)
                return lambda: x.to(torch.bfloat16 if kind is torch.float32 else torch.float32)

            def total(i: int, two: Any = two) -> Call:
                x, _ = two(i)
                return lambda: x.sum()

            def accumulate(i: int, two: Any = two) -> Call:
                x, y = two(i)
                return lambda: x.add_(y, alpha=1e-3)

            yield Work("add", add, facts, n, 3 * b, held=3 * b)
            yield Work("add in place", accumulate, facts, n, 3 * b, held=2 * b)
            yield Work("gelu", gelu, facts, n, 2 * b, held=2 * b)
            yield Work("gelu backward", gelu_back, facts, n, 3 * b, held=4 * b)
            yield Work("silu times (two kernels)", gate, facts, n, 5 * b, held=4 * b)
            yield Work("cast", cast, facts, 0, 6 * n, held=6 * n)
            yield Work("sum", total, facts, n, b, held=b)
    for b, s, heads, d in ((8, 1024, 12, 64), (4, 2048, 32, 64)):
        s = place.size(s)

        def turned(_: int, shape: tuple[int, ...] = (b, s, heads, d)) -> Call:
            x = place.normal(*shape)
            return lambda: x.transpose(1, 2).contiguous()

        size = 2 * b * s * heads * d
        yield Work("transpose", turned, {"elements": size // 2, "type": "bf16"}, 0, 2 * size, held=2 * size)


def normalization_cases(place: Place) -> Iterator[Work]:
    for rows, width in _ROWS:
        rows, width = place.size(rows), place.size(width)
        for dtype, kind in _TYPES.items():
            b = rows * width * kind.itemsize
            facts = {"rows": rows, "width": width, "type": dtype}
            runs: dict[str, Callable[..., Tensor]] = {
                "layer norm": lambda x, w, c, n=width: functional.layer_norm(x, (n,), w, c),
                "rms norm": lambda x, w, c, n=width: functional.rms_norm(x, (n,), w),
                "rms norm by operators": lambda x, w, c: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w,
                "softmax": lambda x, w, c: torch.softmax(x, -1),
            }
            for name, run in runs.items():

                def forward(_: int, run: Any = run, rows: int = rows, n: int = width, kind: Any = kind) -> Call:
                    x, w, c = place.normal(rows, n, dtype=kind), *(place.normal(n, dtype=kind) for _ in range(2))
                    return lambda: run(x, w, c)

                def backward(_: int, run: Any = run, rows: int = rows, n: int = width, kind: Any = kind) -> Call:
                    x, w, c = place.normal(rows, n, dtype=kind), *(place.normal(n, dtype=kind) for _ in range(2))
                    return _gradient(lambda *o: run(*o), x, w, c)

                yield Work(name, forward, facts, 8 * rows * width, 2 * b, held=2 * b)
                yield Work(f"{name} backward", backward, facts, 8 * rows * width, 3 * b, held=5 * b)


def _gradient(run: Callable[..., Tensor], *operands: Tensor) -> Call:
    """The backward pass, where some operands may not be used."""
    leaves = [x.detach().requires_grad_() for x in operands]
    result = run(*leaves)
    incoming = torch.randn_like(result)
    return lambda: torch.autograd.grad(result, leaves, incoming, retain_graph=True, allow_unused=True)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.float(), labels)


def loss_cases(place: Place) -> Iterator[Work]:
    """Cross-entropy of scores in bf16 that are cast to single precision, as models do it."""
    for rows, classes in ((8192, 50257), (8192, 50304), (4096, 128256)):
        yield from _losses(place, rows, classes, "eager", _cross_entropy)


def _losses(place: Place, rows: int, classes: int, how: str, run: Callable[..., Tensor]) -> Iterator[Work]:
    rows, classes = place.size(rows), place.size(classes)
    size = 2 * rows * classes
    facts = {"rows": rows, "classes": classes, "type": "bf16", "how": how}

    def forward(_: int) -> Call:
        scores, labels = place.normal(rows, classes), place.indices(classes, rows)
        return lambda: run(scores, labels)

    def backward(_: int) -> Call:
        return gradient_calls(run, place.normal(rows, classes), place.indices(classes, rows))

    yield Work("cross-entropy", forward, facts, 5 * rows * classes, size, copies=2, most=10)
    yield Work("cross-entropy backward", backward, facts, 5 * rows * classes, 2 * size, copies=2, most=10)


def lookup_cases(place: Place) -> Iterator[Work]:
    for rows, table, width, dtype in (
        (8192, 50257, 768, "fp32"),
        (8192, 128256, 2048, "fp32"),
        (8192, 128256, 2048, "bf16"),
    ):
        rows, table, width = place.size(rows), place.size(table), place.size(width)
        kind = _TYPES[dtype]
        facts = {"rows": rows, "table": table, "width": width, "type": dtype}
        moved = 2 * rows * width * kind.itemsize

        def forward(_: int, rows: int = rows, table: int = table, width: int = width, kind: Any = kind) -> Call:
            weights, at = place.normal(table, width, dtype=kind), place.indices(table, rows)
            return lambda: functional.embedding(at, weights)

        def backward(_: int, rows: int = rows, table: int = table, width: int = width, kind: Any = kind) -> Call:
            at = place.indices(table, rows)
            return gradient_calls(lambda w: functional.embedding(at, w), place.normal(table, width, dtype=kind))

        yield Work("embedding", forward, facts, 0, moved, copies=2)
        yield Work("embedding backward", backward, facts, 0, moved + table * width * kind.itemsize, copies=2)


def optimizer_cases(place: Place) -> Iterator[Work]:
    """A step of AdamW: 28 bytes an element in single precision (four read, three written), 14 in bf16."""
    for count, elements in ((1, 1 << 24), (148, 840_000), (64, 1 << 22), (1, 1 << 28)):
        elements = place.size(elements)
        for dtype, kind in _TYPES.items():
            for how in ("fused", "foreach"):
                if count * elements > 1 << 27 and (dtype, how) != ("fp32", "fused"):
                    continue

                def make(_: int, count: int = count, n: int = elements, kind: Any = kind, how: str = how) -> Call:
                    weights = [place.normal(n, dtype=kind).requires_grad_() for _ in range(count)]
                    for w in weights:
                        w.grad = torch.randn_like(w)
                    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=how == "fused", foreach=how == "foreach")
                    step: Call = optimizer.step
                    return step

                facts = {"tensors": count, "elements": count * elements, "type": dtype, "how": how}
                moved = 7 * kind.itemsize * count * elements
                yield Work("adamw", make, facts, 0, moved, copies=1, most=20)


def convolution_cases(place: Place) -> Iterator[Work]:
    """Those of ResNet-50 with 64 samples, channels first and last; batch normalization and pooling beside them."""
    shapes = [
        (3, 64, 224, 7, 2), (64, 64, 56, 1, 1), (64, 64, 56, 3, 1), (64, 256, 56, 1, 1),
        (128, 128, 28, 3, 1), (256, 256, 14, 3, 1), (1024, 256, 14, 1, 1), (512, 512, 7, 3, 1), (512, 2048, 7, 1, 1),
    ]  # fmt: skip
    batch = 2 if place.tiny else 64
    for kind, name in ((torch.bfloat16, "bf16"), (torch.float32, "tf32")):
        for last in (True, False):
            if name == "tf32" and not last:
                continue
            for i, o, side, k, stride in shapes[1:3] if place.tiny else shapes:
                form = torch.channels_last if last else torch.contiguous_format

                def pair(i: int = i, o: int = o, s: int = side, k: int = k, f: Any = form, d: Any = kind) -> Any:
                    torch.backends.cudnn.allow_tf32 = True
                    x = place.normal(batch, i, s, s, dtype=d).contiguous(memory_format=f)
                    return x, place.normal(o, i, k, k, dtype=d).contiguous(memory_format=f)

                def run(x: Tensor, w: Tensor, stride: int = stride, k: int = k) -> Tensor:
                    return functional.conv2d(x, w, stride=stride, padding=k // 2)

                def forward(_: int, pair: Any = pair, run: Any = run) -> Call:
                    x, w = pair()
                    return lambda: run(x, w)

                def backward(_: int, pair: Any = pair, run: Any = run) -> Call:
                    return gradient_calls(run, *pair())

                out = side // stride
                flops = 2.0 * batch * o * i * k * k * out * out
                moved = kind.itemsize * (batch * (i * side * side + o * out * out) + o * i * k * k)
                facts: dict[str, Any] = {
                    "channels": i,
                    "filters": o,
                    "side": side,
                    "kernel": k,
                    "stride": stride,
                    "batch": batch,
                }
                facts |= {"type": name, "last": last}
                yield Work("convolution", forward, facts, flops, moved, held=moved, most=15)
                yield Work("convolution backward", backward, facts, 2 * flops, 2 * moved, held=2 * moved, most=15)
    for channels, side in ((256, 56), (1024, 14)):
        n = batch * channels * side * side

        def image(channels: int = channels, side: int = side) -> Tensor:
            return place.normal(batch, channels, side, side).contiguous(memory_format=torch.channels_last)

        def norm(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
            return functional.batch_norm(x, None, None, w, c, training=True)

        def normed(_: int, image: Any = image, ch: int = channels) -> Call:
            x, w, c = image(), place.normal(ch, dtype=torch.float32), place.normal(ch, dtype=torch.float32)
            return lambda: norm(x, w, c)

        def normed_back(_: int, image: Any = image, ch: int = channels) -> Call:
            return gradient_calls(
                norm, image(), place.normal(ch, dtype=torch.float32), place.normal(ch, dtype=torch.float32)
            )

        facts = {"channels": channels, "side": side, "batch": batch, "type": "bf16", "last": True}
        yield Work("batch norm", normed, facts, 8 * n, 6 * n, held=6 * n)
        yield Work("batch norm backward", normed_back, facts, 8 * n, 10 * n, held=8 * n)


def copy_cases(place: Place) -> Iterator[Work]:
    for wanted in (1 << 16, 1 << 22, 1 << 28):
        size = place.size(wanted)
        facts = {"size": size}
        if wanted == 1 << 28:
            yield Work("copy on the device", _copied(place, 4 * size), {"size": 4 * size}, 0, 8 * size,
                       copies=2)  # fmt: skip
        if place.device.type == "cuda":
            for kept in ("pinned", "pageable"):
                for way in ("to the device", "to the host"):

                    def make(_: int, n: int = size, kept: str = kept, way: str = way) -> Call:
                        host = torch.ones(n, dtype=torch.uint8, pin_memory=kept == "pinned")
                        there = torch.ones(n, dtype=torch.uint8, device=place.device)
                        if way == "to the device":
                            return lambda: there.copy_(host, non_blocking=True)
                        return lambda: host.copy_(there, non_blocking=True)

                    yield Work(f"{kept} {way}", make, facts, 0, size, copies=1, most=10)


def _copied(place: Place, size: int) -> Callable[[int], Call]:
    def make(_: int) -> Call:
        x = torch.randint(255, (size,), dtype=torch.uint8, device=place.device)
        y = torch.empty_like(x)
        return lambda: y.copy_(x)

    return make


def compiled_cases(place: Place) -> Iterator[Work]:
    """The chains that torch.compile makes one kernel of."""
    functorch.donated_buffer = False  # a backward pass is run many times over

    def chain(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return functional.layer_norm(x + functional.gelu(y, approximate="tanh"), (x.shape[-1],), w)

    made: Any = torch.compile(chain, dynamic=False)
    rows, width = place.size(8192), place.size(2048)
    n = rows * width

    def operands() -> tuple[Tensor, Tensor, Tensor]:
        return place.normal(rows, width), place.normal(rows, width), place.normal(width)

    for how, run in (("eager", chain), ("compiled", made)):

        def forward(_: int, run: Any = run) -> Call:
            x, y, w = operands()
            return lambda: run(x, y, w)

        def backward(_: int, run: Any = run) -> Call:
            return gradient_calls(run, *operands())

        facts = {"rows": rows, "width": width, "type": "bf16", "how": how}
        yield Work("gelu, add, layer norm", forward, facts, 12 * n, 6 * n, held=8 * n)
        if how == "eager":
            yield Work("gelu, add, layer norm backward", backward, facts, 12 * n, 10 * n, held=14 * n)
    entropy: Any = torch.compile(_cross_entropy, dynamic=False)
    yield from _losses(place, 8192, 50257, "compiled", entropy)
    step = torch.compile(_gate, dynamic=False)

    def gated(_: int) -> Call:
        x, y = place.normal(n), place.normal(n)
        return lambda: step(x, y)

    yield Work("silu times", gated, {"elements": n, "type": "bf16", "how": "compiled"}, n, 6 * n, held=6 * n)


def _gate(x: Tensor, y: Tensor) -> Tensor:
    return functional.silu(x) * y
