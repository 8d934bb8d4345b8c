"""Which layouts MindSpore stores a parameter in (`enable_parallel_optimizer`), given how it is computed with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.ir import DeviceMesh, Layout
from planner.pricing.machine import IntArray
from planner.rules.expansion import Layouts

__all__ = ["OptimizerParallel"]


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
            self._known[computed, stored] = _cut_further(known[computed], known[stored], self.mesh)
        return self._known[computed, stored]


def _cut_further(computed: Layout, stored: Layout, mesh: DeviceMesh) -> bool:
    """Whether `stored` divides the first dimension of `computed` among all axes that this leaves."""
    if not stored.dims or computed.partial or stored.partial or computed.dims[1:] != stored.dims[1:]:
        return False
    used = {a for d in computed.dims for a in d}
    left = tuple(a.name for a in mesh.axes if a.size > 1 and a.name not in used)
    return stored.dims[0] == (*computed.dims[0], *left)
