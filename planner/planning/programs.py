"""Plan document and graph -> strategies of the operators, and the program that every rank runs."""

from __future__ import annotations

from planner.errors import InputError
from planner.ir import DeviceMesh, Graph
from planner.lowering import Program, lower
from planner.planning.document import PlanDocument, RedistributionDocument
from planner.planning.roles import role_from_text
from planner.pricing import Assignment, Redistribution, RedistributionPlan, active_tensors, bind_rules
from planner.redistribute import RedistributionStep, StepKind
from planner.rules.strategy import Strategy, bind

__all__ = ["another_model", "assignment_of", "each_once", "program_of", "strategies_of"]


def strategies_of(plan: PlanDocument, graph: Graph) -> dict[str, Strategy]:
    """Strategies of the graph's operators as the plan says.  InputError where they do not fit each other."""
    rules, _ = bind_rules(graph)
    mesh = plan.mesh
    out = {}
    for op in graph.ops:
        entry = plan.operators.get(op.name)
        if entry is None:
            raise InputError(f"plan: operator {op.name} ({op.type}) of the model is not in it; search this model again")
        try:
            roles = tuple(role_from_text(entry.strategy[n]) for n in mesh.names)
            strategy = bind(rules[op.name], mesh, roles)
        except (KeyError, ValueError, IndexError) as e:
            raise InputError(f"plan: operator {op.name} ({op.type}): its strategy cannot be understood: {e}") from e
        if strategy is None:
            sizes = ", ".join(f"{f}={n}" for f, n in rules[op.name].factors.items())
            raise InputError(f"plan: operator {op.name} ({op.type}): {entry.strategy} does not divide {sizes}")
        out[op.name] = strategy
    return out


def another_model(plan: PlanDocument, graph: Graph) -> str:
    """What is said of a graph that the plan was not made for."""
    digests = f"with the plan's sizes its digest is {graph.digest[:12]}, the plan's {plan.model.digest[:12]}"
    return f"plan of {plan.model.name}: the model given is another one ({graph.name}; {digests})"


def program_of(plan: PlanDocument, graph: Graph) -> Program:
    """The program that the plan describes for `graph`, which must be the model it was made for."""
    if graph.digest != plan.model.digest:
        raise InputError(f"{another_model(plan, graph)}; give the model that was planned, or search again")
    rules, _ = bind_rules(graph)
    active = active_tensors(graph, rules) if plan.schedule.mode == "training" else frozenset[str]()
    return lower(graph, plan.mesh, rules, active, assignment_of(plan, graph))


def assignment_of(plan: PlanDocument, graph: Graph) -> Assignment:
    """What the plan says of operators, parameters and tensors; strategies are bound for those of `graph`, which may
    be a part of the model.  InputError where they do not fit."""
    moves: dict[str, list[Redistribution]] = {}
    for r in each_once(plan):
        moves.setdefault(r.tensor, []).append(_move(r, plan.mesh))
    redistributions = {
        name: RedistributionPlan(
            name,
            "set",
            t.layout.layout(),
            None if t.gradient is None else t.gradient.layout(),
            tuple(moves.get(name, ())),
        )
        for name, t in plan.tensors.items()
    }
    stored = {name: p.stored.layout() for name, p in plan.parameters.items()}
    blocks = {name: k for k, block in enumerate(plan.schedule.recompute) for name in block}
    return Assignment(strategies_of(plan, graph), stored, redistributions, blocks)


def each_once(plan: PlanDocument) -> list[RedistributionDocument]:
    """The plan's redistributions, each once: the file repeats those of blocks that are run again, as lowering does by
    itself."""
    if not plan.schedule.recompute:
        return plan.redistributions
    known: dict[tuple[str, ...], RedistributionDocument] = {}
    for r in plan.redistributions:
        known.setdefault((r.tensor, r.direction, r.reader, str(r.source), str(r.target)), r)
    return list(known.values())


def _move(r: RedistributionDocument, mesh: DeviceMesh) -> Redistribution:
    source = here = r.source.layout()
    steps = []
    for s in r.steps:
        there = s.target.layout()
        unknown = [a for a in s.axes if a not in mesh.names]
        if unknown or s.kind not in set(StepKind):
            raise InputError(
                f"plan: redistribution of {r.tensor}: step {s.kind} over {s.axes} is not known to this mesh"
            )
        steps.append(RedistributionStep(StepKind(s.kind), tuple(s.axes), here, there, s.dim, s.to_dim))
        here = there
    target = r.target.layout()
    if here != target:
        raise InputError(f"plan: redistribution of {r.tensor}: its steps end in {here}, not in {target}")
    return Redistribution(r.direction == "gradient", source, target, tuple(steps), r.reader)
