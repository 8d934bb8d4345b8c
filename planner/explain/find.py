"""The operator that a user means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import InputError
from planner.planning import PlanDocument
from planner.planning.constraints.select import counted, near_names

__all__ = ["Module", "by_own_name", "find_module", "find_operator"]

_NUMBER = re.compile(r"\d+")


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


def by_own_name(plan: PlanDocument, operator: str, text: str) -> bool:
    """Whether the operator goes by the text without its module's path."""
    return any(_plain(n).endswith(_plain(text)) for n in (operator, plan.operators[operator].source) if n)


@dataclass(frozen=True, slots=True)
class Module:
    """`operators` of the module of this path and of those within it; `alike`: those of each module that differs from it
    in the numbers of the path alone, itself first."""

    path: str
    alike: tuple[tuple[str, ...], ...]

    @property
    def operators(self) -> tuple[str, ...]:
        return self.alike[0]


def find_module(plan: PlanDocument, name: str) -> Module | None:
    """By its path, or the end of it: the first of those that are alike.  None where there is none.  InputError where
    modules of several kinds go by the name."""
    wanted = _plain(name)
    within: dict[str, list[str]] = {}
    for key, op in plan.operators.items():
        path = (op.module or key.rpartition(".")[0]).replace("/", ".").strip(".")
        parts = path.split(".") if path else []
        for i in range(len(parts)):
            within.setdefault(".".join(parts[: i + 1]), []).append(key)
    exact = [p for p in within if _plain(p) == wanted]
    hits = exact or [p for p in within if wanted and _plain(p).endswith(f".{wanted}")]
    if not hits:
        return None
    kinds = list(dict.fromkeys(_NUMBER.sub("#", p) for p in hits))
    if len(kinds) > 1:
        raise InputError(f"module {name!r}: modules of {len(kinds)} kinds go by it: {_first(hits)}; give one of these")
    same = [p for p in within if _NUMBER.sub("#", p) == kinds[0] and p != hits[0]]
    return Module(hits[0], tuple(tuple(within[p]) for p in (hits[0], *same)))


def _first(paths: Sequence[str]) -> str:
    """One of each kind."""
    return counted(list({_NUMBER.sub("#", p): p for p in reversed(paths)}.values()))


def _fits(name: str, wanted: str, end: str | None) -> bool:
    return name == wanted if end is None else name.endswith(end)


def _plain(name: str) -> str:
    return name.replace("/", ".").lstrip(".").lower()
