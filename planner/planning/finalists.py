"""Which plan is the best by the clock, of what the searches of the additive objective found.

Every mesh's best choice by the objective is simulated.  Then objectives whose weights know what hides behind what
(`planner.clock.relaxation`) are minimised on the same mesh: each bounds the step of every plan there, and the plan that
has its least value is simulated as well.  A mesh is left alone once its bound shows that nothing of it can be among the
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from planner.clock import (
    Held,
    Timeline,
    Weights,
    busy,
    held_of_plan,
    held_up,
    least_of_choice,
    play,
    relaxation,
    rounding,
    started,
    step_bound,
)
from planner.lowering import Program
from planner.planning.breakdown import CostBreakdown, breakdown
from planner.planning.fit import program_of_choice
from planner.planning.least_memory import smallest_hubs
from planner.planning.options import Found, Option
from planner.planning.relaxed import LARGE, cheapest, closed_gap, least_step_that_fits, search_relaxed
from planner.planning.request import Request
from planner.pricing import PricedProblem
from planner.search.control import Control
from planner.search.evaluate import evaluate
from planner.search.problem import Solution
from planner.search.solve import Search

__all__ = ["Finalist", "Judged", "judged"]

_ROUNDS: Final = 3  # of weights, on one mesh
_SMALL: Final = 100  # problems up to this size, after presolving, are searched to the end
_NEAR: Final = 1e-2  # of the best step, up to where a mesh without a plan is bounded where that takes long
_POOR: Final = 1.1  # of the best step: a large graph's mesh is not looked at closer once its own plan takes longer
_LESS_HIDDEN: Final = 0.5  # weight of passes where exchanges take longer than they


@dataclass(frozen=True, slots=True, eq=False)
class Finalist:
    """A choice of an option, and what its step takes by the clock."""

    option: Option
    choice: tuple[int, ...]
    program: Program
    memory: Held
    parts: CostBreakdown
    timeline: Timeline

    @property
    def solution(self) -> Solution:
        """The choice under the bound of the option's objective."""
        known = self.option.solution
        if known.choice == self.choice:
            return known
        cost = self.parts.total
        return Solution("feasible", self.choice, cost, min(known.bound, cost), known.solver)


@dataclass(frozen=True, slots=True)
class Judged:
    """`finalists`: the best of every option that was simulated, the shortest step first, none where all that was found
    takes longer than the step that is known; `bounds`: units that the step of
    any plan of an option takes at least, by the option's place among those found."""

    finalists: tuple[Finalist, ...]
    bounds: tuple[int, ...]


def judged(found: Found, request: Request, control: Control, limit: int | None) -> Judged:
    """Of all options; once `control` says stop, what the searches found is simulated and no more."""
    return _Judge(found, request, control, limit).run()


