"""A smaller sibling of a planned graph, run under the plan's own layouts and redistributions.

Where the whole graph is too large to execute, of each run of equal blocks those are kept that the plan treats
differently (`planner.verify.blocks`), and then, if that is not enough, dimensions are made smaller as far as the
strategies still divide them (`planner.verify.shrink`).  Operators keep their strategies, parameters their stored
layouts, tensors their redistributions step by step (`planner.verify.seams`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.errors import PlannerError, VerificationError
from planner.frontends.experts import EXPERT_MATMUL
from planner.frontends.siblings import cut_blocks, removable_runs
from planner.ir import Graph
from planner.lowering import Program, lower
from planner.lowering.check import check_program
from planner.planning import PlanDocument
from planner.planning.programs import assignment_of
from planner.pricing import active_tensors, bind_rules
from planner.rules.rule import Rule
from planner.verify.blocks import cuts, represented
from planner.verify.seams import sewn
from planner.verify.shrink import Shrinker

__all__ = ["Budget", "Sibling", "Work", "make_sibling", "work_of"]


@dataclass(frozen=True, slots=True)
class Work:
    """What executing a graph once takes: multiply-adds count two; bytes of all tensors at single precision."""

    flops: float
    parameter_bytes: int
    activation_bytes: int


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be executed in reasonable time and memory on an ordinary machine."""

    flops: float
    parameter_bytes: int = 2 << 30
    activation_bytes: int = 2 << 30

    def holds(self, work: Work) -> bool:
        return (
            work.flops <= self.flops
            and work.parameter_bytes <= self.parameter_bytes
            and work.activation_bytes <= self.activation_bytes
        )


@dataclass(frozen=True, eq=False)
class Sibling:
    """`description` says what was made smaller; `stands_for`, which blocks are run and which others they represent."""

    graph: Graph
    program: Program
    description: str
    stands_for: tuple[str, ...]


def work_of(graph: Graph, rules: Mapping[str, Rule] | None = None) -> Work:
    """Forward work of the graph."""
    rules = bind_rules(graph)[0] if rules is None else rules
    computing = [op for op in graph.ops if rules[op.name].kind != "free"]  # the others give views of their operands
    produced = sum(graph.tensors[t].elements for op in computing for t in op.outputs if t)
    # The reference makes the weights of every token, where a rank groups the tokens.
    spelled = sum(int(rules[op.name].flops) // 2 for op in graph.ops if op.type == EXPERT_MATMUL)
    return Work(
        sum(r.flops for r in rules.values()), 4 * sum(t.elements for t in graph.parameters), 4 * (produced + spelled)
    )


def make_sibling(plan: PlanDocument, graph: Graph, program: Program, budget: Budget) -> Sibling:
    """Cuts and shrinks until the budget holds.  VerificationError when nothing tried fits it.

    `program` is the plan's for the whole `graph`.
    """
    assignment = assignment_of(plan, graph)
    runs = removable_runs(graph)
    roles = {name: s.roles for name, s in program.strategies.items()}
    for level in range(3):
        chosen = cuts(graph, runs, assignment, level)
        cut, _ = cut_blocks(graph, chosen)
        blocks = sum(c.run.count for c in chosen)
        notes = [f"{sum(len(c.kept) for c in chosen)} of {blocks} repeated blocks"] if chosen else []
        steps = Shrinker(program.mesh, roles).steps(cut)
        while not budget.holds(work := work_of(cut)) and (smaller := next(steps, None)) is not None:
            cut, note = smaller
            notes.append(note)
        if budget.holds(work):
            lines = tuple(line for c in chosen for line in represented(graph, c, assignment))
            found, seams = _program(plan, cut, graph, program)
            if seams:
                notes.append(f"{seams} conversions between blocks that are no neighbours in the model")
            return Sibling(cut, found, "; ".join(notes) or "the whole graph", lines)
    raise VerificationError(
        f"{graph.name}: even a sibling of {'; '.join(notes) or 'the same size'} takes {work.flops:.2g} FLOPs, "
        f"{work.parameter_bytes / 2**30:.1f} GiB of parameters and {work.activation_bytes / 2**30:.1f} GiB of "
        f"activations, more than is executed here; plan and verify a smaller variant of the model"
    )


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
