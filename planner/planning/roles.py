"""What an operator does along a mesh axis, as plan files and pins write it (docs/semantics.md)."""

from __future__ import annotations

from planner.rules.strategy import AxisRole

__all__ = ["role_from_text", "role_to_text"]


def role_to_text(role: AxisRole) -> str:
    if role.kind == "split":
        return f"split:{role.factor}" if role.parts == 1 else f"split:{role.factor}:{role.parts}"
    return f"linear:{role.group}" if role.kind == "linear" else role.kind


def role_from_text(text: str) -> AxisRole:
    """Inverse of `role_to_text`.  ValueError for anything else."""
    kind, _, argument = text.partition(":")
    if kind == "split" and argument:
        factor, _, parts = argument.partition(":")
        if factor and (not parts or (parts.isdigit() and int(parts) > 1)):
            return AxisRole("split", factor=factor, parts=int(parts or 1))
    if kind == "linear" and argument.isdigit():
        return AxisRole("linear", group=int(argument))
    if kind in ("replicate", "defer") and not argument:
        return AxisRole("replicate" if kind == "replicate" else "defer")
    raise ValueError(f"role {text!r}: expected split:FACTOR, split:FACTOR:PARTS, replicate, defer or linear:GROUP")
