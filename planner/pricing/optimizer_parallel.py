"""Which layouts MindSpore stores a parameter in (`enable_parallel_optimizer`), given how it is computed with.

Ranks that compute with equal parts keep a part of these each: dimension 0 is cut once more, among all of them, behind
whatever axes cut it already (`OperatorInfo::CreateGroupForOptShard`).  A pending sum of which a bias is a part is no
other layout: MindSpore reduces the sum where it arises and adds the bias as it lies.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from planner.ir import DeviceMesh, Layout
from planner.pricing.machine import IntArray
from planner.rules.expansion import Layouts

__all__ = ["OptimizerParallel", "divided_further", "storable"]


def divided_further(computed: Layout, mesh: DeviceMesh) -> Layout:
    """`computed`, whatever is pending, with dimension 0 divided among all axes that divide nothing yet."""
    if not computed.dims:
        return Layout(())
    used = {a for d in computed.dims for a in d}
    left = tuple(a.name for a in mesh.axes if a.size > 1 and a.name not in used)
    return Layout(((*computed.dims[0], *left), *computed.dims[1:]), (), computed.parts)


def storable(layouts: Iterable[Layout], known: Iterable[Layout], mesh: DeviceMesh) -> tuple[Layout, ...]:
    """`layouts`, and those of the `known`, which divide a tensor evenly, that optimizer parallel makes of them: the
    axes of dimension 0 are then in no order of the mesh."""
    even, found = set(known), dict.fromkeys(layouts)
    further = (divided_further(x, mesh) for x in tuple(found))
    return tuple(found | dict.fromkeys(x for x in further if x in even))


class OptimizerParallel:
    """Remembers what it said of two layouts."""

    def __init__(self, layouts: Layouts, mesh: DeviceMesh) -> None:
        self.layouts, self.mesh = layouts, mesh
        self._known: dict[tuple[int, int], bool] = {}

    def allows(self, computed: IntArray, stored: IntArray) -> NDArray[np.bool_]:
        """table[i, k] of layouts by number: the parameter is stored as stored[i] where it is computed with as
        computed[k], which is the same, or cut further along the first dimension among all ranks with equal parts."""
        out = stored[:, None] == computed[None, :]
        for row, column in zip(*np.nonzero(~out), strict=True):
            out[row, column] = self._allows(int(computed[column]), int(stored[row]))
        return out

    def _allows(self, computed: int, stored: int) -> bool:
        if (computed, stored) not in self._known:
            known = self.layouts.known
            whole, kept = known[computed], known[stored]
            self._known[computed, stored] = kept in (
                Layout(whole.dims, (), whole.parts),
                divided_further(whole, self.mesh),
            )
        return self._known[computed, stored]
