"""Matrix products: square, skinny, tall, deep, batched, and those of transformer layers of widths 768 to 8192."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.bench.gpu.work import Call, Place, Work

__all__ = ["product_case", "product_cases"]

Shape = tuple[int, int, int]  # rows, depth, columns
SQUARE = [(n, n, n) for n in (256, 512, 1024, 2048, 4096, 8192, 16384)]
WIDTHS = (768, 1024, 1600, 2048, 4096, 5120, 8192)
LAYERS = [s for h in WIDTHS for s in ((8192, h, 3 * h), (8192, h, h), (8192, h, 4 * h), (8192, 4 * h, h))]
SMALLER = [(2048, h, 4 * h) for h in (768, 2048, 4096)] + [(1024, 768, 768), (1024, 768, 3072)]
HEADS = [(8192, 768, 50257), (8192, 768, 50304), (4096, 1600, 50257), (8192, 2048, 128256)]
SKINNY = [(m, n, n) for m in (1, 16, 128) for n in (4096, 8192)]
TALL = [(65536, 768, 768), (65536, 1024, 1024), (65536, 64, 256)]
DEEP = [(768, 8192, 3072), (2048, 16384, 8192), (256, 65536, 256)]
BATCHED = [
    (96, 1024, 64, 1024), (96, 1024, 1024, 64), (64, 2048, 128, 2048), (512, 197, 64, 197), (8, 2048, 1024, 3584),
]  # fmt: skip
GRADIENTS = [(8192, 768, 3072), (8192, 2048, 8192), (8192, 4096, 4096), (8192, 768, 50257)]
OTHERS = [(n, n, n) for n in (1024, 4096, 8192)] + [(8192, 768, 3072), (8192, 4096, 14336), (8192, 2048, 2048)]


def product_cases(place: Place, *, others: bool = False) -> Iterator[Work]:
    """In bf16, or a part of them in fp16, fp8, tf32 and fp32."""
    if others:
        for dtype in ("fp16", "fp8", "tf32", "fp32"):
            for shape in OTHERS:
                if dtype != "fp32" or shape[0] * shape[1] * shape[2] < 1 << 37:
                    yield product_case(place, shape, dtype, "x wT")
        return
    for shape in (*SQUARE, *LAYERS, *SMALLER, *HEADS, *SKINNY, *TALL, *DEEP):
        yield product_case(place, shape, "bf16", "x wT")
    for m, k, n in GRADIENTS:
        yield product_case(place, (m, n, k), "bf16", "dy w")
        yield product_case(place, (n, m, k), "bf16", "dyT x")
    for b, m, k, n in BATCHED:
        yield product_case(place, (m, k, n), "bf16", "batched", batch=b)


def product_case(place: Place, shape: Shape, dtype: str, form: str, batch: int = 1) -> Work:
    """One product of (rows, depth, columns), as `form` stores its operands."""
    m, k, n = (place.size(s, 16) for s in shape) if place.tiny else shape
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}.get(dtype)
    width = 1 if dtype == "fp8" else 2 if dtype in ("bf16", "fp16") else 4
    out = 2 if dtype == "fp8" else width

    def make(_: int) -> Call:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        if kind is None:
            return _eight_bits(place, m, k, n)
        if batch > 1:
            a = place.normal(batch, m, k, dtype=kind)
            if form == "batched x wT":
                c = place.normal(batch, n, k, dtype=kind)
                return lambda: torch.bmm(a, c.transpose(1, 2))
            b = place.normal(batch, k, n, dtype=kind)
            return lambda: torch.bmm(a, b)
        if form == "x wT":
            x, w = place.normal(m, k, dtype=kind), place.normal(n, k, dtype=kind)
            return lambda: torch.mm(x, w.t())
        if form == "dy w":
            y, w = place.normal(m, k, dtype=kind), place.normal(k, n, dtype=kind)
            return lambda: torch.mm(y, w)
        y, x = place.normal(k, m, dtype=kind), place.normal(k, n, dtype=kind)
        return lambda: torch.mm(y.t(), x)

    held = batch * (width * (m * k + k * n) + out * m * n)
    facts = {"type": dtype, "form": form, "batch": batch, "m": m, "k": k, "n": n}
    return Work("product", make, facts, 2.0 * batch * m * k * n, held, held=held)


def _eight_bits(place: Place, m: int, k: int, n: int) -> Call:
    a = place.normal(m, k, dtype=torch.float8_e4m3fn)
    b = place.normal(n, k, dtype=torch.float8_e4m3fn).t()
    one = torch.ones((), device=place.device)
    return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)
