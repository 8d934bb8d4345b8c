"""What a reader of another system's strategy gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from planner.emit.names import Place
from planner.emit.scheme import PRODUCTS
from planner.errors import InputError
from planner.ir import DeviceMesh, Graph
from planner.planning.constraints import Constraints
from planner.planning.document import PlanDocument
from planner.planning.readers import readers_of
from planner.targets import Target

__all__ = ["MOST_DEVICES", "Reading", "check_devices", "places_of", "places_of_plan", "shapes_of"]

MOST_DEVICES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Reading:
    """`constraints`: what the file says, as pins; `unused`: what of it became no pin, in words; `target`: the kind of
    plan it is, as `planner search --target` has it.  `stages`: parameter → pipeline stage, of those that one stage
    alone holds; empty where there is no pipeline; `mesh` is that of a stage.  `micro_batches`: where the file says how
    many."""

    constraints: Constraints
    mesh: DeviceMesh
    unused: tuple[str, ...] = ()
    target: Target = "any"
    stages: Mapping[str, int] = field(default_factory=dict)
    micro_batches: int | None = None


def check_devices(source: str, devices: int) -> None:
    """InputError where a file is for more devices than are planned for."""
    if devices > MOST_DEVICES:
        raise InputError(f"{source}: is for {devices:,} devices; at most {MOST_DEVICES:,} are planned for")


def shapes_of(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Parameters that something reads, with their shapes, for `NameRules.apply`."""
    return {t.name: t.shape or () for t in graph.parameters if t.name in graph.consumers}


def places_of(graph: Graph) -> dict[str, Place]:
    """Where they are read, for `NameRules.apply`."""
    out = {}
    for n in shapes_of(graph):
        readers = [(graph.producers[r.operator], r.slot) for r in readers_of(graph, n)]
        out[n] = _place([(op.module, op.type, slot) for op, slot in readers])
    return out


def places_of_plan(plan: PlanDocument) -> dict[str, Place]:
    """The same of a plan's parameters."""
    out = {}
    for n, p in plan.parameters.items():
        readers = [(plan.operators[r.operator], r.slot) for r in p.readers if r.operator in plan.operators]
        out[n] = _place([(op.module, op.type, slot) for op, slot in readers])
    return out


def _place(readers: Sequence[tuple[str, str, int]]) -> Place:
    modules = {module for module, _, _ in readers}
    multiplies = bool(readers) and all(kind in PRODUCTS and slot == 1 for _, kind, slot in readers)
    return Place(modules.pop() if len(modules) == 1 else "", multiplies)
