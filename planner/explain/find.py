"""The operator that a user means."""

from __future__ import annotations

from planner.errors import InputError
from planner.planning import PlanDocument
from planner.planning.constraints.select import counted, near_names

__all__ = ["find_operator"]


def find_operator(plan: PlanDocument, name: str) -> str:
    """By its name (its first output), its name in the model's file, its module path, or the end of one of these that no
    other operator shares.  InputError where there is none, with names that come near, or more than one."""
    if name in plan.operators:
        return name
    wanted = _plain(name)
    names = {
        key: {_plain(n) for n in (key, op.source, op.module, f"{op.module}.{key}") if n}
        for key, op in plan.operators.items()
    }
    for end in (None, f".{wanted}", wanted):
        hits = [key for key, own in names.items() if wanted and any(_fits(n, wanted, end) for n in own)]
        if len(hits) == 1:
            return hits[0]
        if hits:
            raise InputError(f"operator {name!r}: {len(hits)} operators go by it: {counted(hits)}; give one of these")
    raise InputError(f"operator {name!r}: the plan has none of this name{near_names(name, list(plan.operators))}")


def _fits(name: str, wanted: str, end: str | None) -> bool:
    return name == wanted if end is None else name.endswith(end)


def _plain(name: str) -> str:
    return name.replace("/", ".").lstrip(".").lower()
