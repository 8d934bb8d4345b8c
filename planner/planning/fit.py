"""Choices whose program fits the memory limit.

The Problem's memory rows count at a few instants what is certainly held then, so that no plan that fits is ruled out.
What a program holds is known once it is there (`planner.clock.memory`).  Where that is more than the limit, a small
problem is searched again with the limit lowered by as much as the rows had missed; what was proved of the true limit
stays.  On a large one, prices on memory lead there (`planner.planning.walk`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from planner.clock import held_of_plan, levels_of_plan
from planner.lowering import Program, Run, lower
from planner.planning.least_memory import smallest_hubs
from planner.pricing import PricedProblem
from planner.search.control import Control
from planner.search.elimination.tables import TooLarge
from planner.search.evaluate import evaluate, least_memory, peak_memory
from planner.search.prices.memory import minimum_memory
from planner.search.solve import Search
from planner.search.solvers import SolverName

__all__ = ["Fitted", "fit", "fullest_instant", "lowered", "program_of_choice", "smallest"]

_MOST_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class Fitted:
    """A choice, its cost, and the bytes that one device holds while it runs."""

    choice: tuple[int, ...]
    cost: int
    held: int


def program_of_choice(priced: PricedProblem, choice: Sequence[int]) -> Program:
    """The program that a choice stands for."""
    return lower(priced.graph, priced.machine.mesh, priced.rules, priced.active, priced.decode(choice))


def fit(priced: PricedProblem, choice: Sequence[int]) -> Fitted | None:
    """The choice with its hubs in the states that hold least; None where it is not valid."""
    states = smallest_hubs(priced, choice)
    cost = evaluate(priced.problem, states)
    if cost is None:
        return None
    return Fitted(states, cost, held_of_plan(priced, program_of_choice(priced, states), alone=True).peak)


def fullest_instant(priced: PricedProblem, choice: Sequence[int]) -> int:
    """When the program of a choice holds most, as the Problem's memory rows count time (`planner.pricing.memory`)."""
    program = program_of_choice(priced, choice)
    fullest = int(levels_of_plan(priced, program).levels.argmax())
    position = {op.name: i for i, op in enumerate(program.graph.ops)}
    runs = [i for i in program.instructions[fullest:] if isinstance(i, Run)]
    if not runs:
        return 2 * len(position) + 1
    at = position[runs[0].op]
    again = any(isinstance(i, Run) and i.op == runs[0].op for i in program.instructions[:fullest])
    return 2 * len(position) - at if runs[0].backward or again else at


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
    last = smallest(priced, control, solver)
    return last if last is not None and last.held <= limit else None


def smallest(priced: PricedProblem, control: Control, solver: SolverName, *, brief: bool = False) -> Fitted | None:
    """Of the cheapest choice among those that hold least by the rows, and the first of these found, the one whose
    program holds least.  `brief`: of those that are found at once, for whom it need not be the cheapest."""
    try:
        least = minimum_memory(priced.problem, deadline=control.deadline)
    except TooLarge:
        return None
    if least.achieved is None:
        return None
    free = replace(priced, problem=replace(priced.problem, limit=None))
    found = [fit(free, least.choice), _searched(free, least.achieved, control, solver, brief=brief)]
    return min((f for f in found if f is not None), key=lambda f: (f.held, f.cost), default=None)


def _searched(
    priced: PricedProblem, rows: int, control: Control, solver: SolverName, *, brief: bool = False
) -> Fitted | None:
    """The best choice whose rows hold at most `rows` bytes; `brief`: the best of those that are found at once."""
    inner = Control(control.left, cancel=control.cancel, say=control.say)
    search = Search(replace(priced.problem, limit=rows), inner, solver=solver)
    search.glance()
    if not brief:
        search.run()
    return None if search.choice is None else fit(priced, search.choice)
