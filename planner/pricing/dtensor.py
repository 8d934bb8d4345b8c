"""What DTensor can express, as a restriction of a search: a parameter that is computed with in one layout, whose
dimensions are cut by mesh axes in the order of the mesh."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.ir import DeviceMesh, Layout
from planner.pricing.machine import IntArray
from planner.rules.expansion import Choices, Layouts

__all__ = ["Placeable", "whole_convolutions"]


class Placeable:
    """Remembers what it said of layouts, by their numbers."""

    def __init__(self, layouts: Layouts, mesh: DeviceMesh) -> None:
        self.layouts, self.mesh = layouts, mesh
        self._known: dict[tuple[int, int], bool] = {}

    def allows(self, first: IntArray, second: IntArray) -> NDArray[np.bool_]:
        """Of pairs of layouts that a parameter is computed with in, the second -1 for none: those that DTensor can hold
        as one.  A pending sum of which a bias is a part is no other layout: DTensor sees to it by itself."""
        return np.array([self._allows(*pair) for pair in zip(first.tolist(), second.tolist(), strict=True)], dtype=bool)

    def _allows(self, first: int, second: int) -> bool:
        if (first, second) not in self._known:
            cuts = [self._cuts(self.layouts.known[n]) for n in (first, second) if n >= 0]
            ordered = all(list(d) == sorted(d, key=self.mesh.names.index) for d in cuts[0])
            self._known[first, second] = ordered and cuts[0] == cuts[-1]
        return self._known[first, second]

    def _cuts(self, layout: Layout) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(a for a in d if self.mesh.sizes[a] > 1) for d in layout.dims)


def whole_convolutions(found: Choices) -> NDArray[np.bool_]:
    """Strategies of a convolution that divide its samples alone: of divided channels or positions DTensor (2.13)
    computes each part as if it were all."""
    out = np.ones(len(found), dtype=bool)
    for slot, side in enumerate(found.expansion.operands[:3]):
        for factor in {f for dim in (side.dims or ())[slot == 0 :] for f in dim}:
            out &= found.factor_shards(factor) == 1
    return out
