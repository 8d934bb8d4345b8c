"""The ways to run an operator along one mesh axis, where the axes outside it have their roles already."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.ir import DeviceMesh, Layout
from planner.rules.rule import Rule
from planner.rules.strategy import AxisRole, BoundCollective, Strategy, axis_roles, bind

__all__ = ["Layouts", "Way", "along", "divided", "ways_along", "whole"]

Layouts = tuple[Layout | None, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """A strategy over the axis and all outside it, and what of it concerns the axis: its role, the operator's layouts
    as if there were no other axes, and the collectives inside the operator in which the axis takes part.

    `factors`: what the role splits, a mode and its members.
    """

    strategy: Strategy
    role: AxisRole
    factors: frozenset[str]
    operands: Layouts
    results: Layouts
    operand_gradients: Layouts
    result_gradients: Layouts
    inner: tuple[BoundCollective, ...]

    @property
    def splits(self) -> bool:
        """Whether the ranks of the axis share the work."""
        return self.role.kind == "split"

    def divides(self, operands: Iterable[int]) -> bool:
        """Whether one of these operands is divided."""
        return any(divided(self.operands[i]) for i in operands)


def ways_along(rule: Rule, mesh: DeviceMesh, outside: tuple[AxisRole, ...]) -> tuple[Way, ...]:
    """Along the innermost axis of the mesh: every split that goes together with the roles `outside`, in the order of
    the rule's factors, and replication last.

    A dimension that readers take apart into equal parts is split part by part where it can be: of queries, keys and
    values behind each other Megatron gives every rank its heads of all three.
    """
    found: dict[str, Way] = {}
    last: Way | None = None
    for role in axis_roles(rule, training=False):
        if role.kind not in ("split", "replicate"):
            continue
        strategy = bind(rule, mesh, (*outside, role))
        if strategy is None:
            continue
        way = _way(rule, strategy, role, mesh.names[-1])
        if role.kind == "split":
            found[role.factor] = way  # those with parts stand behind the others
        else:
            last = way
    assert last is not None, "replication goes together with anything"
    return (*found.values(), last)


def divided(layout: Layout | None) -> bool:
    """Whether the tensor is cut in pieces."""
    return layout is not None and any(layout.dims)


def whole(layout: Layout | None) -> bool:
    return layout is None or layout.is_replicated


def _way(rule: Rule, strategy: Strategy, role: AxisRole, axis: str) -> Way:
    def of_axis(layouts: Layouts) -> Layouts:
        return tuple(None if x is None else along(x, axis) for x in layouts)

    return Way(
        strategy,
        role,
        frozenset({role.factor, *rule.members(role.factor)}) if role.kind == "split" else frozenset(),
        of_axis(strategy.operands),
        of_axis(strategy.results),
        of_axis(strategy.operand_gradients),
        of_axis(strategy.result_gradients),
        tuple(c for c in strategy.inner if axis in c.axes),
    )


def along(layout: Layout, *axes: str) -> Layout:
    """What the layout says of these axes."""
    dims = tuple(tuple(a for a in d if a in axes) for d in layout.dims)
    parts = tuple(n if d else 1 for n, d in zip(layout.parts, dims, strict=False))
    partial = tuple(p for p in layout.partial if p[0] in axes)
    return Layout(dims, partial, parts if any(n > 1 for n in parts) else ())
