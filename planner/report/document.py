"""The report as data: what `planner report --json` prints and pages begin with.  docs/report.md says what is in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.planning.document import PlanDocument
from planner.planning.planner import gap_of
from planner.report.colours import SPLITS
from planner.report.front import front
from planner.report.held import held_by_stage, held_over_time
from planner.report.interleaved import interleaved
from planner.report.notes import notes
from planner.report.record import SearchRecord
from planner.report.timeline import pipeline_run
from planner.report.traffic import traffic
from planner.report.view import View, view
from planner.report.words import MEMORY_NAMES, PART_NAMES, STEP_NAMES, move_text

__all__ = ["SCHEMA", "document_of", "report_document"]

SCHEMA = "planner.report/1"
TOP = 40  # rows of the tables of what costs most
_NAMED = 256  # operators that a row names


def report_document(plan: PlanDocument, record: SearchRecord | None = None) -> dict[str, Any]:
    """Totals are the very numbers of the plan's `cost`; all else adds up to them.  `record`: of the search that made
    it."""
    return document_of(view(plan), record)


def document_of(v: View, record: SearchRecord | None = None) -> dict[str, Any]:
    plan, cost = v.plan, v.plan.cost
    limit = plan.cluster.memory_limit_bytes
    proven = _proven(plan, record)
    return {
        "schema": SCHEMA,
        "model": plan.model.model_dump(exclude={"repeated"}),
        "cluster": plan.cluster.model_dump(),
        "mesh": [{"name": a.name, "size": a.size} for a in plan.mesh.axes],
        "schedule": plan.schedule.model_dump(exclude={"recompute"})
        | {"recomputed": sum(map(len, plan.schedule.recompute))},
        "cost": cost.model_dump(),
        "proven": proven,
        "memory_limit_bytes": limit,
        "verification": plan.verification,
        "search": {"version": plan.search.version, "status": plan.search.status, "solver": plan.search.solver},
        "timed": v.costs.timed,
        "step": [
            {"part": part, "label": STEP_NAMES.get(part, part), "seconds": s} for part, s in cost.step_parts_s.items()
        ],
        "time": [
            {
                "part": part,
                "label": PART_NAMES.get(part, part),
                "seconds": s,
                "share": _share(s, cost.objective_s),
            }
            for part, s in cost.parts_s.items()
        ],
        "memory": [
            {
                "kind": kind,
                "label": MEMORY_NAMES.get(kind, kind),
                "bytes": size,
                "share": _share(size, cost.peak_memory_bytes),
            }
            for kind, size in cost.memory_bytes.items()
        ],
        "splits": _splits(v),
        "operators": _operators(v),
        "redistributions": _moves(v),
        "collectives": _collectives(plan),
        "parameters": _stored(plan),
        "groups": _groups(v),
        "stages": [s.model_dump() | {"stage": k} for k, s in enumerate(plan.stages)],
        "pipeline": _pipeline(plan),
        "held": {"step": held_over_time(plan, v.costs), "stages": held_by_stage(plan, pipeline_run(plan))},
        "traffic": traffic(plan),
        "history": _history(record),
        "front": front(plan, record),
        "candidates": [c.model_dump() for c in plan.search.candidates],
        "pins": [p.model_dump() for p in plan.pins],
        "notes": notes(plan, v.costs, gap=proven["gap"], searched=proven["of"] == "search"),
    }


def _proven(plan: PlanDocument, record: SearchRecord | None) -> dict[str, Any]:
    """What a step takes at least, and how far the plan is from it: of all that was searched where the record of the
    search says it, else of the stages, micro-batches and layouts that the plan itself was chosen from."""
    cost = plan.cost
    bound = record.steps[-1].bound_s if record is not None and record.steps else None
    if bound is None:
        return {"of": "plan", "bound_s": cost.step_time_lower_bound_s, "gap": cost.gap}
    return {"of": "search", "bound_s": bound, "gap": gap_of(cost.step_time_s, bound)}


def _history(record: SearchRecord | None) -> dict[str, Any] | None:
    """Where the record says more than what the search ended with."""
    if record is None or record.seconds is None:
        return None
    moved = {"steps": record.steps, "objectives": record.objectives}
    return {"seconds": record.seconds, **{k: [m.model_dump() for m in found] for k, found in moved.items()}}


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def split_names(v: View, letters: str) -> dict[str, str]:
    return {axis: SPLITS[x].name for axis, x in zip(v.plan.mesh.names, letters, strict=True)}


def _splits(v: View) -> list[dict[str, Any]]:
    """How many operators are split how, and what they cost."""
    spent = v.costs.of_operators()
    rows: dict[str, list[int]] = {}
    for name, letters in zip(v.tree.operators, v.splits, strict=True):
        row = rows.setdefault(letters, [0, 0])
        row[0] += 1
        row[1] += sum(spent.get(name, {}).values())
    out = [
        {"letters": k, "axes": split_names(v, k), "operators": n, "seconds": u * v.costs.unit_s}
        for k, (n, u) in rows.items()
    ]
    return sorted(out, key=lambda r: (-r["seconds"], -r["operators"]))


def _operators(v: View) -> list[dict[str, Any]]:
    """What costs most: operators with equal type, split and cost as one row."""
    spent = v.costs.of_operators()
    rows: dict[tuple[str, str, tuple[tuple[str, int], ...]], list[str]] = {}
    for name, letters in zip(v.tree.operators, v.splits, strict=True):
        key = tuple(sorted(spent.get(name, {}).items()))
        rows.setdefault((v.plan.operators[name].type, letters, key), []).append(name)
    out: list[dict[str, Any]] = []
    for (kind, letters, cost), names in rows.items():
        each = dict(cost)
        total = sum(each.values()) * len(names)
        if total:
            seconds = {what: u * len(names) * v.costs.unit_s for what, u in each.items()}
            out.append(
                {
                    "type": kind,
                    "letters": letters,
                    "axes": split_names(v, letters),
                    "count": len(names),
                    "names": names[:_NAMED],
                    "seconds": total * v.costs.unit_s,
                    "share": _share(total * v.costs.unit_s, v.plan.cost.objective_s),
                    "by": seconds,
                }
            )
    return sorted(out, key=lambda r: -r["seconds"])[:TOP]


def _moves(v: View) -> list[dict[str, Any]]:
    """Redistributions that cost most: those with equal steps and cost as one row."""
    plan = v.plan
    rows: dict[tuple[bool, str, object, str, str, float], list[int]] = {}
    for i, r in enumerate(plan.redistributions):
        steps = tuple((s.kind, tuple(s.axes), s.bytes) for s in r.steps)
        stored = r.tensor in plan.parameters
        rows.setdefault(
            (stored, r.direction, steps, str(r.source.layout()), str(r.target.layout()), r.seconds), []
        ).append(i)
    out: list[dict[str, Any]] = []
    for (stored, direction, _, source, target, _), indices in rows.items():
        first = plan.redistributions[indices[0]]
        total = sum(v.costs.moved[i] for i in indices)
        out.append(
            {
                "of": "parameter" if stored else "activation",
                "direction": direction,
                "what": move_text(first),
                "source": source,
                "target": target,
                "bytes": sum(s.bytes for s in first.steps) * len(indices),
                "count": len(indices),
                "indices": indices[:_NAMED],
                "tensors": [plan.redistributions[i].tensor for i in indices[:_NAMED]],
                "seconds": total * v.costs.unit_s,
                "share": _share(total * v.costs.unit_s, plan.cost.objective_s),
            }
        )
    return sorted(out, key=lambda r: -r["seconds"])[:TOP]


def _collectives(plan: PlanDocument) -> list[dict[str, Any]]:
    """Kinds of collectives between operators: how many, and bytes by the convention of the plan file."""
    rows: dict[tuple[str, str], list[int]] = {}
    for r in plan.redistributions:
        for s in r.steps:
            row = rows.setdefault((s.kind, ".".join(s.axes)), [0, 0])
            row[0] += 1
            row[1] += s.bytes
    out = [{"kind": k, "axes": a, "count": n, "bytes": size} for (k, a), (n, size) in rows.items()]
    return sorted(out, key=lambda r: -r["bytes"])


def _stored(plan: PlanDocument) -> list[dict[str, Any]]:
    rows: dict[str, list[int]] = {}
    for p in plan.parameters.values():
        row = rows.setdefault(str(p.stored.layout()), [0, 0])
        row[0] += 1
        size = 1
        for d in p.shape:
            size *= d
        row[1] += size
    out = [{"layout": k, "parameters": n, "elements": e} for k, (n, e) in rows.items()]
    return sorted(out, key=lambda r: -r["elements"])


def _groups(v: View) -> list[dict[str, Any]]:
    """What stands at the top of the graph, and two levels below it."""
    spent = v.costs.of_operators()
    units = [sum(spent.get(n, {}).values()) for n in v.tree.operators]
    nodes = v.tree.nodes
    return [_group(v, c, 0, units) for c in nodes[v.tree.root].children if nodes[c].kind != "input"]


def _group(v: View, node: int, depth: int, units: Sequence[int]) -> dict[str, Any]:
    n = v.tree.nodes[node]
    total = sum(units[i] for i in n.operators) * v.costs.unit_s
    out = {
        "kind": n.kind,
        "title": n.title,
        "operators": len(n.operators),
        "alike": n.alike,
        "seconds": total,
        "share": _share(total, v.plan.cost.objective_s),
    }
    if depth < 2:
        below = [c for c in n.children if v.tree.nodes[c].kind not in ("operator", "input")]
        out["groups"] = [_group(v, c, depth + 1, units) for c in below]
    return out


def _pipeline(plan: PlanDocument) -> dict[str, Any] | None:
    run = pipeline_run(plan)
    if run is None:
        return None
    return {
        "micro_batches": plan.schedule.micro_batches,
        "shown_micro_batches": run.micro_batches,
        "copies": run.copies,
        "together": [[e.copy, e.stream, e.phase, e.name, e.begin, e.units] for e in interleaved(plan)],
        "passes": [list(p) for p in run.passes],
    }
