"""A plan's operators, parameters and collectives as rows of plain values, such as a data frame takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from planner.library.table import Table

if TYPE_CHECKING:
    from planner.planning import PlanDocument
    from planner.planning.document import LayoutDocument

__all__ = ["collectives", "operators", "parameters"]

_SPENT = ("forward", "backward", "inside", "moved", "optimizer")


def operators(plan: PlanDocument) -> Table:
    """`split`: what every axis of the mesh divides; `strategy`: the same by the operator's factors; `_s`: seconds of a
    step (of a micro-batch where there are several) on its account: its passes, collectives inside of it,
    redistributions of what it produces, the optimizer of parameters that it reads first."""
    from planner.report.colours import SPLITS, Splits
    from planner.report.figures import figures

    costs, splits = figures(plan), Splits.of(plan)
    spent = costs.of_operators()
    rows = []
    for name, op in plan.operators.items():
        letters = zip(plan.mesh.names, splits.letters(op), strict=True)
        own = spent.get(name, {})
        rows.append(
            (
                name,
                op.type,
                op.module,
                op.stage,
                " ".join(f"{axis}={SPLITS[x].name}" for axis, x in letters),
                " ".join(f"{axis}={s}" for axis, s in op.strategy.items()),
                sum(own.values()) * costs.unit_s,
                *(own.get(what, 0) * costs.unit_s for what in _SPENT),
            )
        )
    columns = ("operator", "type", "module", "stage", "split", "strategy", "seconds", *(f"{w}_s" for w in _SPENT))
    return Table.of(columns, rows)


def parameters(plan: PlanDocument) -> Table:
    """Layouts in text (docs/plan-format.md); `shards`: into how many parts it is stored."""
    sizes = plan.mesh.sizes
    rows = []
    for name, p in plan.parameters.items():
        rows.append(
            (
                name,
                tuple(p.shape),
                prod(p.shape),
                _layout(p.stored),
                prod(sizes[a] for d in p.stored.dims for a in d),
                ", ".join(dict.fromkeys(str(x.layout()) for x in p.compute)),
                _layout(p.gradient),
                _layout(p.optimizer),
                tuple(p.stages) or (0,),
                p.optimizer_s,
            )
        )
    columns = ("parameter", "shape", "elements", "stored", "shards", "compute", "gradient", "optimizer", "stages")
    return Table.of((*columns, "optimizer_s"), rows)


def collectives(plan: PlanDocument) -> Table:
    """`where`: a redistribution between operators, inside an operator, or among stages; `what`: its steps; `bytes` by
    the convention of plan.json, of all `count` together; `seconds`: of a redistribution or a sum among stages, None of
    what is inside an operator, whose time holds it."""
    from planner.report.words import move_text

    rows: list[tuple[Any, ...]] = []
    for r in plan.redistributions:
        axes = tuple(dict.fromkeys(a for s in r.steps for a in s.axes))
        size = sum(s.bytes for s in r.steps)
        rows.append(("between", r.tensor, r.direction, move_text(r), axes, _ranks(plan, axes), 1, size, r.seconds))
    for name, op in plan.operators.items():
        for i in op.inner:
            direction = "gradient" if i.backward else "forward"
            axes = tuple(i.axes)
            kind = i.kind.replace("_", "-")
            rows.append(("inside", name, direction, kind, axes, _ranks(plan, axes), i.count, i.bytes * i.count, None))
    for name, p in plan.parameters.items():
        if p.across is not None:
            ranks = max(map(len, p.across.groups), default=1)
            rows.append(("stages", name, "gradient", "all-reduce", (), ranks, 1, p.across.bytes, p.across.seconds))
    columns: Sequence[str] = ("where", "of", "direction", "what", "axes", "ranks", "count", "bytes", "seconds")
    return Table.of(columns, rows)


def _ranks(plan: PlanDocument, axes: Sequence[str]) -> int:
    sizes: Mapping[str, int] = plan.mesh.sizes
    return prod(sizes[a] for a in axes)


def _layout(layout: LayoutDocument | None) -> str | None:
    return None if layout is None else str(layout.layout())
