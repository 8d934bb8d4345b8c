"""The small linear programs that steer the multipliers, solved by GLOP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ortools.linear_solver import pywraplp

__all__ = ["Cut", "Master", "game_weights"]


@dataclass(frozen=True, slots=True)
class Cut:
    """A choice, its cost (offset included) and its bytes at every row."""

    choice: tuple[int, ...]
    cost: float
    usage: NDArray[np.float64]


class Master:
    """max t subject to t <= cost_k + sum_r m_r (use_kr - limit_r), 0 <= m_r <= box_r, in scaled units."""

    def __init__(self, spread: float) -> None:
        self.unit = max(1.0, abs(spread))
        self.solver = _glop()
        infinity = self.solver.infinity()
        self.t = self.solver.NumVar(-infinity, 1e6, "t")
        self.solver.Maximize(self.t)
        self.rows: dict[int, pywraplp.Variable] = {}
        self.per: dict[int, float] = {}  # price of one unit of a row's variable
        self.constraints: list[pywraplp.Constraint] = []
        self.base: float | None = None
        self.solved = False

    def row(self, r: int, limit: float, excess: float, cuts: list[Cut]) -> None:
        """Adds the price of row r, also to the cuts already there; the box starts where one excess costs all."""
        if r in self.rows:
            return
        scale = max(excess, 1.0)
        self.per[r] = self.unit / scale
        self.rows[r] = self.solver.NumVar(0.0, 16.0, f"m{r}")
        for constraint, cut in zip(self.constraints, cuts, strict=False):
            constraint.SetCoefficient(self.rows[r], -(float(cut.usage[r]) - limit) / scale)

    def cut(self, cut: Cut, limits: NDArray[np.float64]) -> None:
        if self.base is None:
            self.base = cut.cost
        constraint = self.solver.Constraint(-self.solver.infinity(), (cut.cost - self.base) / self.unit)
        constraint.SetCoefficient(self.t, 1.0)
        for r, variable in self.rows.items():
            constraint.SetCoefficient(variable, -(float(cut.usage[r]) - float(limits[r])) * self.per[r] / self.unit)
        self.constraints.append(constraint)

    def solve(self) -> tuple[dict[int, float], float] | None:
        """(prices, value of the model); None where GLOP fails numerically: any prices found before are valid."""
        self.solved = self.solver.Solve() == self.solver.OPTIMAL
        if not self.solved:
            return None
        prices = {r: max(0.0, v.solution_value()) * self.per[r] for r, v in self.rows.items()}
        return prices, self.t.solution_value() * self.unit + (self.base or 0.0)

    def at_box(self, prices: Mapping[int, float]) -> bool:
        return any(prices[r] >= 0.999 * v.ub() * self.per[r] for r, v in self.rows.items())

    def widen(self) -> None:
        for variable in self.rows.values():
            variable.SetUb(variable.ub() * 64.0)

    def weights(self, count: int) -> list[float]:
        """Convex combination of the cuts at the last optimum."""
        duals = [abs(c.dual_value()) for c in self.constraints] if self.solved and self.rows else []
        duals += [0.0] * (count - len(duals))
        if not any(duals) and duals:
            duals[-1] = 1.0  # no mixture known: the last choice alone
        return duals[:count]


def _glop() -> pywraplp.Solver:
    """GLOP can cycle for ever on nearly equal cuts; the programs here need a few dozen pivots."""
    from ortools.linear_solver import pywraplp  # a tenth of a second to load, and many searches need no master

    solver = pywraplp.Solver.CreateSolver("GLOP")
    solver.SetSolverSpecificParametersAsString("max_number_of_iterations:5000")
    return solver


def game_weights(rows: list[int], cuts: list[Cut]) -> dict[int, float] | None:
    """Weights maximising the least weighted use over the cuts seen (a matrix game); None where GLOP fails."""
    solver = _glop()
    unit = max(float(c.usage.max()) for c in cuts) or 1.0
    t = solver.NumVar(0.0, solver.infinity(), "t")
    weights = {r: solver.NumVar(0.0, 1.0, f"m{r}") for r in rows}
    solver.Add(sum(weights.values()) == 1)
    for c in cuts:
        solver.Add(t <= sum(weights[r] * (float(c.usage[r]) / unit) for r in rows))
    solver.Maximize(t)
    if solver.Solve() != solver.OPTIMAL:
        return None
    found = {r: max(0.0, w.solution_value()) for r, w in weights.items()}
    total = sum(found.values())
    return {r: m / total for r, m in found.items() if m > 0} if total > 0 else {rows[-1]: 1.0}
