"""Why operators that do the same cost otherwise, and why a difference is not explained."""

from __future__ import annotations

from planner.report.diff.model import Diff, silent
from planner.report.wire import exchanges

__all__ = ["remainder_reason", "same_reason"]


def same_reason(d: Diff, *, step: bool = False) -> str:
    """Why operators that do the same cost otherwise: once, or in the whole `step`."""
    a, b = d.a, d.b
    reasons = []
    if a.cluster.profile_digest != b.cluster.profile_digest:
        reasons.append("other price")
    if a.mesh.shape != b.mesh.shape:
        reasons.append("other groups of ranks")
    shapes = any(o.what.startswith(("tensors.*.shape", "parameters.*.shape")) for o in d.others)
    if shapes or any(x.shape != b.inputs[n].shape for n, x in a.inputs.items() if n in b.inputs):
        reasons.append("other sizes")
    if (a.schedule.precision, a.schedule.optimizer, a.schedule.mode) != (
        b.schedule.precision,
        b.schedule.optimizer,
        b.schedule.mode,
    ):
        reasons.append("other precision, optimizer or mode")
    if step:
        reasons += _times(d)
    return f"same layout, {', '.join(reasons) or 'other cost'}"


def _times(d: Diff) -> list[str]:
    """Why a step does the same another number of times."""
    a, b = d.a, d.b
    reasons = []
    if a.schedule.micro_batches != b.schedule.micro_batches:
        reasons.append("other number of micro-batches")
    if len(a.stages) != len(b.stages):
        reasons.append("other number of stages")
    for what, x, y in zip(("weights gathered", "gradients summed"), exchanges(a), exchanges(b), strict=True):
        if x != y:
            reasons.append(f"{what} {_often(y)} instead of {_often(x)}")
    return reasons


def _often(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def remainder_reason(d: Diff) -> str:
    """Why the plans' files do not explain all."""
    unstated = [n for n, p in (("A", d.a), ("B", d.b)) if silent(p)]
    if unstated:
        return f"not stated by operator: plan {' and '.join(unstated)} does not say what its operators' runs cost"
    return "unexplained: the parts of a plan do not add up to its cost"
