"""A program for other sizes of the same mesh axes and of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.evaluate.model import model_of
from planner.ir import DeviceMesh, Graph, Layout
from planner.lowering import Convert, Load, Program
from planner.rules.strategy import Strategy, bind

__all__ = ["resized"]


def resized(program: Program, graph: Graph, mesh: DeviceMesh) -> Program | None:
    """The program with the same layouts for `graph`, which has the same operators, on `mesh`, which has axes of the
    same names; None where they do not divide there."""
    if mesh.names != program.mesh.names:
        return None
    rules = model_of(graph).rules
    strategies: dict[str, Strategy] = {}
    for name, known in program.strategies.items():
        found = bind(rules[name], mesh, known.roles) if name in rules else None
        if found is None or not _same_layouts(found, known):
            return None
        strategies[name] = found
    for tensor, layout in _layouts(program):
        try:
            layout.local_shape(graph.tensors[tensor].shape or (), mesh)
        except ValueError:
            return None
    return replace(program, graph=graph, mesh=mesh, rules=rules, strategies=strategies)


def _same_layouts(a: Strategy, b: Strategy) -> bool:
    """Factors go by names that another size may give to other dimensions."""
    sides = ("operands", "results", "operand_gradients", "result_gradients")
    return all(getattr(a, side) == getattr(b, side) for side in sides)


def _layouts(program: Program) -> Iterator[tuple[str, Layout]]:
    found = dict.fromkeys(
        (i.tensor, x)
        for i in program.instructions
        if isinstance(i, Load | Convert)
        for x in ((i.layout,) if isinstance(i, Load) else (i.source, i.target, *(s.target for s in i.steps)))
    )
    yield from found
