"""Small operators of one family: reduction."""

from __future__ import annotations

from collections.abc import Iterator

from tests.rules.cases.values import f, i, n, p
from tests.rules.prover import Case, case

__all__ = ["reductions"]


def reductions() -> Iterator[Case]:
    for t in (
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceL1",
        "ReduceL2",
        "ReduceProd",
        "ReduceLogSumExp",
        "ReduceSumSquare",
        "ReduceLogSum",
    ):
        yield case(t, [p(4, 6, 2), i(1)], constants=[1])
        yield case(t, [p(4, 6, 2), i(-1, 0)], constants=[1], keepdims=0)
        yield case(t, [p(4, 6)], keepdims=0)
        yield case(t, [p(4, 6, 2)], opset=11, axes=(1,), keepdims=0)
    yield case("ReduceSum", [f(4, 6), i()], constants=[1], noop_with_empty_axes=1)
    yield case("ReduceMax", [n(9, 4, 6), i(0)], constants=[1])
    yield case("ArgMax", [f(4, 6, 12)], axis=1, keepdims=0)
    yield case("ArgMin", [f(4, 6, 12)], axis=-1)
    yield case("CumSum", [f(4, 6), i(1)], constants=[1])
