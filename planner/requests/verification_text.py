"""The verdict of `planner verify` as text, from its JSON document."""

from __future__ import annotations

from typing import Any

__all__ = ["verification_text"]

_LISTED = 20  # lines of what is wrong


def verification_text(d: dict[str, Any]) -> str:
    """`d`: of `verification_document`."""
    head = {"ok": "ok", "failed": "FAILED", "no verdict": "NO VERDICT"}[d["verdict"]]
    what = f"a sibling ({d['executed']})" if d["scope"] == "sibling" else d["executed"]
    ran = f"{' and '.join(d['checked'])} of {what}" if d["values"] else "nothing was executed"
    lines = [
        f"{head}: {ran} on {d['devices']} virtual devices{_parts(d)}",
        f"  document   fields that do not follow from the graph, the choice and the machine: {len(d['fields'])}"
        if d["fields"]
        else "  document   every field follows from the graph, the choice and the machine",
        f"  compared   {d['values']} results, {d['redistributions']} redistributions, {d['gradients']} contributions "
        f"to gradients, {d['parameters']} gradients of parameters with the whole model in double precision",
        f"  error      {d['max_error']:.3g} at most" + (f" ({d['worst']})" if d["worst"] else ""),
        *([f"  witness    {_witness_line(d)}"] if d["witnessed"] or d["unwitnessed"] else []),
        f"  import     {_import_line(d['import'])}",
        *(f"  block      {line}" for line in d["stands_for"]),
    ]
    for title, found in (("wrong", d["failures"]), ("unproved", d["unproved"])):
        lines += [f"  {title:10} {line}" for line in found[:_LISTED]]
        lines += [f"  {title:10} and {len(found) - _LISTED} more" for _ in found[_LISTED : _LISTED + 1]]
    return "\n".join(lines)


def _parts(d: dict[str, Any]) -> str:
    if d["stages"] == d["micro_batches"] == 1:
        return ""
    stages = f"{d['stages']} stage{'s' if d['stages'] > 1 else ''}"
    return f", {stages} and {d['micro_batches']} micro-batch{'es' if d['micro_batches'] > 1 else ''}"


def _witness_line(d: dict[str, Any]) -> str:
    """Gradients are also compared with finite differences, which share no code with them."""
    silent = d["unwitnessed"]
    rest = f"; they say nothing of {', '.join(silent[:3])}{' and others' if len(silent) > 3 else ''}" if silent else ""
    return f"finite differences confirm the gradients of {d['witnessed']} operators, one of each kind{rest}"


def _import_line(found: dict[str, Any] | None) -> str:
    if found is None or found["ok"] is None:
        return "not compared with ONNX Runtime" + (f": {found['reason']}" if found else "")
    if not found["ok"]:
        return f"differs from ONNX Runtime: {found['reason']}"
    outputs = f"{len(found['compared'])} output{'s' if len(found['compared']) != 1 else ''}"
    return f"equal to ONNX Runtime on the file, {outputs}, error {found['max_error']:.3g}"
