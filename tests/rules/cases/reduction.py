"""Small operators of one family: reduction."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

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
        yield case(t, [p(12, 6).astype(np.float16), i(0)], constants=[1])
    yield from _ties_and_extremes()
    yield from _places()
    yield from _running()
    yield case("DynamicQuantizeLinear", [f(4, 6)], results=3)
    yield case("DynamicQuantizeLinear", [p(12, 4, 2)], results=3)  # zero belongs to the range, whatever the elements


def _ties_and_extremes() -> Iterator[Case]:
    tied = n(3, 4, 6, 2).astype(np.float32)
    for t in ("ReduceMax", "ReduceMin"):
        yield case(t, [tied, i(0, 1)], constants=[1])
        yield case(t, [tied, i(1)], constants=[1], keepdims=0)
        yield case(t, [n(9, 4, 6), i(0)], constants=[1])
    holed = np.where(tied == 0, 0, f(4, 6, 2)).astype(np.float32)  # products of none, one and several zeros
    yield case("ReduceProd", [holed, i(1)], constants=[1])
    yield case("ReduceProd", [np.where(np.arange(6) == 3, 0, p(4, 6)).astype(np.float32), i(1)], constants=[1])
    yield case("ReduceProd", [n(9, 4, 6), i(0)], constants=[1], keepdims=0)
    yield case("ReduceL2", [np.zeros((4, 6), np.float32), i(1)], constants=[1])
    yield case("ReduceLogSumExp", [f(4, 6) * 200, i(1)], constants=[1])  # overflows without the maximum taken off
    yield case("ReduceLogSumExp", [np.full((4, 6), -np.inf, np.float32), i(1)], constants=[1])
    yield case("ReduceMean", [n(99, 4, 6) - 50, i(1)], constants=[1])
    yield case("ReduceMean", [(n(99, 4, 6) - 50).astype(np.int32), i(0, 1)], constants=[1], keepdims=0)
    for keep in (0, 1):
        small = (n(99, 4, 6) - 50).astype(np.int8)
        yield case("com.microsoft::ReduceSumInteger", [small], opset=1, axes=(1,), keepdims=keep)
    yield case("ReduceSum", [f(4, 6), i()], constants=[1], noop_with_empty_axes=1)
    yield case("ReduceL2", [f(4, 6), i()], constants=[1], noop_with_empty_axes=1)


def _places() -> Iterator[Case]:
    tied = n(3, 4, 12, 6).astype(np.float32)
    for t in ("ArgMax", "ArgMin"):
        for last in (0, 1):
            yield case(t, [tied], axis=1, keepdims=0, select_last_index=last)
            yield case(t, [tied], axis=-1, select_last_index=last)
        yield case(t, [f(4, 6, 12)], opset=11, axis=-1)
        yield case(t, [n(9, 4, 6).astype(np.int32)], axis=0)
        yield case(t, [f(12)], axis=0, keepdims=0)


def _running() -> Iterator[Case]:
    for exclusive in (0, 1):
        for reverse in (0, 1):
            yield case("CumSum", [f(4, 6, 2), i(1)], constants=[1], exclusive=exclusive, reverse=reverse)
            yield case("CumSum", [n(9, 12, 2), i(-2)], constants=[1], exclusive=exclusive, reverse=reverse)
            holed = np.where(np.arange(12) == 7, 0, p(2, 12)).astype(np.float32)
            for x in (p(2, 12), holed):
                yield case("CumProd", [x, i(1)], opset=26, constants=[1], exclusive=exclusive, reverse=reverse)
    yield case("CumSum", [f(12).astype(np.float16), np.array(0)], constants=[1])
