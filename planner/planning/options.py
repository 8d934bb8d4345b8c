"""What the search over meshes and recomputation knows of each of its options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from planner.ir import DeviceMesh
from planner.planning.constraints import Unfit
from planner.planning.fit import Fitted
from planner.pricing import PricedProblem
from planner.search.problem import Solution, Status
from planner.search.solve import Search

__all__ = ["Candidate", "Found", "Option"]

CLOSE = 1e-2  # relative gap at which a plan found by prices on memory is good enough
CLOSE_WIDE = 3e-2  # where elimination is too wide to close it


@dataclass(frozen=True, slots=True)
class Candidate:
    """Outcome of the search on one mesh; costs in seconds, None where there is no choice.  `step_time_s` is that of the
    choice by the clock.

    status: as of a Solution, or why the mesh is out of the question (`pins do not fit`, `pins contradict`);
    `unknown` without a bound where time ran out before.
    """

    mesh: DeviceMesh
    recompute: bool
    status: str
    objective_s: float | None
    bound_s: float
    solver: str
    step_time_s: float | None = None


@dataclass(slots=True, eq=False)
class Option:
    """A mesh with or without recomputation; `search` is None until it was priced, and where the pins rule the mesh out
    (`unfit`) or its `step_bound` does.  `whole` makes the problem without the pins.

    `fitted`: the best choice whose program fits in memory; `looked_at`: the last of the search's choices that was
    weighed; `over`: of these, one whose program does not fit; `overfull`: prices on memory or lower limits were tried,
    and nothing fits; `walked`: prices on memory were tried; `known`: configurations as textbooks have them that were
    weighed, `shapes`: those still to be found; `smallest`: of all that was weighed, what holds least.  `step_bound`:
    where it was looked for beyond what computing and the objective say, units that the step of every plan takes at
    least.
    """

    mesh: DeviceMesh
    recompute: bool
    priced: PricedProblem | None = None
    search: Search | None = None
    whole: Callable[[], PricedProblem] | None = None
    unfit: Unfit | None = None
    fitted: Fitted | None = None
    looked_at: tuple[int, ...] | None = None
    over: Fitted | None = None
    overfull: bool = False
    walked: bool = False
    known: list[Fitted] = field(default_factory=list, repr=False)
    shapes: Iterator[tuple[int, ...]] | None = field(default=None, repr=False)
    smallest: Fitted | None = None
    step_bound: int = 0

    @property
    def unpinned(self) -> PricedProblem | None:
        """The problem without the pins, where there are any."""
        return None if self.whole is None else self.whole()

    @property
    def good(self) -> bool:
        """Whether prices on memory led to a plan of a gap so small that a search to the end is not worth its time."""
        wide = self.search is not None and self.search.rounds is not None
        return self.walked and self.within(CLOSE_WIDE if wide else CLOSE)

    def within(self, gap: float) -> bool:
        """Whether a plan is known that fits and has at most that relative gap."""
        return self.fitted is not None and self.fitted.cost - self.bound <= gap * self.fitted.cost

    @property
    def settled(self) -> bool:
        """Whether the plan known is proven the best."""
        return self.fitted is not None and self.fitted.cost <= self.bound

    @property
    def bound(self) -> int:
        return self.step_bound if self.search is None else self.search.bound

    @property
    def infeasible(self) -> bool:
        return self.unfit is not None or (self.search is not None and self.search.infeasible)

    @property
    def solution(self) -> Solution:
        """The best choice that fits, under the bound of all that the rows allow."""
        if self.search is None:
            f = self.fitted
            if f is None:
                return Solution("unknown", bound=self.bound)
            return Solution("feasible", f.choice, f.cost, 0, "known")
        if self.infeasible or self.fitted is None:
            found = self.search.solution
            return found if found.status == "infeasible" else Solution("unknown", bound=self.bound, solver=found.solver)
        choice, cost = self.fitted.choice, self.fitted.cost
        status: Status = "optimal" if self.bound >= cost else "feasible"
        return Solution(status, choice, cost, min(self.bound, cost), self.search.used)

    def candidate(self, unit_s: float) -> Candidate:
        s = self.solution
        if self.unfit is not None:
            return Candidate(self.mesh, self.recompute, self.unfit.status, None, 0.0, "")
        objective = None if s.cost is None else s.cost * unit_s
        return Candidate(self.mesh, self.recompute, s.status, objective, s.bound * unit_s, s.solver)

    def __str__(self) -> str:
        return f"mesh {self.mesh}{' with recomputation' if self.recompute else ''}"


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """All options looked at, in the order they came up; `best` is None where no plan was found."""

    options: tuple[Option, ...]
    best: Option | None

    def ranked(self, count: int) -> list[Option]:
        """The options of the `count` best plans, best first."""
        held = [o for o in self.options if o is not self.best and o.solution.cost is not None]
        rest = sorted(held, key=lambda o: o.solution.cost or 0)
        return [*([] if self.best is None else [self.best]), *rest][:count]
