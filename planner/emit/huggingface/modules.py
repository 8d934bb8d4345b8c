"""Modules of the user's network behind operators and parameters of a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from planner.emit.names import Name
from planner.planning.document import PlanDocument

__all__ = ["Modules", "layered", "owner"]


def owner(parameter: str) -> str:
    """The module that a parameter belongs to, by fully qualified name; empty for the root."""
    return parameter.rpartition(".")[0]


def layered(name: str) -> str:
    """A name with `*` for its numbers, as transformers' plans have it (distributed/parallel_utils.py)."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


@dataclass(frozen=True, slots=True)
class Modules:
    """`of_operator`: operator that reads a parameter → the module it belongs to, as the network names it."""

    of_operator: Mapping[str, str]

    @classmethod
    def of_plan(cls, plan: PlanDocument, names: Mapping[str, Name]) -> Modules:
        """By the operator's own path where names show how paths of the graph become those of the network (an exported
        wrapper puts a prefix before all of them), else by the parameter that it reads."""
        removed = _prefix(plan, names)
        out: dict[str, str] = {}
        for n, p in plan.parameters.items():
            for r in p.readers:
                op = plan.operators.get(r.operator)
                if op is None:
                    continue
                known = removed is not None and op.module and op.module.startswith(removed)
                out.setdefault(r.operator, op.module[len(removed or "") :] if known else owner(names[n].name))
        return cls(out)


def _prefix(plan: PlanDocument, names: Mapping[str, Name]) -> str | None:
    """What paths of the graph have before those of the network; None where they do not agree on it."""
    found = set()
    for n, p in plan.parameters.items():
        module = owner(names[n].name)
        paths = {plan.operators[r.operator].module for r in p.readers if r.operator in plan.operators}
        if module and len(paths) == 1:
            path = paths.pop()
            if path == module or path.endswith(f".{module}"):
                found.add(path[: len(path) - len(module)])
    return found.pop() if len(found) == 1 else None
