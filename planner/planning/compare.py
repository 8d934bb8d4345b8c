"""What two plans of one model do otherwise, whatever meshes they are on: in shards of every dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.ir import DeviceMesh
from planner.planning.document import LayoutDocument, PlanDocument

__all__ = ["Differences", "differences"]

_Shards = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class Differences:
    """Operators whose operands or results are cut into other shards, and parameters that are stored so, by name."""

    operators: tuple[str, ...]
    parameters: tuple[str, ...]


def differences(a: PlanDocument, b: PlanDocument) -> Differences:
    """Of what both have."""
    operators = [
        n
        for n, o in a.operators.items()
        if n in b.operators
        and _shards(a, (*o.operands, *o.results)) != _shards(b, (*b.operators[n].operands, *b.operators[n].results))
    ]
    parameters = [
        n
        for n, p in a.parameters.items()
        if n in b.parameters and _shards(a, [p.stored]) != _shards(b, [b.parameters[n].stored])
    ]
    return Differences(tuple(operators), tuple(parameters))


def _shards(plan: PlanDocument, layouts: Sequence[LayoutDocument | None]) -> _Shards:
    mesh: DeviceMesh = plan.mesh
    return tuple(None if x is None else x.layout().counts(mesh) for x in layouts)
