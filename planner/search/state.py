"""What is known of one problem while it is searched: the best choice, the proven bound, prices on memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from planner.search.control import Control
from planner.search.elimination.tables import TooLarge
from planner.search.evaluate import evaluate, least_memory
from planner.search.goal import Goal
from planner.search.messages.restricted import Rounds
from planner.search.prices.memory import minimum_memory
from planner.search.problem import Edge, Node, Problem, Solution, Status
from planner.search.reduction.presolve import presolve
from planner.search.reduction.reduced import Infeasible, Reduced

__all__ = ["State"]


class State:
    """Of one problem, presolved to `reduced`, which solvers work on; None where nothing is left to search.

    `bound` always holds for every valid choice; `infeasible` says that there is none.  A solver only proposes: the
    cost is the independent evaluator's, and a choice that the evaluator refuses is a defect, not an answer.
    """

    def __init__(
        self,
        problem: Problem,
        control: Control,
        solver: str,
        *,
        start: Sequence[int] | None = None,
        tolerance: float = 0.0,
        like: Reduced | None = None,
        prune: bool = True,
    ) -> None:
        """`like`, `prune`: as of `presolve`."""
        self.problem, self.control, self.solver, self.tolerance = problem, control, solver, tolerance
        self.used: str = solver
        self.choice: tuple[int, ...] | None = None
        self.cost: int | None = None
        self.infeasible = False
        self.memory_bound: int | None = None
        self.prices: Mapping[int, float] = {}
        self.learned: dict[int, float] = {}  # memory prices by instant behind a bound from elsewhere
        self.rounds: Rounds | None = None  # where elimination is too wide
        self.bound = _trivial_bound(problem)
        self.reduced: Reduced | None = None
        if problem.limit is not None and (least := least_memory(problem)) > problem.limit:
            self.infeasible, self.memory_bound = True, least
            return
        try:
            self.reduced = presolve(problem, like=like, prune=prune)
        except Infeasible:
            self.impossible()
            return
        control.say(f"presolved to {len(self.reduced.nodes)} of {len(problem.nodes)} nodes")
        if start is not None and (cost := evaluate(problem, start)) is not None:
            self.choice, self.cost = tuple(start), cost
            control.offer(self.choice, cost, "start")

    @property
    def closed(self) -> bool:
        """Whether nothing is left to do."""
        return self.infeasible or (self.cost is not None and self.bound >= self.cost)

    @property
    def solution(self) -> Solution:
        if self.infeasible:
            return Solution("infeasible", solver=self.solver, memory_bound=self.memory_bound)
        if self.choice is None or self.cost is None:
            return Solution("unknown", bound=self.bound, solver=self.used)
        status: Status = "optimal" if self.bound >= self.cost else "feasible"
        return Solution(status, self.choice, self.cost, min(self.bound, self.cost), self.used)

    def learn(self, bound: int, prices: Mapping[int, float]) -> None:
        """Takes a proven bound from elsewhere, and the memory prices by instant at which it was found."""
        if bound > self.bound:
            self.bound, self.learned = bound, dict(prices)

    @property
    def instant_prices(self) -> dict[int, float]:
        """Memory prices near which the bound was found, by instant, in cost per byte of the original problem."""
        if self.reduced is None:
            return {}
        if self.learned:
            return self.learned
        prices = self.prices or ({} if self.rounds is None else self.rounds.prices)
        return {self.reduced.instants[r]: p * self.reduced.scale for r, p in prices.items() if p > 0}

    def goal(self, cutoff: float, solver: str) -> Goal:
        """When a solver of the reduced problem may end, and where it leaves better choices on its way."""
        return Goal(
            stop=lambda: self.control.stopped,
            cutoff=cutoff,
            tolerance=self.tolerance,
            offer=lambda choice, cost: self.offer(choice, cost, solver),
        )

    def offer(self, choice: Sequence[int], cost: float, solver: str) -> None:
        """Takes a choice of the reduced problem; `cost` is what its solver believes."""
        assert self.reduced is not None
        if self.cost is not None and cost * self.reduced.scale >= self.cost:
            return
        full = self.reduced.restore(choice)
        judged = evaluate(self.problem, full)
        if judged is None and self.reduced.memory_scale > 1:
            return  # it fits but for what rounding took away
        if judged is None:
            raise AssertionError(f"solver {solver} proposed a choice that the evaluator refuses")
        if self.cost is None or judged < self.cost:
            self.choice, self.cost, self.used = full, judged, solver
            self.control.offer(full, judged, solver)

    def prove(self, value: float, solver: str) -> None:
        """Takes a bound of the reduced problem, rounded up: costs are integers."""
        assert self.reduced is not None
        if math.isfinite(value):
            bound = math.ceil(value) * self.reduced.scale
            if bound > self.bound:
                self.bound, self.learned = bound, {}
            self.control.prices = self.instant_prices
            self.control.prove(min(self.bound, self.cost) if self.cost is not None else self.bound, solver)

    def impossible(self) -> None:
        """Takes the proof that there is no valid choice."""
        self.infeasible = True
        if self.problem.limit is None:
            return
        try:
            least = minimum_memory(self.problem, deadline=self.control.deadline)
        except TooLarge:  # the proof stands; only the bound is no better than the limit itself
            self.memory_bound = self.problem.limit + 1
            return
        if least.achieved is not None:
            self.memory_bound = max(self.problem.limit + 1, least.lower_bound)


def _trivial_bound(problem: Problem) -> int:
    least: dict[int, int] = {}  # arrays are shared by layers that look alike
    items: tuple[Node | Edge, ...] = (*problem.nodes, *problem.edges)
    for item in items:
        if id(item.costs) not in least:
            least[id(item.costs)] = int(item.costs.min())
    return sum(least[id(item.costs)] for item in items)
