"""Layouts of two plans in a form in which they are equal where they mean the same.

On meshes of one shape axes correspond by their place: layouts are compared axis by axis.  On others they are compared
by how many shards every dimension is cut into, how many ranks hold a pending reduction, and strategies by how many
ranks play each role.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from planner.planning.document import LayoutDocument, OperatorDocument, PlanDocument

__all__ = ["Differences", "Form", "differences", "forms"]


@dataclass(frozen=True, slots=True)
class Differences:
    """Operators whose operands or results lie otherwise, and parameters that are stored so, by name."""

    operators: tuple[str, ...]
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """Of one plan.  `place`: axis → its place in the mesh, None where sizes are compared instead."""

    sizes: Mapping[str, int]
    place: Mapping[str, int] | None

    def layout(self, x: LayoutDocument | None) -> Hashable:
        if x is None:
            return None
        dims = (*(self.axes(d) for d in x.dims), *x.parts)
        if self.place is not None:
            return dims, tuple(sorted((self.place[a], op) for a, op in x.partial.items()))
        pending: dict[str, int] = {}
        for a, op in x.partial.items():
            pending[op] = pending.get(op, 1) * self.sizes[a]
        return dims, tuple(sorted((op, n) for op, n in pending.items() if n > 1))

    def axes(self, names: Iterable[str]) -> Hashable:
        """Of a dimension, or of a group of ranks.  Axes that the mesh does not have stand for themselves."""
        if self.place is not None:
            return tuple(self.place.get(a, a) for a in names)
        return math.prod(self.sizes.get(a, 1) for a in names)

    def strategy(self, op: OperatorDocument) -> Hashable:
        if self.place is not None:
            return tuple(sorted((self.place[a], role) for a, role in op.strategy.items() if a in self.place))
        ranks: dict[str, int] = {}
        for a, role in op.strategy.items():
            ranks[role] = ranks.get(role, 1) * self.sizes.get(a, 1)
        return tuple(sorted((role, n) for role, n in ranks.items() if n > 1 and role != "replicate"))


def forms(a: PlanDocument, b: PlanDocument) -> tuple[Form, Form]:
    """Forms of the layouts of both that can be compared with each other."""
    alike = a.mesh.shape == b.mesh.shape
    first, second = (Form(m.sizes, {n: i for i, n in enumerate(m.names)} if alike else None) for m in (a.mesh, b.mesh))
    return first, second


def differences(a: PlanDocument, b: PlanDocument) -> Differences:
    """Of what both have by the same name."""
    first, second = forms(a, b)

    def lies(form: Form, op: OperatorDocument) -> Hashable:
        return tuple(map(form.layout, op.operands)), tuple(map(form.layout, op.results))

    return Differences(
        tuple(n for n, o in a.operators.items() if n in b.operators and lies(first, o) != lies(second, b.operators[n])),
        tuple(
            n
            for n, p in a.parameters.items()
            if n in b.parameters and first.layout(p.stored) != second.layout(b.parameters[n].stored)
        ),
    )
