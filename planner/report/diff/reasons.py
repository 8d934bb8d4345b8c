"""Why operators that do the same cost otherwise, and why a difference is not explained."""

from __future__ import annotations

from planner.report.diff.model import Diff, silent

__all__ = ["remainder_reason", "same_reason"]


def same_reason(d: Diff) -> str:
    """Why operators that do the same cost otherwise."""
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
    return f"same layout, {', '.join(reasons) or 'other cost'}"


def remainder_reason(d: Diff) -> str:
    """Why the plans' files do not explain all."""
    unstated = [n for n, p in (("A", d.a), ("B", d.b)) if silent(p)]
    if unstated:
        return f"not told by operator: plan {' and '.join(unstated)} does not say what its operators' runs cost"
    return "unexplained: the parts of a plan do not add up to its cost"
