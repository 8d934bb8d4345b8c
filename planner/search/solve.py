"""The one interface to all solvers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.search.control import Control
from planner.search.elimination.tables import TooLarge
from planner.search.evaluate import evaluate
from planner.search.problem import IntArray, Problem, Solution
from planner.search.reduction.reduced import Infeasible, Reduced
from planner.search.solvers import SOLVERS, SolverName, find
from planner.search.state import State

__all__ = ["SOLVERS", "Search", "SolverName", "solve"]


def solve(
    problem: Problem,
    *,
    solver: SolverName = "auto",
    time_limit: float | None = None,
    progress: Callable[[str], None] | None = None,
    control: Control | None = None,
    start: Sequence[int] | None = None,
) -> Solution:
    """The best choice found and a proven bound.  Deterministic where there is no `time_limit` (seconds).

    `control` takes the place of `time_limit` and `progress`; `start` is a choice to begin with, ignored where it is
    not valid.  `infeasible` is reported only when proven; `memory_bound` is then given if memory is what forbids.
    """
    if control is None:
        control = Control(time_limit, say=progress or (lambda _: None))
    return Search(problem, control, solver=solver, start=start).run()


class Search(State):
    """The search on one problem in stages: a cheap `glance` for the bound, then `run` to the end."""

    def __init__(
        self,
        problem: Problem,
        control: Control,
        *,
        solver: SolverName = "auto",
        start: Sequence[int] | None = None,
        tolerance: float = 0.0,
        like: Reduced | None = None,
        prune: bool = True,
    ) -> None:
        """`like`, `prune`: as of `presolve`.  UsageError where there is no such solver, or it cannot run here."""
        self._by = find(solver)
        super().__init__(problem, control, solver, start=start, tolerance=tolerance, like=like, prune=prune)

    def glance(self, *, choose: bool = False, narrow: bool = True, enough: float = math.inf) -> None:
        """A first bound, in about the time that pricing takes; often it is the optimum already.  `choose` asks for a
        first choice as well, which may take as long again; `narrow` says whether elimination is worth trying; from
        `enough` on the bound is not improved."""
        if self.infeasible or self.reduced is None:
            return
        try:
            if self._by.glance is not None:
                self._by.glance(self, self.reduced, choose=choose, narrow=narrow, enough=enough)
        except Infeasible:
            self.impossible()

    def choose(self) -> None:
        """A first choice after a glance that was for the bound alone, where elimination was too wide to give one."""
        if self.rounds is not None and self.cost is None:
            self.rounds.attempt()
            self.prove(self.rounds.bound, "messages")

    def run(self, *, cutoff: int | None = None) -> Solution:
        """Searches on until the gap is closed, limits are reached, or no choice below `cutoff` can be left."""
        if self.reduced is not None and not self.closed:
            limit = math.inf if cutoff is None else cutoff / self.reduced.scale
            assert self._by.solve is not None
            try:
                found = self._by.solve(self, self.reduced, limit)
                self.used = found.solver
                self.prices = found.bounded.prices or self.prices
                self.prove(found.bounded.bound, found.solver)
                if found.bounded.choice is not None:
                    self.offer(found.bounded.choice, -math.inf, found.solver)
            except Infeasible:
                if cutoff is None:
                    self.impossible()
                else:
                    self.prove(limit, self.used)
            except TooLarge as reason:
                self.control.say(f"{reason}: no answer by elimination")
            if self.choice is None and not self.infeasible and self.reduced.memory_scale > 1:
                self._choose_rounded_up(self.reduced.memory_scale)
        return self.solution

    def _choose_rounded_up(self, unit: int) -> None:
        """Looks for a choice where every usage is rounded up to a multiple of `unit`: what fits there fits."""
        rounded: dict[int, IntArray] = {}  # equal arrays stay shared

        def up(usage: IntArray | None) -> IntArray | None:
            if usage is None:
                return None
            if id(usage) not in rounded:
                rounded[id(usage)] = (usage // unit + (usage % unit > 0)) * unit
            return rounded[id(usage)]

        nodes = [replace(n, usage=up(n.usage)) for n in self.problem.nodes]
        edges = [replace(e, usage=up(e.usage)) for e in self.problem.edges]
        inner = Control(self.control.left, cancel=self.control.cancel, say=self.control.say)
        found = Search(Problem(nodes, edges, self.problem.limit), inner, solver=self.solver).run()
        if found.choice and (cost := evaluate(self.problem, found.choice)) is not None:
            self.choice, self.cost, self.used = found.choice, cost, found.solver
            self.control.offer(found.choice, cost, found.solver)
