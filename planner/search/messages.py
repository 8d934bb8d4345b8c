"""Sequential tree-reweighted message passing (TRW-S): a lower bound and scores where exact elimination is too wide.

Messages reparametrise the problem; with positions as the order of the sweeps the bound never falls and converges
to that of the tree relaxation (V. Kolmogorov, "Convergent Tree-Reweighted Message Passing for Energy Minimization",
IEEE PAMI 28(10), 2006, section 4).  Forbidden entries cost `big` instead of infinity, which bounds the same optimum as
long as `big` exceeds what an allowed choice costs.  Memory rows are ignored, which only lowers the bound.
"""

from __future__ import annotations

import math
import time

import numpy as np
from numpy.typing import NDArray

from planner.search.reduced import Reduced

__all__ = ["Messages"]

Array = NDArray[np.float64]


class Messages:
    """`scores[v][i]`: cost of the best choice through state i of node v as far as the messages know."""

    def __init__(self, problem: Reduced, big: float) -> None:
        self.problem = problem
        arrays = problem.arrays
        finite: dict[int, Array] = {}

        def capped(number: int) -> Array:
            if number not in finite:
                finite[number] = np.minimum(arrays[number], big)
            return finite[number]

        self.unary = [capped(f.costs) for f in problem.nodes]
        self.matrices = [capped(f.costs) for _, _, f in problem.edges]
        self.later: list[list[int]] = [[] for _ in problem.nodes]  # edges to later nodes
        self.earlier: list[list[int]] = [[] for _ in problem.nodes]
        for e, (u, v, _) in enumerate(problem.edges):  # u < v
            self.later[u].append(e)
            self.earlier[v].append(e)
        self.to_later = [np.zeros(problem.size(v)) for _, v, _ in problem.edges]
        self.to_earlier = [np.zeros(problem.size(u)) for u, _, _ in problem.edges]
        self.scores: list[Array] = [u.copy() for u in self.unary]
        self.bound = -math.inf

    def run(self, *, sweeps: int, deadline: float | None) -> float:
        """Sweeps forward and back until the bound stands still; the best bound."""
        for _ in range(sweeps):
            before = self.bound
            self._sweep(forward=True)
            self.bound = max(self.bound, self._sweep(forward=False))
            if self.bound - before <= 1e-5 * abs(self.bound) or (deadline is not None and time.monotonic() > deadline):
                break
        return self.bound

    def _sweep(self, *, forward: bool) -> float:
        n = len(self.unary)
        bound = float(self.problem.offset)
        for v in range(n) if forward else range(n - 1, -1, -1):
            score = self.unary[v].copy()
            for e in self.earlier[v]:
                score += self.to_later[e]
            for e in self.later[v]:
                score += self.to_earlier[e]
            self.scores[v] = score
            share = 1.0 / max(len(self.earlier[v]), len(self.later[v]), 1)
            if not forward:
                # What remains on the node after its trees towards earlier nodes took their shares.
                least = float(score.min())
                bound += least * (1.0 - share * len(self.earlier[v]))
            for e in self.later[v] if forward else self.earlier[v]:
                matrix = self.matrices[e] if forward else self.matrices[e].T
                incoming = self.to_earlier[e] if forward else self.to_later[e]
                message = np.min((share * score - incoming)[:, None] + matrix, axis=0)
                least = float(message.min())
                message = message - least
                if forward:
                    self.to_later[e] = message
                else:
                    self.to_earlier[e] = message
                    bound += least
        return bound
