"""Constraints as the text of a constraints file: what a plan file or another system's strategy came to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from planner.planning.constraints.file import SCHEMA
from planner.planning.constraints.values import Constraints, LayoutPin, OperatorPin, Rest, StrategyPin
from planner.planning.roles import role_to_text

__all__ = ["constraints_text"]


def constraints_text(constraints: Constraints) -> str:
    """JSON that `parse_constraints` reads as the same pins, an object a line.  ValueError where they come from a search
    configuration, whose degrees and job the format cannot express: keep that file's own text."""
    if constraints.degrees is not None or constraints.job is not None:
        raise ValueError(f"constraints {constraints.source}: degrees and jobs have no form in {SCHEMA}")
    entries: dict[str, list[dict[str, Any]]] = {
        "operators": [_operator(pin) for pin in constraints.operators],
        "tensors": [
            {"match": list(t.match)} | _layouts({"layout": t.layout, "produced": t.produced})
            for t in constraints.tensors
        ],
        "parameters": [
            {"match": list(p.match)} | _layouts({"stored": p.stored, "compute": p.compute})
            for p in constraints.parameters
        ],
    }
    parts = [f'"schema": {json.dumps(SCHEMA)}']
    if constraints.meshes:
        parts.append(f'"mesh": {json.dumps(["x".join(map(str, m)) for m in constraints.meshes])}')
    if constraints.rest.where or constraints.rest != Rest():
        parts.append(f'"rest": {json.dumps(_rest(constraints.rest))}')
    if constraints.batch:
        parts.append(f'"batch": {json.dumps(dict(constraints.batch))}')
    parts += [f'"{key}": [\n{_lines(items)}\n]' for key, items in entries.items() if items]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(items: Iterable[dict[str, Any]]) -> str:
    return ",\n".join(f"  {json.dumps(item)}" for item in items)


def _operator(pin: OperatorPin) -> dict[str, Any]:
    named = {"match": pin.match, "type": pin.types, "reads": pin.reads}
    return {key: list(names) for key, names in named.items() if names} | _strategy(pin.strategy)


def _strategy(pin: StrategyPin) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if pin.factors is not None:
        split = {f: n if isinstance(n, int) else list(n) for f, n in pin.factors}
        found["strategy"] = split or "replicated"
    if pin.roles:
        found["roles"] = {axis: role_to_text(role) for axis, role in pin.roles}
    for key, tuples in (("shard", pin.shard), ("shard_out", pin.shard_out)):
        if tuples:
            found[key] = [None if counts is None else list(counts) for counts in tuples]
    return found


def _layouts(pins: Mapping[str, LayoutPin | None]) -> dict[str, Any]:
    return {key: _layout(pin) for key, pin in pins.items() if pin is not None}


def _layout(pin: LayoutPin) -> Any:
    if pin.counts is not None:
        return list(pin.counts)
    if pin.dims is None:
        return "replicated"
    parts = {"parts": list(pin.parts)} if pin.parts else {}
    return {"dims": [list(d) for d in pin.dims], "partial": {a: str(op) for a, op in pin.partial}} | parts


def _rest(rest: Rest) -> Any:
    return rest.kind if rest.axes is None else {rest.kind: list(rest.axes)}
