"""Small operators of one family: indexing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.rules.cases.values import f, i, n, rows
from tests.rules.prover import Case, case

__all__ = ["indexing"]


def indexing() -> Iterator[Case]:
    yield case("Gather", [f(12, 6), n(12, 4, 6)])
    yield case("Gather", [f(4, 12, 6), n(12, 6)], axis=1)
    yield case("Gather", [f(4, 12, 6), np.int64(-2)], axis=1)
    yield case("Gather", [n(9, 12), n(12, 6)])
    yield case("GatherElements", [f(4, 6), n(6, 4, 12)], axis=1)
    yield case("GatherElements", [f(4, 6), n(6, 2, 12)], axis=1)
    yield case("GatherND", [f(4, 6, 12), n(4, 6, 2)])
    yield case("GatherND", [f(4, 6, 12), n(6, 4, 6, 1)], batch_dims=1)
    places = rows(12, 4, 6)
    for reduction in ("none", "add", "mul"):
        yield case("ScatterElements", [f(4, 12), places, f(4, 6)], axis=1, reduction=reduction)
        yield case("ScatterND", [f(12, 6), places[0][:, None], f(6, 6)], reduction=reduction)
    yield case("ScatterElements", [f(6, 12), places, f(4, 6)], axis=1)
    yield case("OneHot", [n(4, 4, 6), np.int64(4), f(2)], constants=[1])
    yield case("OneHot", [n(4, 4, 6), np.int64(4), f(2)], constants=[1], axis=1)
    yield case("TopK", [f(4, 12), i(3)], constants=[1], results=2)
