"""A program for other sizes of the same mesh axes and of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.ir import DeviceMesh, Graph, Layout
from planner.lowering import Load, Program, Redistribute
from planner.planning.schemes.model import model_of
from planner.rules.rule import Rule
from planner.rules.strategy import Strategy, bind

__all__ = ["resized"]


def resized(program: Program, graph: Graph, mesh: DeviceMesh) -> Program | None:
    """The program with the same layouts for `graph`, which has the same operators but for their sizes, on `mesh`, which
    has axes of the same names; None where they do not divide there, or tensors differ.  Ways between layouts are still
    those of the program (`planner.uniform.routes`)."""
    if mesh.names != program.mesh.names or graph.tensors.keys() != program.graph.tensors.keys():
        return None
    rules = model_of(graph).rules
    strategies: dict[str, Strategy] = {}
    alike: dict[object, tuple[Strategy, Strategy]] = {}  # operators of equal blocks, which share their rules
    for name, known in program.strategies.items():
        before, rule = program.rules[name], rules[name]
        key = id(before), id(rule), known.roles
        if key in alike and _same_layouts(alike[key][0], known):
            strategies[name] = alike[key][1]
            continue
        found = _bound(before, known, rule, mesh)
        if found is None:
            return None
        strategies[name], alike[key] = found, (known, found)
    for tensor, layout in _layouts(program):
        try:
            layout.local_shape(graph.tensors[tensor].shape or (), mesh)
        except ValueError:
            return None
    return replace(program, graph=graph, mesh=mesh, rules=rules, strategies=strategies)


def _bound(before: Rule, known: Strategy, rule: Rule, mesh: DeviceMesh) -> Strategy | None:
    """The strategy with the same layouts; factors may go by other names at another size."""
    found = bind(rule, mesh, known.roles) if _named(known, rule) else None
    if found is not None and _same_layouts(found, known):
        return found
    roles = []
    for role in known.roles:
        factor = _same_factor(before, role.factor, rule) if role.kind == "split" else role.factor
        if factor is None:
            return None
        roles.append(replace(role, factor=factor))
    found = bind(rule, mesh, tuple(roles))
    return found if found is not None and _same_layouts(found, known) else None


def _named(known: Strategy, rule: Rule) -> bool:
    return all(r.kind != "split" or r.factor in {*rule.factors, *rule.cuts} for r in known.roles)


def _same_factor(rule: Rule, factor: str, other: Rule) -> str | None:
    """The factor, or mode, of the same operator at another batch: at one sample, factors of reshapes are numbered
    without that of the samples, so names alone do not tell.  None where there is none."""
    if factor in rule.modes:
        return factor if factor in other.modes else None
    places = _places(rule, factor)
    fitting = [f for f in other.factors if _places(other, f) == places]
    return factor if factor in fitting else next(iter(fitting), None)


def _places(rule: Rule, factor: str) -> frozenset[tuple[str, int, int]]:
    """The dimensions, of operands and results, that a factor is part of."""
    return frozenset(
        (kind, i, d)
        for kind, tensors in (("operand", rule.operands), ("result", rule.results))
        for i, dims in enumerate(tensors)
        for d, parts in enumerate(dims or ())
        if factor in parts
    )


def _same_layouts(a: Strategy, b: Strategy) -> bool:
    sides = ("operands", "results", "operand_gradients", "result_gradients")
    return all(getattr(a, side) == getattr(b, side) for side in sides)


def _layouts(program: Program) -> Iterator[tuple[str, Layout]]:
    found = dict.fromkeys(
        (i.tensor, x)
        for i in program.instructions
        if isinstance(i, Load | Redistribute)
        for x in ((i.layout,) if isinstance(i, Load) else (i.source, i.target))
    )
    yield from found
