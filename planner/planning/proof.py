"""Certificates of a plan: per mesh searched, the `Problem` it became and a proof of the bound found for it.

The bound of a plan is the least over all meshes, so a certificate of the chosen mesh alone shows that no other choice
on this mesh is better; with those of the other meshes it follows for all.  That a graph became this `Problem` is not
part of the proof.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from planner.planning.options import Option
from planner.planning.planner import Planned
from planner.search.certificates.certificate import Certificate, problem_digest
from planner.search.certificates.certify import certify
from planner.search.checks.check import proven_bound
from planner.search.checks.dual import Refused
from planner.search.problem import Problem, Solution

__all__ = ["Certified", "certify_chosen", "certify_others"]


@dataclass(frozen=True, slots=True, eq=False)
class Certified:
    """What was shown for one mesh.  `bound` is the search's, in units of cost; None: that nothing is valid.  Without a
    certificate `reason` says why there is none."""

    option: Option
    problem: Problem | None
    bound: int | None
    certificate: Certificate | None
    reason: str = ""

    @property
    def name(self) -> str:
        return f"{self.option.mesh}{'-recomputed' if self.option.recompute else ''}"


def certify_chosen(planned: Planned, *, seconds: float | None, cancelled: Callable[[], bool]) -> Certified:
    """The mesh of the plan: its choice, and a bound as near to the search's as `seconds` (None: no limit) allow."""
    option = next(o for o in planned.options if o.priced is planned.priced)
    return _certified(option, planned.solution, option.bound, seconds, cancelled)


def certify_others(planned: Planned, *, seconds: float | None, cancelled: Callable[[], bool]) -> list[Certified]:
    """The other meshes, each with at most `seconds`; what they need to show is that they hold nothing better."""
    rest = [o for o in planned.options if o.priced is not planned.priced]
    chosen = planned.solution.cost
    goals = [o.bound if chosen is None else min(o.bound, chosen) for o in rest]
    return [_certified(o, o.solution, goal, seconds, cancelled) for o, goal in zip(rest, goals, strict=True)]


def _certified(
    option: Option, solution: Solution, goal: int, seconds: float | None, cancelled: Callable[[], bool]
) -> Certified:
    if option.unfit is not None:
        return Certified(option, None, None, None, option.unfit.status)
    if option.priced is None or option.search is None:
        return Certified(option, None, 0, None, "not priced: time ran out before")
    problem, search = option.priced.problem, option.search
    deadline = None if seconds is None else time.monotonic() + seconds
    proof = certify(
        problem,
        cost=None if option.infeasible else goal,
        prices=search.instant_prices,
        stop=lambda: cancelled() or (deadline is not None and time.monotonic() > deadline),
        narrow=search.rounds is None,
    )
    claimed = None if option.infeasible else solution.bound
    try:
        bound = proven_bound(problem, proof)
    except Refused as e:
        return Certified(option, problem, claimed, None, f"the proof asks for more than the checker does: {e}")
    choice = None if solution.cost is None else tuple(solution.choice)
    return Certified(
        option, problem, claimed, Certificate(problem_digest(problem), choice, solution.cost, bound, proof)
    )
