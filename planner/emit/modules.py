"""Modules of the user's network behind the operators and parameters of a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from planner.emit.names import Name
from planner.planning.document import PlanDocument

__all__ = ["PASSING", "Modules", "layered", "owner", "weights_of"]

PASSING: Final = ("Cast", "Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze")


def owner(parameter: str) -> str:
    """The module that a parameter belongs to, by fully qualified name; empty for the root."""
    return parameter.rpartition(".")[0]


def layered(name: str) -> str:
    """A name with `*` for its numbers, as transformers' plans have it (distributed/parallel_utils.py)."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def weights_of(plan: PlanDocument) -> dict[str, str]:
    """Parameters, and what is made of one by casting, turning and reshaping alone → that parameter."""
    out = {n: n for n in plan.parameters}
    for name, op in plan.operators.items():
        if op.type in PASSING and op.inputs and op.inputs[0] in out:
            out[name] = out[op.inputs[0]]
    return out


@dataclass(frozen=True, slots=True)
class Modules:
    """`of_operator`: operator → the module it belongs to, as the network names it, where that is known."""

    of_operator: Mapping[str, str]

    @classmethod
    def of_plan(cls, plan: PlanDocument, names: Mapping[str, Name]) -> Modules:
        """By the operator's own path where names show how paths of the graph become those of the network (an exported
        wrapper puts a prefix before all of them), else by the parameter that it reads."""
        removed = _prefix(plan, names)
        out: dict[str, str] = {}
        if removed is not None:
            for o, op in plan.operators.items():
                if op.module.startswith(removed) and len(op.module) > len(removed):
                    out[o] = op.module[len(removed) :]
        for n, p in plan.parameters.items():
            for r in p.readers:
                if r.operator in plan.operators:
                    out.setdefault(r.operator, owner(names[n].name))
        return cls(out)


def _prefix(plan: PlanDocument, names: Mapping[str, Name]) -> str | None:
    """What paths of the graph have before those of the network: every parameter must be read in its own module, or in
    one around it.  None where they do not agree on it."""
    found: set[str] = set()
    around: list[tuple[str, str]] = []
    for n, p in plan.parameters.items():
        module = owner(names[n].name)
        paths = {plan.operators[r.operator].module for r in p.readers if r.operator in plan.operators}
        if len(paths) != 1:
            continue
        path = paths.pop()
        if module and (path == module or path.endswith(f".{module}")):
            found.add(path[: len(path) - len(module)])
        else:
            around.append((path, module))
    if len(found) != 1:
        return None
    removed = found.pop()
    inside = all(f"{removed}{module}.".startswith(f"{path}.") or path in ("", removed[:-1]) for path, module in around)
    return removed if inside else None
