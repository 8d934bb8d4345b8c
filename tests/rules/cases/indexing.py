"""Small operators of one family: indexing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.rules.cases.values import f, i, n, p, rows
from tests.rules.prover import Case, case

__all__ = ["indexing"]


def indexing() -> Iterator[Case]:
    yield from _look_ups()
    yield from _updates()
    yield case("OneHot", [n(4, 4, 6), np.int64(4), f(2)], constants=[1])
    yield case("OneHot", [n(4, 4, 6), np.int64(4), f(2)], constants=[1], axis=1)
    yield from _best()
    yield from _segments()


def _look_ups() -> Iterator[Case]:
    yield case("Gather", [f(12, 6), n(12, 4, 6)])
    yield case("Gather", [f(4, 12, 6), n(12, 6)], axis=1)
    yield case("Gather", [f(4, 12, 6), np.int64(-2)], axis=1)
    yield case("Gather", [f(4, 12), n(12, 6) - 12], axis=-1)
    yield case("Gather", [f(12, 6).astype(np.float16), n(12, 4)])
    yield case("Gather", [n(9, 12), n(12, 6)])
    yield case("Gather", [n(9, 1200), n(1200, 6)])
    yield case("GatherElements", [f(4, 6), n(6, 4, 12)], axis=1)
    yield case("GatherElements", [f(4, 6), n(6, 2, 12)], axis=1)
    yield case("GatherElements", [f(4, 6, 12), n(12, 4, 6, 1) - 12], axis=-1)  # the probability of a label
    yield case("GatherElements", [f(12, 6), n(12, 4, 3)])
    yield case("GatherElements", [n(9, 4, 12), n(12, 4, 6)], axis=1)
    yield case("GatherND", [f(4, 6, 12), n(4, 6, 2)])
    yield case("GatherND", [f(4, 6, 12), n(6, 4, 6, 1)], batch_dims=1)
    yield case("GatherND", [f(4, 6, 12), n(4, 2, 6, 2) - 4])
    yield case("GatherND", [f(4, 6), n(4, 12, 2)])
    yield case("GatherND", [f(2, 6, 12, 4), n(6, 2, 3, 2)], batch_dims=1)
    yield case("GatherND", [n(9, 6, 12), n(6, 4, 2)])


def _updates() -> Iterator[Case]:
    places = rows(12, 4, 6)
    repeated = n(12, 4, 6)
    for reduction in ("none", "add", "mul", "max", "min"):
        at = places if reduction == "none" else repeated
        yield case("ScatterElements", [f(4, 12), at, f(4, 6)], axis=1, reduction=reduction)
        yield case(
            "ScatterElements",
            [f(12, 6), at.T[:, :4] if reduction != "none" else rows(12, 4, 6).T, f(6, 4)],
            axis=0,
            reduction=reduction,
        )
        yield case("ScatterND", [f(12, 6), at[0][:, None], f(6, 6)], reduction=reduction)
        yield case("ScatterND", [f(4, 12, 2), np.stack([n(4, 6) * 0 + 1, places[1]], -1), f(6, 2)], reduction=reduction)
    yield case("ScatterElements", [f(6, 12), places, f(4, 6)], axis=1)
    yield case("ScatterElements", [f(4, 12), places - 12, f(4, 6)], axis=-1)
    yield case("ScatterElements", [n(9, 4, 12), places, n(9, 4, 6)], axis=1)
    yield case("ScatterND", [f(4, 6), np.stack([i(0, 1, 3, 3), i(-1, 0, 2, 4)], -1), f(4)], opset=11)
    yield case("Scatter", [f(4, 12), places, f(4, 6)], axis=1, opset=10)
    zero = np.where(f(4, 6) > 0.5, 0, f(4, 6)).astype(np.float32)
    yield case(
        "ScatterElements",
        [np.where(f(4, 12) > 1, 0, f(4, 12)).astype(np.float32), repeated, zero],
        axis=1,
        reduction="mul",
    )
    cache = [f(4, 2, 12, 6), f(4, 2, 3, 6)]
    yield case("TensorScatter", [*cache, i(0, 4, 9, 7)], opset=24)
    yield case("TensorScatter", [*cache, i(0, 4, 11, 10)], opset=24, mode="circular")
    yield case("TensorScatter", cache, opset=24)
    yield case("TensorScatter", [f(4, 12, 6), f(4, 2, 6), i(1, 0, 9, 7)], opset=24, axis=1)


def _best() -> Iterator[Case]:
    yield case("TopK", [f(4, 12), i(3)], constants=[1], results=2)
    yield case("TopK", [f(24, 4), i(2)], constants=[1], results=2, axis=0, largest=0)
    yield case("TopK", [np.floor(f(4, 24) * 2), i(5)], results=2)  # ties: the lower index comes first
    yield case("TopK", [n(5, 4, 12), i(4)], results=2, largest=0)
    yield case("TopK", [n(5, 4, 12), i(4)], results=2)
    yield case("TopK", [f(4, 12), i(2)], results=2, sorted=0)
    yield case("TopK", [f(4, 12)], opset=9, k=2, results=2)
    yield case("TopK", [p(2, 12, 4).astype(np.float16), i(1)], results=2, axis=-2)
    yield case("TopK", [f(4, 12), i(12)], constants=[1], results=2)


def _segments() -> Iterator[Case]:
    """The segments -1, 6 and 7 of six are none."""
    yield case("planner::SegmentSum", [f(12, 4), n(6, 12)], opset=1, num_segments=6)
    yield case("planner::SegmentSum", [f(12, 2, 3), n(9, 12) - 1], opset=1, num_segments=6)
    yield case("planner::SegmentSum", [f(12), n(4, 12)], opset=1, num_segments=4)
    yield case("planner::SegmentSum", [n(9, 12, 4), n(6, 12)], opset=1, num_segments=6)