class _Judge:
    def __init__(self, found: Found, request: Request, control: Control, limit: int | None) -> None:
        self.found, self.request, self.control, self.limit = found, request, control, limit
        self.best: dict[int, Finalist] = {}  # by the option's place
        self.left = float("inf")  # the least bound of options that were not searched
        known, unit_s = request.known_step_s, request.profile.price_resolution_s
        self.known_step = float("inf") if known is None else known / unit_s
        self.bounds = [
            0 if o.priced is None else max(o.step_bound, step_bound(o.priced, o.bound)) for o in found.options
        ]

    def run(self) -> Judged:
        options, count = self.found.options, self.request.top_k
        hurry = self.control.stopped
        ranked = self.found.ranked(count if hurry else len(options))
        for option in ranked:
            if _least(option) < self._last():
                self._take(self._simulated(option, option.solution.choice))
        if not hurry and self.request.execution is None:
            open_ = [k for k, o in enumerate(options) if o.search is not None and not (o.infeasible or o.overfull)]
            left = (self.bounds[k] for k, o in enumerate(options) if o.search is None and o.priced is not None)
            self.left = min(left, default=float("inf"))
            for k in sorted(open_, key=lambda k: self.bounds[k]):
                self._weigh(k)
                self._bound_what_fits(k)
                self._say(k)
        finalists = sorted(self.best.values(), key=lambda f: (f.timeline.end, f.parts.total))
        first = finalists[0].timeline.end if finalists else 0
        return Judged(tuple(finalists), tuple(self._bound(k, first) for k in range(len(options))))

    def _bound(self, place: int, best: int) -> int:
        """The bound of an option; the `best` step where only rounding lies between them, once of the step's prices and
        once of the weighted ones."""
        bound, priced = self.bounds[place], self.found.options[place].priced
        return best if priced is not None and bound < best <= bound + 2 * rounding(priced) else bound

    def _last(self) -> float:
        """The step from which on a plan is not among those asked for, or not faster than the one known."""
        count = self.request.top_k
        ends = sorted(f.timeline.end for f in self.best.values())
        last = ends[count - 1] if len(ends) >= count else float("inf")
        return min(last, self.known_step) if count == 1 else last

    def _place(self, option: Option) -> int:
        return next(k for k, o in enumerate(self.found.options) if o is option)

    def _take(self, finalist: Finalist | None) -> None:
        if finalist is not None:
            place = self._place(finalist.option)
            known = self.best.get(place)
            if known is None or finalist.timeline.end < known.timeline.end:
                self.best[place] = finalist

    def _simulated(self, option: Option, choice: Sequence[int]) -> Finalist | None:
        """None where the choice's program holds more than the limit."""
        assert option.priced is not None
        priced, states = option.priced, tuple(choice)
        program = program_of_choice(priced, states)
        memory = held_of_plan(priced, program, self.request.configured)
        if self.limit is not None and memory.peak > self.limit:
            return None
        parts, cost = breakdown(priced, states, program), evaluate(priced.problem, states)
        if cost is not None and parts.total > cost:
            raise AssertionError(f"pricing and lowering differ: program {parts.total}, choice {cost}")
        return Finalist(option, states, program, memory, parts, play(priced, states, program, self.request.execution))

    def _weigh(self, place: int) -> None:
        """Minimises objectives of other weights, each learned from the plan before."""
        option = self.found.options[place]
        assert option.priced is not None
        assert option.search is not None
        best = self.best.get(place)
        choice = cheapest(option) if best is None else best.choice
        late = held_up(option.priced, choice)
        # Where elimination is too wide, a choice takes as long again: it is for meshes that have shown a good one.  And
        # where the host holds up every pass, what is left to weigh is communication, whose bounds are weak there.
        costly = _costly(option)
        poor = best is not None and best.timeline.end > _POOR * self._last()
        if costly and (poor or _waits_for_host(option.priced, choice)):
            return
        weights: Weights | None = Weights(1.0, late)
        for _ in range(_ROUNDS):
            if weights is None or self.control.stopped or self._done(place):
                return
            relaxed = relaxation(option.priced, weights)
            inner = Control(self.control.left, cancel=self.control.cancel)
            search = search_relaxed(option, relaxed, inner, self.request.solver)
            near = 1 - _NEAR if costly and best is None else 1.0
            search.glance(narrow=option.search.rounds is None, enough=near * self._enough(place) - relaxed.constant)
            self.bounds[place] = max(self.bounds[place], relaxed.bound(search.bound))
            if self._done(place) or (costly and best is None):
                return
            self._choose(search)
            self.bounds[place] = max(self.bounds[place], relaxed.bound(search.bound))
            if search.choice is None or self._done(place):
                return
            states = smallest_hubs(option.priced, search.choice)
            finalist = self._simulated(option, states)
            if finalist is None:
                return
            self._take(finalist)
            weights = _learned(option.priced, weights, choice, finalist)
            choice = states

    def _bound_what_fits(self, place: int) -> None:
        """Bounds an option closer where memory binds, of which no plan is known; the bounds before hold without it.  A
        bound above that of what is left open says nothing more of all together."""
        option = self.found.options[place]
        assert option.priced is not None
        assert option.search is not None
        reduced = option.search.reduced
        if place in self.best or reduced is None or not len(reduced.limits):
            return
        costly = _costly(option)
        enough = min(self.left, self._last() * (1 - _NEAR if costly else 1.0))
        if self.bounds[place] < enough and not (costly and _waits_for_host(option.priced, cheapest(option))):
            inner = Control(self.control.left, cancel=self.control.cancel)
            self.bounds[place] = max(self.bounds[place], least_step_that_fits(option, inner, enough))

    def _say(self, place: int) -> None:
        option, known = self.found.options[place], self.best.get(place)
        assert option.priced is not None
        unit_s = option.priced.machine.unit_s
        step = "no step known" if known is None else f"step {known.timeline.end * unit_s:.6g} s by the clock"
        self.control.say(f"{option}: {step}, at least {self.bounds[place] * unit_s:.6g} s")

    def _done(self, place: int) -> bool:
        """Whether nothing of the option can be among those asked for, or better than what is known of it."""
        known, priced = self.best.get(place), self.found.options[place].priced
        assert priced is not None
        near = 1 - closed_gap(priced)
        closed = known is not None and self.bounds[place] >= known.timeline.end * near
        return closed or self.bounds[place] >= self._last() * near

    def _enough(self, place: int) -> float:
        """Units from which on a bound of the option says all that it is asked for."""
        known = self.best.get(place)
        return self._last() if known is None else min(self._last(), known.timeline.end)

    @staticmethod
    def _choose(search: Search) -> None:
        """Some choice close to the best, and of small problems the best."""
        search.choose()
        if not search.closed and search.reduced is not None and len(search.reduced.nodes) <= _SMALL:
            search.run()


def _learned(priced: PricedProblem, weights: Weights, before: Sequence[int], finalist: Finalist) -> Weights | None:
    """Passes weigh less where exchanges of parameters take longer than they.  Those that the host holds up in one plan
    and not in another take a mean, in which the plans before and after are worth the same (Kelley's cutting planes in
    one dimension).  None where nothing is learned."""
    parts = finalist.parts
    exchanged = parts.parameters + parts.parameter_gradients
    passes = 1.0 if exchanged <= parts.total - parts.optimizer - exchanged else _LESS_HIDDEN
    known = weights.held_up | weights.between
    held = held_up(priced, finalist.choice)
    between = weights.between | (known ^ held)
    learned = Weights(passes, weights.held_up - between, between)
    # What is saved where computing weighs nothing in these passes, and by how much more it is that then counts.
    problem = relaxation(priced, learned).problem
    saved = (evaluate(problem, before) or 0) - (evaluate(problem, finalist.choice) or 0)
    computed, computed_before = busy(priced, finalist.choice), busy(priced, before)
    more = passes * sum(computed[at] - computed_before[at] for at in between)
    return None if more <= 0 else replace(learned, computing=round(min(1.0, max(0.0, saved / more)), 3))


def _costly(option: Option) -> bool:
    """Whether another look at the option takes long."""
    assert option.priced is not None
    assert option.search is not None
    return option.search.rounds is not None and len(option.priced.op_nodes) > LARGE


def _waits_for_host(priced: PricedProblem, choice: Sequence[int]) -> bool:
    """Whether the host holds up every pass of a choice."""
    return held_up(priced, choice) == started(priced).keys()


def _least(option: Option) -> int:
    assert option.priced is not None
    return least_of_choice(option.priced, option.solution.choice)
