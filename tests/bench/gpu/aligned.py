"""Products whose innermost dimensions are no multiple of 16 bytes, in each of the three roles that a layer has.

A layer `y = x wT` of `rows` tokens makes three products: forward (`x wT`), the gradient of its input (`dy w`) and of
its weights (`dyT x`).  Every one of the three tensors lies with `depth` or `columns` innermost, never with `rows`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.gpu.products import product_case
from tests.bench.gpu.work import Place, Work

__all__ = ["alignment_cases"]

Shape = tuple[int, int, int]  # rows, depth, columns
_HEADS: tuple[Shape, ...] = ((8192, 768, 50256), (4096, 1600, 50256))
_LAYERS: tuple[Shape, ...] = ((8192, 2048, 2048), (8192, 768, 3072), (2048, 4096, 4096))
_MORE = (0, 1, 2, 4, 8)


def alignment_cases(place: Place) -> Iterator[Work]:
    for more in _MORE:
        for m, k, n in _HEADS:
            yield from _roles(place, (m, k, n + more), "bf16")
        for m, k, n in _LAYERS:
            yield from _roles(place, (m, k, n + more), "bf16")
            if more:
                yield from _roles(place, (m, k + more, n), "bf16")
        if more in (1, 2):
            m, k, n = _LAYERS[0]
            yield from _roles(place, (m, k + more, n + more), "bf16")
            yield from _roles(place, (m + more, k, n), "bf16")
        for dtype in ("fp16", "tf32", "fp32"):
            yield from _roles(place, (8192, 2048, 2048 + more), dtype)
        for dtype in ("fp16", "tf32"):
            yield from _roles(place, (8192, 768, 50256 + more), dtype)
    yield from _roles(place, (8192, 768, 50304), "bf16")
    # Scores and weighted sums of attention written out: positions innermost, then the width of a head.
    for b, s, d in ((1024, 197, 64), (1024, 198, 64), (1024, 200, 64), (1024, 208, 64), (96, 1024, 64), (96, 1023, 64)):
        yield product_case(place, (s, d, s), "bf16", "batched x wT", batch=b)
        yield product_case(place, (s, s, d), "bf16", "batched", batch=b)


def _roles(place: Place, shape: Shape, dtype: str) -> Iterator[Work]:
    m, k, n = shape
    yield product_case(place, (m, k, n), dtype, "x wT")
    yield product_case(place, (m, n, k), dtype, "dy w")
    yield product_case(place, (n, m, k), dtype, "dyT x")
