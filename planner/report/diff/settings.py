"""What two plans were made for and with, where it is not the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.planning import PlanDocument
from planner.report.diff.match import Matching

__all__ = ["Setting", "found_otherwise", "settings", "unlike"]

_MOST = 8


@dataclass(frozen=True, slots=True)
class Setting:
    """`what` stands in the plan file; `a` and `b` as text, empty where there is nothing."""

    what: str
    a: str
    b: str


def settings(a: PlanDocument, b: PlanDocument) -> list[Setting]:
    """Model, inputs, cluster, mesh, schedule and pins."""
    first, second = _facts(a), _facts(b)
    out = [
        Setting(k, first.get(k, ""), second.get(k, "")) for k in {**first, **second} if first.get(k) != second.get(k)
    ]
    mine, theirs = _pins(a), _pins(b)
    out += [Setting("pin", text, "") for text in (mine - theirs).elements()]
    out += [Setting("pin", "", text) for text in (theirs - mine).elements()]
    return out


def found_otherwise(a: PlanDocument, b: PlanDocument) -> list[Setting]:
    """How the plans were found and proved, which is no part of what they do."""
    out = []
    if a.verification != b.verification:
        out.append(Setting("verification", a.verification, b.verification))
    return [*out, *paths(_search(a), _search(b), "search")]


def _search(p: PlanDocument) -> dict[str, Any]:
    facts = p.search.model_dump()
    tried = [f"{c.mesh}{' recomputed' if c.recompute else ''} {c.objective_s or c.status}" for c in p.search.candidates]
    return {**facts, "candidates": ", ".join(tried)}


def unlike(a: PlanDocument, b: PlanDocument, matching: Matching) -> list[Setting]:
    """Facts of the model that both plans state of one thing and state otherwise: how many, and the first."""
    found: dict[str, list[tuple[str, str, str]]] = {}

    def look(section: str, name: str, x: Any, y: Any, fields: tuple[str, ...]) -> None:
        for f in fields:
            if getattr(x, f) != getattr(y, f):
                found.setdefault(f"{section}.*.{f}", []).append((name, str(getattr(x, f)), str(getattr(y, f))))

    for name, t in a.tensors.items():
        if name in b.tensors:
            look("tensors", name, t, b.tensors[name], ("shape", "dtype", "role"))
    for here, there in matching.pairs:
        fields = ("module", "inputs", "outputs") if here == there else ()
        look("operators", here, a.operators[here], b.operators[there], fields)
    for here, there in matching.parameters.items():
        look("parameters", here, a.parameters[here], b.parameters[there], ("shape",))
    return [
        Setting(f"{where} of {rows[0][0]}" + (f" and {len(rows) - 1} more" if len(rows) > 1 else ""), *rows[0][1:])
        for where, rows in found.items()
    ]


def paths(a: Any, b: Any, where: str = "") -> Iterator[Setting]:
    """Every value of two documents that is not the same."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for k in {**a, **b}:
            yield from paths(a.get(k), b.get(k), f"{where}.{k}" if where else str(k))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from paths(x, y, f"{where}.{i}")
    elif a != b:
        yield Setting(where, _short(a), _short(b))


def _facts(p: PlanDocument) -> dict[str, str]:
    m, c, s = p.model, p.cluster, p.schedule
    mesh = p.mesh
    facts: dict[str, Any] = {
        "model.name": m.name,
        "model.digest": m.digest[:12],
        "model.batch": m.batch,
        "model.bind": ", ".join(f"{k}={v}" for k, v in m.bind.items()),
        "model.operators": m.operators,
        "model.parameters": m.parameters,
        "model.loss": m.loss,
    }
    facts |= {f"inputs.{n}": f"{x.dtype} {x.shape}" for n, x in p.inputs.items()}
    facts |= {
        "hardware": f"{c.hardware}",
        "profile_digest": c.profile_digest[:12],
        "devices": c.devices,
        "devices_per_server": c.devices_per_server,
        "memory_limit_bytes": c.memory_limit_bytes,
        "mesh": f"{mesh} ({', '.join(f'{x.name}={x.size}' for x in mesh.axes)})",
        "stages": len(p.stages),
    }
    if len(p.stages) > 1:
        facts["stages.operators"] = ", ".join(str(x.operators) for x in p.stages)
    facts |= {f"schedule.{k}": getattr(s, k) for k in ("mode", "precision", "optimizer", "target", "micro_batches")}
    facts |= {"schedule.order": s.order, "schedule.chunks": s.chunks}
    facts |= {f"schedule.run.{k}": v for k, v in s.run.items()}
    blocks = s.recompute
    facts["schedule.recompute"] = f"{sum(map(len, blocks))} operators in {len(blocks)} blocks" if blocks else "none"
    return {k: "" if v is None else str(v) for k, v in facts.items()}


def _pins(p: PlanDocument) -> Counter[str]:
    return Counter(f"{x.object} {x.name + ' ' if x.name else ''}{x.pin} ({x.source})" for x in p.pins)


def _short(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= 120 else text[:117] + "…"
