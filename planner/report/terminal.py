"""A plan.json in the terminal: one screen."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from planner.errors import InputError
from planner.planning.document import LayoutDocument, PlanDocument
from planner.report.document import document_of
from planner.report.mesh import shards
from planner.report.record import SearchRecord
from planner.report.view import View
from planner.report.words import memory_text, printable, time_text

__all__ = ["report_text", "tensor_text"]

_ROWS = 8
_PARTS = 1024  # of a tensor, that are listed


def report_text(v: View, record: SearchRecord | None = None, words: str = "") -> str:
    """What the plan is, where time and memory go, what costs most, and what to know before trusting it; `record`: of
    the search that made the plan; `words`: the plan in degrees of parallelism."""
    d = document_of(v, record)
    cost, schedule, cluster = d["cost"], d["schedule"], d["cluster"]
    axes = ", ".join(f"{a['name']}={a['size']}" for a in d["mesh"])
    stages = (
        f"{schedule['stages']} stages x {schedule['micro_batches']} micro-batches, " if len(d["stages"]) > 1 else ""
    )
    limit = d["memory_limit_bytes"]
    lines = [
        f"{printable(d['model']['name'])}: {schedule['mode']} on {cluster['devices']} x {cluster['hardware']}, {stages}"
        f"mesh {v.plan.mesh} ({axes}), {schedule['precision']}",
        "",
        *([f"plan        {printable(words, 400)}"] if words else []),
        f"step        {time_text(cost['step_time_s'])} by the clock  [{cost['step_time_s']!r} s]",
        f"objective   {time_text(cost['objective_s'])} (everything{_of_one(d)} in sequence)  "
        f"[{cost['objective_s']!r} s]",
        f"bound       {time_text(d['proven']['bound_s'])} of the step, gap {d['proven']['gap']:.2%}  "
        f"[{d['proven']['bound_s']!r} s]",
        f"memory      {memory_text(cost['peak_memory_bytes'])} per device at peak  [{cost['peak_memory_bytes']} bytes]"
        + ("" if limit is None else f", limit {memory_text(limit)}"),
        "",
        "time",
        *(_bar(time_text(r["seconds"]), r["share"], r["label"]) for r in d["time"] if r["seconds"]),
    ]
    if d["memory"]:
        lines += [
            "",
            "memory",
            *(_bar(memory_text(r["bytes"]), r["share"], r["label"]) for r in d["memory"] if r["bytes"]),
        ]
    lines += ["", "operators by split", *(_split(r, cost["objective_s"]) for r in d["splits"][:_ROWS])]
    if v.costs.timed and d["operators"]:
        lines += ["", "operators that cost most (their redistributions and optimizer included)"]
        lines += [_bar(time_text(r["seconds"]), r["share"], _operator(r)) for r in d["operators"][:_ROWS]]
    if d["redistributions"]:
        lines += ["", "redistributions that cost most"]
        lines += [_bar(time_text(r["seconds"]), r["share"], _move(r)) for r in d["redistributions"][:_ROWS]]
    for k, s in enumerate(d["stages"] if len(d["stages"]) > 1 else []):
        lines += [""] * (k == 0) + [f"stage {k:<6}{s['operators']:5} operators, {memory_text(s['peak_memory_bytes'])}"]
    lines += ["", *(f"{n['level']:<12}{n['text']}" for n in d["notes"])]
    return "\n".join(lines).rstrip()


def _of_one(d: Mapping[str, Any]) -> str:
    return " of one micro-batch" if d["schedule"]["micro_batches"] > 1 else ""


def _bar(figure: str, share: float, what: str) -> str:
    return f"  {figure:>11}  {share:6.1%}  {'#' * round(20 * min(share, 1.0)):20}  {what}".rstrip()


def _split(row: dict[str, object], whole: float) -> str:
    axes = row["axes"]
    assert isinstance(axes, dict)
    text = " ".join(f"{a}={s}" for a, s in axes.items())
    spent = row["seconds"]
    assert isinstance(spent, float)
    return f"  {row['operators']:>11}  {spent / whole if whole else 0.0:6.1%}  {text}"


def _operator(row: dict[str, object]) -> str:
    axes, names = row["axes"], row["names"]
    assert isinstance(axes, dict)
    assert isinstance(names, list)
    count = f"{row['count']} x " if row["count"] != 1 else ""
    return f"{count}{row['type']} ({' '.join(f'{a}={s}' for a, s in axes.items())}) {printable(names[0])}"


def _move(row: dict[str, object]) -> str:
    tensors = row["tensors"]
    assert isinstance(tensors, list)
    gradient = "gradient of " if row["direction"] == "gradient" else ""
    return f"{row['count']} x {row['what']}, {gradient}{printable(tensors[0])}"


def tensor_text(plan: PlanDocument, name: str) -> str:
    """Which part of a tensor every rank holds, in each layout that the plan has for it.

    InputError where the plan has no such tensor, or not its shape.
    """
    tensor = plan.tensors.get(name) or plan.parameters.get(name) or plan.inputs.get(name)
    if tensor is None:
        near = get_close_matches(name, [*plan.tensors, *plan.parameters, *plan.inputs], 3)
        hint = f"; near to it: {', '.join(near)}" if near else ""
        raise InputError(f"plan of {plan.model.name}: expected a tensor of the plan, found {name!r}{hint}")
    shape = tensor.shape
    if shape is None:
        raise InputError(f"plan of {plan.model.name}: the shape of {name!r} is not in the plan; choose another tensor")
    found: dict[str, list[str]] = {}
    for what, layout in _layouts(plan, name):
        found.setdefault(str(layout.layout()), []).append(what)
    by_text = {str(x.layout()): x.layout() for _, x in _layouts(plan, name)}
    lines = [f"{printable(name)}: {' x '.join(map(str, shape)) or 'a scalar'} on {plan.mesh.devices} ranks"]
    for text, whats in found.items():
        lines.append(f"{text}  {', '.join(dict.fromkeys(whats))}")
        parts = shards(by_text[text], shape, plan.mesh)
        for shard in parts[:_PARTS]:
            ranges = ", ".join(f"{a}:{b}" for a, b in shard.ranges)
            ranks = " ".join(map(str, shard.ranks[:16])) + (f" … ({len(shard.ranks)})" if len(shard.ranks) > 16 else "")
            lines.append(f"  [{ranges}]  ranks {ranks}")
        if len(parts) > _PARTS:
            lines.append(f"  and {len(parts) - _PARTS:,} more parts")
    return "\n".join(lines)


def _layouts(plan: PlanDocument, name: str) -> list[tuple[str, LayoutDocument]]:
    out: list[tuple[str, LayoutDocument | None]] = []
    if name in plan.parameters:
        p = plan.parameters[name]
        out += [("stored", p.stored), *(("computed with", x) for x in p.compute), ("gradient", p.gradient)]
        out += [("optimizer", p.optimizer)]
    elif name in plan.tensors:
        out += [("produced", plan.tensors[name].layout), ("gradient wanted", plan.tensors[name].gradient)]
    else:
        out += [("read", plan.inputs[name].layout)]
    for r in plan.redistributions:
        if r.tensor == name:
            gradient = r.direction == "gradient"
            out.append(("gradient made", r.source) if gradient else ("converted to", r.target))
    return [(what, layout) for what, layout in out if layout is not None]
