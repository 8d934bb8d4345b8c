"""Choices whose program fits the memory limit.

The Problem's memory rows count at a few instants what is certainly held then, so that no plan that fits is ruled out.
What a program holds at every instant is known once it is there (`planner.lowering.liveness`).  Where that is more than
the limit, the search goes on with the limit lowered by as much as the rows had missed; what it proved of the true
limit stays.  Prices on memory (`planner.search.repriced`) lead there at the cost of a few searches without a limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from planner.lowering import Liveness, Program, liveness, lower
from planner.planning.lean import lean
from planner.pricing import PricedProblem
from planner.search.control import Control
from planner.search.evaluate import evaluate, least_memory, peak_memory
from planner.search.memory import minimum_memory
from planner.search.reduced import Infeasible
from planner.search.repriced import Repriced, best_among
from planner.search.solve import Search, SolverName
from planner.search.tables import TooLarge

__all__ = ["Fitted", "Walked", "fit", "leanest", "lowered", "program_of_choice", "walk"]

_MOST_TRIES: Final = 4
_ROUNDS: Final = 14  # of prices, for the limit and for a lower one each


@dataclass(frozen=True, slots=True)
class Fitted:
    """A choice, its cost, and the bytes that one device holds while it runs."""

    choice: tuple[int, ...]
    cost: int
    held: int


def program_of_choice(priced: PricedProblem, choice: Sequence[int]) -> tuple[Program, Liveness]:
    """The program that a choice stands for, and what a device holds while it runs."""
    program = lower(priced.graph, priced.machine.mesh, priced.rules, priced.active, priced.decode(choice))
    return program, liveness(program, priced.machine.settings)


def fit(priced: PricedProblem, choice: Sequence[int]) -> Fitted | None:
    """The choice with its hubs in their leanest states; None where it is not valid."""
    states = lean(priced, choice)
    cost = evaluate(priced.problem, states)
    return None if cost is None else Fitted(states, cost, program_of_choice(priced, states)[1].peak)


@dataclass(frozen=True, slots=True)
class Walked:
    """The best choice found that fits (None: none), a proven bound on the cost of all that do, and the memory prices
    behind it by instant."""

    fitted: Fitted | None
    bound: int
    prices: Mapping[int, float]


def walk(priced: PricedProblem, control: Control, cutoff: int | None = None) -> Walked:
    """Raises prices on memory until the program fits, and combines the choices met on the way.  Ends early where the
    bound shows that nothing costs less than `cutoff`."""
    limit = priced.problem.limit
    assert limit is not None, "without a limit everything fits"
    dual = Repriced(priced.problem, lambda: control.stopped)
    found: dict[tuple[int, ...], Fitted] = {}

    def weigh(choice: tuple[int, ...]) -> Fitted | None:
        if choice not in found and (fitted := fit(free, choice)) is not None:
            found[choice] = fitted
        return found.get(choice)

    free = replace(priced, problem=replace(priced.problem, limit=None))
    try:
        dual.maximise(limit, rounds=_ROUNDS, enough=math.inf if cutoff is None else cutoff)
        if cutoff is None or dual.best(limit)[0] < cutoff:
            _combine(priced, dual, weigh, limit, control)
    except (TooLarge, Infeasible):
        pass
    bound, prices = dual.best(limit)
    fits = [f for f in found.values() if f.held <= limit]
    return Walked(
        min(fits, key=lambda f: (f.cost, f.held), default=None),
        max(0, math.ceil(bound)) if math.isfinite(bound) else 0,
        {dual.instants[r]: p for r, p in prices.items() if p > 0},
    )


def _combine(
    priced: PricedProblem,
    dual: Repriced,
    weigh: Callable[[tuple[int, ...]], Fitted | None],
    limit: int,
    control: Control,
) -> None:
    """Looks at what the programs of the choices met hold, and at combinations under lower and lower limits."""
    near = sorted(dual.cuts, key=lambda c: abs(float(c.usage.max(initial=0)) - limit))[:1]
    missed = [f.held - float(c.usage.max(initial=0)) for c in near if (f := weigh(c.choice)) is not None]
    rows = limit - max(0, *map(int, missed)) if missed else limit
    for _ in range(_MOST_TRIES):
        if control.stopped or rows <= 0:
            return
        dual.maximise(rows, rounds=_ROUNDS)
        choice = best_among(replace(priced.problem, limit=rows), [c.choice for c in dual.cuts], lambda: control.stopped)
        for cut in dual.cuts:
            weigh(cut.choice)
        fitted = None if choice is None else weigh(choice)
        if choice is None or fitted is None or fitted.held <= limit:
            return
        rows = min(rows, peak_memory(priced.problem, choice)) - (fitted.held - limit) * 3 // 2


def lowered(priced: PricedProblem, over: Fitted, control: Control, solver: SolverName) -> Fitted | None:
    """A choice that fits the problem's limit, found under lower ones; None where none is.  `over` is one that does not
    fit."""
    limit = priced.problem.limit
    assert limit is not None, "without a limit everything fits"
    rows = limit - (over.held - peak_memory(priced.problem, over.choice))
    least = least_memory(priced.problem)
    for _ in range(_MOST_TRIES):
        if rows < least or control.stopped:
            break
        found = _searched(priced, rows, control, solver)
        if found is not None and found.held <= limit:
            return found
        if found is None or found.held >= over.held:  # what the rows do not count grew by more than they shrank
            rows = (rows + limit) // 2
        else:
            over = found
            rows -= found.held - limit
    last = leanest(priced, control, solver)
    return last if last is not None and last.held <= limit else None


def leanest(priced: PricedProblem, control: Control, solver: SolverName) -> Fitted | None:
    """Of the cheapest choice among those that hold least by the rows, and the first of these found, the one whose
    program holds least."""
    try:
        least = minimum_memory(priced.problem, deadline=control.deadline)
    except TooLarge:
        return None
    if least.achieved is None:
        return None
    free = replace(priced, problem=replace(priced.problem, limit=None))
    found = [fit(free, least.choice), _searched(free, least.achieved, control, solver)]
    return min((f for f in found if f is not None), key=lambda f: (f.held, f.cost), default=None)


def _searched(priced: PricedProblem, rows: int, control: Control, solver: SolverName) -> Fitted | None:
    """The best choice whose rows hold at most `rows` bytes."""
    inner = Control(control.left, cancel=control.cancel, say=control.say)
    search = Search(replace(priced.problem, limit=rows), inner, solver=solver)
    search.glance()
    search.run()
    return None if search.choice is None else fit(priced, search.choice)
