"""Small operators of one family: attention."""

from __future__ import annotations

from collections.abc import Iterator

from tests.rules.cases.values import f, n
from tests.rules.prover import Case, case

__all__ = ["attention"]


def attention() -> Iterator[Case]:
    def cases(opset: int) -> Iterator[Case]:
        t = "Attention"
        yield case(t, [f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8)], opset=opset)
        yield case(t, [f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8)], opset=opset, is_causal=1)
        yield case(t, [f(2, 12, 4, 8), f(2, 6, 6, 8), f(2, 6, 6, 4)], opset=opset)
        yield case(t, [f(2, 6, 4, 8), f(2, 2, 6, 8), f(2, 2, 6, 8), f(2, 1, 4, 6)], opset=opset)
        yield case(t, [f(2, 4, 4, 8), f(2, 4, 6, 8), f(2, 4, 6, 8), f(4, 6)], opset=opset, scale=0.3)
        yield case(t, [f(2, 4, 48), f(2, 6, 16), f(2, 6, 16), f(6, 4, 6)], opset=opset, q_num_heads=6, kv_num_heads=2)
        past = [f(2, 2, 4, 8), f(2, 2, 3, 8), f(2, 2, 3, 8), None, f(2, 2, 2, 8), f(2, 2, 2, 8)]
        yield case(t, past, opset=opset, results=3)

    yield from cases(23)
    yield case("RotaryEmbedding", [f(2, 4, 6, 8), f(6, 4), f(6, 4), n(6, 2, 6)], opset=23)
    yield case("RotaryEmbedding", [f(2, 6, 32), f(2, 6, 4), f(2, 6, 4)], opset=23, num_heads=4)
