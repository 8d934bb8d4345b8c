"""The degrees of parallelism of a plan, as numbers."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any, Final

from planner.clock import Configuration
from planner.emit.scheme import PRODUCTS, Scheme, scheme_of
from planner.errors import InputError
from planner.planning import PlanDocument
from planner.planning.document import OperatorDocument

__all__ = ["KINDS", "degrees", "degrees_of", "uses"]

KINDS: Final = ("DP", "CP", "TP")


def degrees(plan: PlanDocument, execution: Configuration | None) -> dict[str, Any]:
    """Ranks of data (`dp`), tensor (`tp`), pipeline (`pp`), context (`cp`) and expert parallelism (`ep`); what data
    ranks divide (`zero`, 0 to 3); `micro_batches`, `schedule` (none without a pipeline), chunks of the model per stage
    (`virtual_stages`), `recompute`, and whether TP goes with sequence parallelism.  `share`: of products and tables
    that are divided so, where operators are laid out one by one.

    execution: of a plan that is made of a known configuration.
    """
    if execution is not None:
        return degrees_of(execution)
    s = plan.schedule
    found: dict[str, Any]
    try:
        found = _of_scheme(scheme_of(plan, "a plan in degrees"))
    except InputError:
        found = _of_most(plan)
    return {
        **found,
        "micro_batches": s.micro_batches,
        "schedule": "none" if s.stages == 1 else s.pass_order,
        "virtual_stages": s.chunks,
        "recompute": "blocks" if s.recompute else "none",
    }


def uses(plan: PlanDocument) -> dict[str, tuple[str, ...]]:
    """Of each product and table: what every axis of the mesh does there, as people call it."""
    axes = [a for a in plan.mesh.names if plan.mesh.sizes[a] > 1]
    return {
        name: tuple(_use(plan, op, a) for a in axes)
        for name, op in plan.operators.items()
        if op.type in (*PRODUCTS, "Gather") and op.results and op.results[0] is not None
    }


def degrees_of(c: Configuration) -> dict[str, Any]:
    """As `degrees`."""
    return {
        "dp": c.dp,
        "tp": c.tp,
        "pp": c.pp,
        "cp": c.cp,
        "ep": c.ep,
        "zero": c.zero if c.dp * c.cp > 1 else 0,
        "sequence_parallel": c.sequence_parallel,
        "share": 1.0,
        "micro_batches": c.micro_batches,
        "schedule": "none" if c.pp == 1 else c.order,
        "virtual_stages": c.virtual_stages,
        "recompute": c.recompute,
    }


def _of_scheme(scheme: Scheme) -> dict[str, Any]:
    return {
        "dp": scheme.data,
        "tp": scheme.tensor,
        "pp": scheme.stages,
        "cp": scheme.context,
        "ep": scheme.expert,
        "zero": int(scheme.shards > 1),
        "sequence_parallel": bool(scheme.sequence),
        "share": 1.0,
    }


def _of_most(plan: PlanDocument) -> dict[str, Any]:
    found = uses(plan)
    most, count = Counter(found.values()).most_common(1)[0] if found else ((), 0)
    axes = [a for a in plan.mesh.names if plan.mesh.sizes[a] > 1]
    ranks = {k: prod(plan.mesh.sizes[a] for a, u in zip(axes, most, strict=False) if u == k) for k in KINDS}
    return {
        "dp": ranks["DP"],
        "tp": ranks["TP"],
        "pp": plan.schedule.stages,
        "cp": ranks["CP"],
        "ep": 1,
        "zero": _zero(plan),
        "sequence_parallel": False,
        "share": round(count / len(found), 4) if found else 0.0,
    }


def _zero(plan: PlanDocument) -> int:
    """What is divided of most parameters beyond what computing divides; in training, of those that are trained."""
    levels = Counter[int]()
    for name, p in plan.parameters.items():
        if not p.compute or plan.is_frozen(name):
            continue
        computed = p.compute[0].dims
        if p.stored.dims != computed:
            levels[3] += 1
        elif p.gradient is not None and p.gradient.dims != computed:
            levels[2] += 1
        else:
            levels[int(p.optimizer is not None and p.optimizer.dims != computed)] += 1
    return levels.most_common(1)[0][0] if levels else 0


def _use(plan: PlanDocument, op: OperatorDocument, axis: str) -> str:
    """What the axis does there, as people call it."""
    weights = [x for t, x in zip(op.inputs, op.operands, strict=False) if x is not None and t in plan.parameters]
    if any(axis in d for x in weights for d in x.dims):
        return "TP"
    result = op.results[0]
    assert result is not None
    where = next((i for i, d in enumerate(result.dims) if axis in d), None)
    return "repeated" if where is None else "DP" if where == 0 else "CP" if where == 1 else "TP"
