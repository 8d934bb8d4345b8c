"""Small operators in the types that autocast gives them, and the core of attention written out.

Autocast keeps weights and the stream between blocks in single precision: norms, softmax, losses and sums with the
stream run in it, products and what follows them in bf16, and a cast lies between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.bench.gpu.models import Attention, Choices, RMSNorm
from tests.bench.gpu.work import Call, Place, Work, gradient_calls

__all__ = ["core_cases", "mixed_cases"]

_ROWS = ((8192, 768), (8192, 2048), (12608, 1024))
_CORES = ((16, 12, 1024, 64, True), (4, 32, 2048, 64, True), (64, 16, 197, 64, False), (64, 16, 200, 64, False))


def _auto(place: Place, on: bool = True) -> Any:
    return torch.autocast(place.device.type, torch.bfloat16) if on else nullcontext()


def mixed_cases(place: Place) -> Iterator[Work]:
    fp32, bf16 = torch.float32, torch.bfloat16
    for wanted, width in _ROWS:
        rows, width = place.size(wanted), place.size(width)
        n = rows * width
        facts = {"rows": rows, "width": width}

        def added(_: int, rows: int = rows, w: int = width) -> Call:
            x, y = place.normal(rows, w, dtype=fp32), place.normal(rows, w)
            return lambda: x + y

        def halved(_: int, rows: int = rows, w: int = width) -> Call:
            x = place.normal(rows, w, dtype=fp32)
            return lambda: x.to(bf16)

        def widened(_: int, rows: int = rows, w: int = width) -> Call:
            x = place.normal(rows, w)
            return lambda: x.to(fp32)

        def totalled(_: int, rows: int = rows, w: int = width) -> Call:
            x = place.normal(rows, w)
            return lambda: x.sum(0)

        def relu(_: int, rows: int = rows, w: int = width) -> Call:
            x = place.normal(rows, w)
            return lambda: functional.relu(x)

        yield Work("add fp32 and bf16", added, facts, n, 10 * n, held=10 * n)
        yield Work("cast fp32 to bf16", halved, facts, 0, 6 * n, held=6 * n)
        yield Work("cast bf16 to fp32", widened, facts, 0, 6 * n, held=6 * n)
        yield Work("sum over rows, bf16", totalled, facts, n, 2 * n, held=2 * n)
        yield Work("relu, bf16", relu, facts, n, 4 * n, held=4 * n)
        for name, make in (("layer norm", torch.nn.LayerNorm), ("rms norm", RMSNorm)):

            def normed(_: int, make: Any = make, rows: int = rows, w: int = width) -> Call:
                layer, x = make(w).to(place.device), place.normal(rows, w, dtype=fp32)

                def run() -> Tensor:
                    with _auto(place):
                        return layer(x)

                return run

            def back(_: int, make: Any = make, rows: int = rows, w: int = width) -> Call:
                layer, x = make(w).to(place.device), place.normal(rows, w, dtype=fp32)

                def run(x: Tensor, weight: Tensor) -> Tensor:
                    with _auto(place):
                        if make is RMSNorm:
                            return functional.rms_norm(x, (x.shape[-1],), weight, 1e-5)
                        return functional.layer_norm(x, (x.shape[-1],), weight, layer.bias)

                return gradient_calls(run, x, layer.weight)

            yield Work(f"{name} under autocast", normed, facts, 8 * n, 8 * n, held=8 * n)
            yield Work(f"{name} under autocast backward", back, facts, 8 * n, 12 * n, held=16 * n)
    yield from _rotations(place)
    yield from _odd_tables(place)


def _rotations(place: Place) -> Iterator[Work]:
    from tests.bench.gpu.models import _rotated

    b, s, h, d = 4, place.size(2048), 32, 64
    n = b * s * h * d

    def operands() -> tuple[Tensor, Tensor, Tensor]:
        x = place.normal(b, s, h, d).transpose(1, 2)
        return x, place.normal(s, d), place.normal(s, d)

    def forward(_: int) -> Call:
        x, c, i = operands()
        return lambda: _rotated(x, c, i)

    def backward(_: int) -> Call:
        x, c, i = operands()
        return gradient_calls(lambda x: _rotated(x, c, i), x)

    facts = {"elements": n, "type": "bf16"}
    yield Work("rotation", forward, facts, 6 * n, 4 * n, held=4 * n)
    yield Work("rotation backward", backward, facts, 6 * n, 4 * n, held=8 * n)


def _odd_tables(place: Place) -> Iterator[Work]:
    """Lookups and losses at vocabularies that are, and that are not, a multiple of eight."""
    for classes in (50256, 50257, 50264, 50304):
        rows, table = place.size(8192), place.size(classes) + classes % 8 * place.tiny
        facts: dict[str, Any] = {"rows": rows, "classes": table}

        def scores(rows: int = rows, table: int = table, kind: Any = torch.bfloat16) -> tuple[Tensor, Tensor]:
            return place.normal(rows, table, dtype=kind), place.indices(table, rows)

        def softmax(_: int, scores: Any = scores) -> Call:
            x, _y = scores(kind=torch.float32)
            return lambda: torch.log_softmax(x, -1)

        def softmax_back(_: int, scores: Any = scores) -> Call:
            x, _y = scores(kind=torch.float32)
            return gradient_calls(lambda x: torch.log_softmax(x, -1), x)

        def widened(_: int, scores: Any = scores) -> Call:
            x, _y = scores()
            return lambda: x.float()

        def looked_up(_: int, rows: int = rows, table: int = table) -> Call:
            at, w = place.indices(table, rows), place.normal(table, place.size(768), dtype=torch.float32)
            return gradient_calls(lambda w: functional.embedding(at, w), w)

        n = rows * table
        yield Work("log-softmax, fp32", softmax, facts, 5 * n, 8 * n, copies=2, most=8)
        yield Work("log-softmax backward, fp32", softmax_back, facts, 5 * n, 12 * n, copies=2, most=8)
        yield Work("scores cast to fp32", widened, facts, 0, 6 * n, copies=2, most=8)
        moved = 4 * (rows + table) * place.size(768)
        yield Work("embedding backward, fp32", looked_up, facts, 0, moved, copies=2, most=20)


def core_cases(place: Place) -> Iterator[Work]:
    """Scores, mask, softmax and weighted sum, kernel by kernel; under autocast and in bf16 throughout."""
    for b, heads, s, d, causal in _CORES:
        if place.tiny:
            b, heads, s = 2, 2, 24 + s % 8
        layer = Attention(heads * d, heads, heads, Choices("unfused"), bias=False, causal=causal)
        for how in ("autocast", "bf16"):

            def run(q: Tensor, k: Tensor, v: Tensor, how: str = how, layer: Attention = layer) -> Tensor:
                with _auto(place, how == "autocast"):
                    return layer.core(q, k, v)

            def operands(shape: tuple[int, ...] = (b, s, heads, d)) -> tuple[Tensor, Tensor, Tensor]:
                q, k, v = (place.normal(*shape).transpose(1, 2) for _ in range(3))
                return q, k, v

            def forward(_: int, run: Any = run, operands: Any = operands) -> Call:
                o = operands()
                return lambda: run(*o)

            def backward(_: int, run: Any = run, operands: Any = operands) -> Call:
                return gradient_calls(run, *operands())

            facts: dict[str, Any] = {"batch": b, "heads": heads, "seq": s, "depth": d, "causal": causal, "how": how}
            facts["kept_bytes"] = _kept(place, run, operands)
            scores = b * heads * s * s
            flops = 4.0 * scores * d
            yield Work("core of attention", forward, facts, flops, 2 * scores, copies=2, most=10)
            yield Work("core of attention backward", backward, facts, 2 * flops, 4 * scores, copies=2, most=10)


def _kept(place: Place, run: Callable[..., Tensor], operands: Callable[[], tuple[Tensor, ...]]) -> int:
    """Bytes that the forward pass keeps for the backward pass, its operands and result aside."""
    if place.device.type != "cuda":
        return 0
    o = [x.detach().requires_grad_() for x in operands()]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = run(*o)
    kept = torch.cuda.memory_allocated() - before - y.numel() * y.element_size()
    del y
    return int(kept)
