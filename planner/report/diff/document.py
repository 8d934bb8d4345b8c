"""A Diff as one JSON document (docs/diff.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from planner.planning import PlanDocument
from planner.report.diff.groups import Group, moved
from planner.report.diff.ledger import PARTS, Bill
from planner.report.diff.model import Diff, diff
from planner.report.diff.settings import Setting
from planner.report.diff.summary import Clock, Summary, summary
from planner.report.diff.tables import collectives, memory, places, totals

__all__ = ["SCHEMA", "diff_document", "document"]

SCHEMA = "planner.diff/1"


def diff_document(a: PlanDocument, b: PlanDocument) -> dict[str, Any]:
    """What B does otherwise than A, as data."""
    return document(diff(a, b))


def document(d: Diff, clocks: tuple[Clock, Clock] = (None, None)) -> dict[str, Any]:
    """Plain values, ready for `json.dumps`; `clocks` as of `summary`."""
    first, second = totals(d.a), totals(d.b)
    away = moved(d.groups)
    return {
        "schema": SCHEMA,
        "identical": d.identical,
        "a": _plan(d.a),
        "b": _plan(d.b),
        "notes": list(d.notes),
        "summary": _summary(summary(d, clocks)),
        "unit_s": float(d.unit_s),
        "exact": d.exact,
        "totals": {
            k: {"a": first[k], "b": second[k], "delta": _difference(d, k), "relative": _relative(first[k], second[k])}
            for k in first
        },
        "parts": {
            p: {"a_s": d.a.cost.parts_s.get(p, 0.0), "b_s": d.b.cost.parts_s.get(p, 0.0), **_units(d, y - x)}
            for p, (x, y) in d.parts.items()
        },
        "memory": _memory(d),
        "collectives": {
            k: {
                "a": {"count": x.count, "bytes": x.bytes},
                "b": {"count": y.count, "bytes": y.bytes},
                "delta": {"count": y.count - x.count, "bytes": y.bytes - x.bytes},
            }
            for k, (x, y) in collectives(d).items()
        },
        "settings": _settings(d.settings),
        "others": _settings(d.others),
        "found_otherwise": _settings(d.found),
        "matching": {
            "operators": len(d.matching.pairs),
            "by_name": d.matching.by_name,
            "other_models": d.matching.other_models,
        },
        "places": [{"blocks": p.blocks, "operators": p.size, **_cost(d, p.a, p.b)} for p in places(d)],
        "objective": {
            **_units(d, d.objective_units),
            "groups": [{**_group(d, g), "cancels": away.get(i)} for i, g in enumerate(d.groups)],
            "same": [
                {"type": s.type, "operators": [list(p) for p in s.operators], **_cost(d, s.a, s.b)} for s in d.same
            ],
            "only_a": {"operators": list(d.matching.only_a), **_cost(d, d.only_a, Bill())},
            "only_b": {"operators": list(d.matching.only_b), **_cost(d, Bill(), d.only_b)},
            "loose": _cost(d, *d.loose),
            "remainder": {**_units(d, d.remainder_units), "parts": {p: _units(d, n) for p, n in d.remainder.items()}},
        },
    }


def _summary(s: Summary) -> dict[str, Any]:
    """As printed: texts that add up, and the differences as counts of their last digit."""
    return {
        "unit": s.unit,
        **{name: [asdict(r) for r in rows] for name, rows in (("totals", s.totals), ("causes", s.causes))},
        "changes": [
            {
                **asdict(c),
                "roles": [list(r) for r in c.roles],
                "changes": [list(x) for x in c.changes],
                "groups": list(c.groups),
            }
            for c in s.changes
        ],
        "alike": None if s.alike is None else asdict(s.alike),
        "step": asdict(s.step),
        "settings": list(s.settings),
    }


def _memory(d: Diff) -> dict[str, Any]:
    """By kind; null where a plan does not tell."""
    first, second = memory(d.a), memory(d.b)
    out = {}
    for k in {**first, **second}:
        x, y = first.get(k), second.get(k)
        out[k] = {"a": x, "b": y, "delta": None if x is None or y is None else y - x}
    return out


def _plan(p: PlanDocument) -> dict[str, Any]:
    return {
        "model": p.model.name,
        "digest": p.model.digest,
        "mode": p.schedule.mode,
        "precision": p.schedule.precision,
        "batch": p.model.batch,
        "hardware": p.cluster.hardware,
        "devices": p.cluster.devices,
        "mesh": {x.name: x.size for x in p.mesh.axes},
        "stages": p.schedule.stages,
        "chunks": p.schedule.chunks,
        "order": p.schedule.order,
        "micro_batches": p.schedule.micro_batches,
        "operators": len(p.operators),
        "price_resolution_s": p.cost.price_resolution_s,
    }


def _group(d: Diff, g: Group) -> dict[str, Any]:
    return {
        "type": g.type,
        "place": g.place,
        "count": len(g.operators),
        "operators": [list(p) for p in g.operators],
        "parameters": list(g.parameters),
        "changes": [
            {"trait": c.trait, "before": [*map(str, c.before)], "after": [*map(str, c.after)]} for c in g.changes
        ],
        **_cost(d, g.a, g.b),
    }


def _cost(d: Diff, a: Bill, b: Bill) -> dict[str, Any]:
    delta = b - a
    return {
        "a_s": d.seconds(a.units),
        "b_s": d.seconds(b.units),
        **_units(d, delta.units),
        "parts": {p: _units(d, getattr(delta, p)) for p in PARTS if getattr(delta, p)},
        "bytes_moved": {"a": a.bytes_moved, "b": b.bytes_moved, "delta": delta.bytes_moved},
        "parameter_bytes": {"a": a.parameter_bytes, "b": b.parameter_bytes, "delta": delta.parameter_bytes},
    }


def _units(d: Diff, units: int) -> dict[str, Any]:
    return {"delta_units": units, "delta_s": d.seconds(units)}


def _difference(d: Diff, key: str) -> float | int:
    if key == "objective_s":
        return d.seconds(d.objective_units)
    return totals(d.b)[key] - totals(d.a)[key]


def _relative(a: float, b: float) -> float | None:
    share = (b - a) / abs(a) if a else math.nan
    return share if math.isfinite(share) else None


def _settings(rows: Sequence[Setting]) -> list[dict[str, str]]:
    return [{"what": s.what, "a": s.a, "b": s.b} for s in rows]
