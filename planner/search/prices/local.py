"""Local search on one choice: repair of exceeded memory rows, then descent in cost within the limits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.search.prices.lagrangian import Masks
from planner.search.reduction.reduced import Factor, Reduced

__all__ = ["LocalSearch"]


class LocalSearch:
    """Moves one node at a time.  The problem's neighbourhoods are laid out once."""

    def __init__(self, problem: Reduced) -> None:
        self.problem = problem
        self.work = 0  # entries computed so far
        self.around: list[list[tuple[int, int, Factor]]] = [[] for _ in problem.nodes]  # other, own axis, factor
        for u, v, factor in problem.edges:
            self.around[u].append((v, 0, factor))
            self.around[v].append((u, 1, factor))

    def improve(self, choice: Sequence[int], masks: Masks, *, sweeps: int) -> tuple[int, ...] | None:
        """A choice within the limits near `choice`, or None when none was reached."""
        x = list(choice)
        usage = self.problem.usage(x)
        for _ in range(sweeps):
            excess = float(np.maximum(usage - self.problem.limits, 0).sum())
            changed = False
            nodes = range(len(x)) if excess == 0 else self._by_promise(x, usage, masks)
            for v in nodes:
                cost, over, held = self._moves(v, x, usage, masks)
                if over[x[v]] > 0:
                    gain = over[x[v]] - over
                    with np.errstate(divide="ignore", invalid="ignore"):
                        rate = np.where(gain > 0, np.maximum(cost - cost[x[v]], 0) / gain, np.inf)
                    best = int(np.lexsort((-gain, rate))[0])
                    better = bool(np.isfinite(rate[best]))
                else:
                    best = int(np.argmin(np.where(over > 0, np.inf, cost)))
                    better = bool(cost[best] < cost[x[v]])
                if better:
                    usage = usage + (held[best] - held[x[v]])
                    x[v] = best
                    changed = True
                    if excess and not (usage > self.problem.limits).any():
                        break
            if not changed:
                break
        return tuple(x) if not (usage > self.problem.limits).any() and np.isfinite(self.problem.cost(x)) else None

    def _by_promise(self, x: list[int], usage: NDArray[np.float64], masks: Masks) -> list[int]:
        """Nodes that can lower the excess, cheapest per byte first."""
        rated = []
        for v in range(len(x)):
            cost, over, _ = self._moves(v, x, usage, masks)
            gain = over[x[v]] - over
            useful = gain > 0
            if useful.any():
                rated.append((float((np.maximum(cost - cost[x[v]], 0)[useful] / gain[useful]).min()), v))
        return [v for rate, v in sorted(rated) if np.isfinite(rate)]

    def _moves(
        self, v: int, x: list[int], usage: NDArray[np.float64], masks: Masks
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """For every state of v: cost of what touches v, total excess over the limits, bytes it holds per row."""
        arrays = self.problem.arrays
        cost = arrays[self.problem.nodes[v].costs].copy()
        if v in masks:
            cost[~masks[v]] = np.inf
        parts = [(span, arrays[n]) for span, n in self.problem.nodes[v].usage]
        for u, axis, factor in self.around[v]:
            cost += np.take(arrays[factor.costs], x[u], axis=1 - axis)
            parts += [(span, np.take(arrays[n], x[u], axis=1 - axis)) for span, n in factor.usage]
        held = np.zeros((len(cost), len(usage)))
        self.work += 4 * held.size + 5000
        for (a, b), vector in parts:
            held[:, a:b] += vector[:, None]
        after = usage + held - held[x[v]]
        return cost, np.maximum(after - self.problem.limits, 0).sum(axis=1), held
