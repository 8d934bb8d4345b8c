"""The pins of a plan, found again from what was asked for."""

from __future__ import annotations

import glob
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path

from planner.planning import PlanDocument
from planner.planning.constraints import Constraints, Pins, parse_constraints, parse_pin, resolve
from planner.planning.constraints.values import LayoutPin, OperatorPin, ParameterPin, StrategyPin
from planner.planning.request import source_of
from planner.planning.searched import FileDocument
from planner.pricing import PricedProblem
from planner.rules.strategy import Strategy
from planner.work.activity import made_of_parameters

__all__ = ["constraints_of_request", "pins_of"]


def constraints_of_request(plan: PlanDocument, priced: PricedProblem, choice: tuple[int, ...]) -> Constraints | None:
    """What the request forces; None where it forces nothing, or there is none."""
    requested = plan.search.request
    if requested is None:
        return None
    parts = []
    if requested.strategy is not None:
        parts.append(_configured(source_of(requested.strategy, requested.space), priced, choice))
    if requested.constraints is not None:
        parts.append(_of_file(requested.constraints, plan))
    parts += [parse_pin(text) for text in requested.pins]
    return reduce(add, parts) if parts else None


def pins_of(constraints: Constraints | None, priced: PricedProblem) -> Pins:
    """The pins resolved on the graph."""
    if constraints is None:
        return Pins(Constraints(""), (), frozenset(), frozenset())
    return resolve(constraints, priced.graph, priced.rules)


def _of_file(file: FileDocument, plan: PlanDocument) -> Constraints:
    """A plan that was given as constraints is kept as the pins that it came to, which are told by its own fields."""
    name = Path(file.name).name
    sources = {p.source for p in plan.pins if not p.source.startswith("--")}
    if len(sources) == 1 and not any(s.startswith(name) for s in sources):  # read from the file of another system
        return parse_constraints(file.text, sources.pop(), numbered=False)
    found = parse_constraints(file.text, name)
    if not any(p.source.startswith((f"{name} operators.", f"{name} parameters.")) for p in plan.pins):
        return found
    return replace(
        found,
        operators=tuple(replace(p, where=f"{name} operators.{p.match[0]}") for p in found.operators),
        parameters=tuple(replace(p, where=f"{name} parameters.{p.match[0]}") for p in found.parameters),
    )


def _configured(source: str, priced: PricedProblem, choice: tuple[int, ...]) -> Constraints:
    """What a configuration comes to: how every operator is split, and how every parameter is stored.  These are then in
    the choice as they are in the pins."""
    mesh, graph = priced.machine.mesh, priced.graph
    weights = made_of_parameters(graph)
    strategies = {op.name: _strategy(priced, choice, op.name) for op in graph.ops if op.name in priced.op_nodes}
    stored = {t.name: priced.parameter_nodes.get(t.name) for t in graph.parameters}
    layouts = {name: priced.stored_layouts[name][choice[n]] for name, n in stored.items() if n is not None}
    return Constraints(
        source,
        meshes=(mesh.shape,),
        operators=tuple(
            OperatorPin(source, StrategyPin.of(s, mesh, sums_pass=n in weights), (glob.escape(n),))
            for n, s in strategies.items()
        ),
        parameters=tuple(
            ParameterPin(source, (glob.escape(n),), stored=LayoutPin(dims=x.dims, parts=x.parts))
            for n, x in layouts.items()
        ),
    )


def _strategy(priced: PricedProblem, choice: tuple[int, ...], name: str) -> Strategy:
    return priced.tables[name].choices.strategy(choice[priced.op_nodes[name]])
