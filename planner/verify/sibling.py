"""A smaller sibling of a planned graph, run under the plan's own layouts and redistributions.

Where the whole graph is too large to execute, of each run of equal blocks those are kept that the plan treats
differently (`planner.verify.blocks`), and then, if that is not enough, dimensions are made smaller as far as the
strategies still divide them (`planner.verify.shrink`).  Operators keep their strategies, parameters their stored
layouts, tensors their redistributions step by step (`planner.verify.seams`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from planner.errors import PlannerError, VerificationError
from planner.frontends.resized.siblings import BlockCut, cut_blocks, removable_runs
from planner.ir import Graph, Layout
from planner.lowering import Program, lower
from planner.lowering.check import check_program
from planner.planning import PlanDocument
from planner.planning.programs import assignment_of
from planner.pricing import active_tensors, bind_rules
from planner.pricing.assignment import Assignment
from planner.verify.blocks import Level, cuts, represented
from planner.verify.seams import sewn
from planner.verify.shrink import Shrinker
from planner.verify.work import Budget, work_of

__all__ = ["Sibling", "Siblings", "layouts_of", "make_sibling"]

_LEVELS: Final[tuple[Level, ...]] = (0, 1, 2)  # of how little is kept of repeated blocks


@dataclass(frozen=True, eq=False)
class Sibling:
    """`description` says what was made smaller; `stands_for`, which blocks are run and which others they represent."""

    graph: Graph
    program: Program
    description: str
    stands_for: tuple[str, ...]


def layouts_of(assignment: Assignment) -> dict[str, frozenset[Layout]]:
    """All layouts that a tensor, or its gradient, is in between operators."""
    found = {}
    for name, redistribution in assignment.redistributions.items():
        steps = (s for m in redistribution.moves for s in m.steps)
        ends = (x for m in redistribution.moves for x in (m.source, m.target))
        known = {redistribution.produced, *ends, *(s.target for s in steps)}
        found[name] = frozenset(known if redistribution.wanted is None else {*known, redistribution.wanted})
    return found


def make_sibling(plan: PlanDocument, graph: Graph, program: Program, budget: Budget) -> Sibling:
    """Cuts and shrinks until the budget holds.  VerificationError when nothing tried fits it.

    `program` is the plan's for the whole `graph`.
    """
    return Siblings(plan, graph, program).within(budget)


class Siblings:
    """Of one plan, for several budgets: what one of them took to cut and to shrink, the next does not do again."""

    def __init__(self, plan: PlanDocument, graph: Graph, program: Program) -> None:
        self.plan, self.graph, self.program = plan, graph, program
        self._assignment = assignment_of(plan, graph)
        self._levels: dict[Level, _Level] = {}

    def within(self, budget: Budget) -> Sibling:
        """The first that holds the budget.  VerificationError when nothing tried fits it."""
        for number in _LEVELS:
            level = self._level(number)
            for cut, notes in level.graphs():
                work = work_of(cut)
                if budget.holds(work):
                    return self._sibling(cut, level.chosen, notes)
        raise VerificationError(
            f"{self.graph.name}: even a sibling of {'; '.join(notes) or 'the same size'} takes {work.flops:.2g} FLOPs, "
            f"{work.parameter_bytes / 2**30:.1f} GiB of parameters and {work.activation_bytes / 2**30:.1f} GiB of "
            f"activations ({work.held_bytes / 2**30:.1f} GiB at once), more than is executed here; plan and verify a "
            f"smaller variant of the model"
        )

    def _level(self, number: Level) -> _Level:
        if number not in self._levels:
            chosen = cuts(self.graph, removable_runs(self.graph), self._assignment, number)
            roles = {name: s.roles for name, s in self.program.strategies.items()}
            shrinker = Shrinker(self.program.mesh, roles, layouts_of(self._assignment))
            self._levels[number] = _Level(self.graph, chosen, shrinker)
        return self._levels[number]

    def _sibling(self, cut: Graph, chosen: Sequence[BlockCut], notes: list[str]) -> Sibling:
        lines = tuple(line for c in chosen for line in represented(self.graph, c, self._assignment))
        found, seams = _program(self.plan, cut, self.graph, self.program)
        if seams:
            notes.append(f"{seams} conversions between blocks that are no neighbours in the model")
        return Sibling(cut, found, "; ".join(notes) or "the whole graph", lines)


class _Level:
    """The graph without some of its repeated blocks, then ever smaller."""

    def __init__(self, graph: Graph, chosen: Sequence[BlockCut], shrinker: Shrinker) -> None:
        self.chosen = chosen
        cut, _ = cut_blocks(graph, chosen)
        blocks = sum(c.run.count for c in chosen)
        note = f"{sum(len(c.remaining) for c in chosen)} of {blocks} repeated blocks" if chosen else ""
        self._known = [(cut, note)]
        self._rest = shrinker.steps(cut)

    def graphs(self) -> Iterator[tuple[Graph, list[str]]]:
        """Each with what was made smaller on the way to it."""
        notes: list[str] = []
        for at in itertools.count():
            if at == len(self._known):
                step = next(self._rest, None)
                if step is None:
                    return
                self._known.append(step)
            graph, note = self._known[at]
            notes += [note] if note else []
            yield graph, list(notes)


def _program(plan: PlanDocument, part: Graph, graph: Graph, whole: Program) -> tuple[Program, int]:
    """The plan's program for a part of the graph, and the conversions that are not the plan's."""
    rules, _ = bind_rules(part)
    active = active_tensors(part, rules) if whole.active else frozenset[str]()
    assignment, seams = sewn(part, graph, whole.mesh, assignment_of(plan, part), active)
    program = lower(part, whole.mesh, rules, active, assignment)
    wrong = check_program(program)
    if wrong:
        raise PlannerError(f"sibling of {graph.name}: {wrong[0]}; report this plan, it is not verified")
    return program, seams
