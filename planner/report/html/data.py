"""A plan for `Plan` of plan.js: the report document, and the graph as rows of numbers into shared lists.

Rows are lists, whose places are named here and nowhere else but in plan.js.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.planning.document import LayoutDocument, TensorDocument
from planner.report.colours import SPLITS
from planner.report.document import document_of
from planner.report.figures import PARTS, part_of_move
from planner.report.record import SearchRecord
from planner.report.view import SIZES, Level, View
from planner.report.words import PART_NAMES

__all__ = ["page_data"]


class _Numbers:
    """Texts by number, in order of first use."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.of.setdefault(text, len(self.of))

    def layout(self, layout: LayoutDocument | None) -> int:
        return -1 if layout is None else self(str(layout.layout()))


def page_data(v: View, record: SearchRecord | None = None, words: str = "") -> dict[str, Any]:
    """What a page knows of one plan, and of the search that made it; `words`: the plan in degrees of parallelism."""
    plan = v.plan
    layouts, tensors = _Numbers(), _Numbers()
    operators = _operators(v, layouts, tensors)
    moves = _moves(v, layouts, tensors)
    parameters = _parameters(v, layouts, tensors)
    inputs = [[tensors(name), layouts.layout(i.layout), i.shape, i.dtype] for name, i in plan.inputs.items()]
    rows = [_tensor(name, plan.tensors.get(name), layouts) for name in tensors.of]
    return {
        "report": document_of(v, record),
        "words": words,
        "unit": v.costs.unit_s,
        "units": {part: round(s / v.costs.unit_s) for part, s in plan.cost.parts_s.items()},
        "labels": [[part, PART_NAMES[part], stream] for part, stream in PARTS.items()],
        "splits": [[s.letter, s.name, s.meaning, s.pattern] for s in SPLITS.values()],
        "sizes": {kind: list(size) for kind, size in SIZES.items()},
        "layouts": list(layouts.of),
        "tensors": rows,
        "operators": operators,
        "parameters": parameters,
        "moves": moves,
        "inputs": inputs,
        "parents": [n.parent for n in v.tree.nodes[: len(operators)]],
        "details": [n.detail for n in v.tree.nodes[: len(operators)]],
        "nodes": [
            [n.kind, n.title, n.detail, n.parent, list(n.children), n.alike] for n in v.tree.nodes[len(operators) :]
        ],
        "root": v.tree.root,
        "levels": {group: _level(level) for group, level in v.levels.items()},
        "waits": {str(n): list(moves) for n, moves in v.of_parameters.items()},
    }


def _operators(v: View, layouts: _Numbers, tensors: _Numbers) -> list[list[Any]]:
    return [
        [
            name,
            o.type,
            o.source,
            o.module,
            list(o.strategy.values()),
            v.splits[i],
            o.stage,
            [tensors(t) if t else -1 for t in o.inputs],
            [layouts.layout(x) for x in o.operands],
            [tensors(t) if t else -1 for t in o.outputs],
            [layouts.layout(x) for x in o.results],
            [[c.kind, list(c.axes), c.bytes, int(c.backward), c.count] for c in o.inner],
            [[e.phase, e.begin, e.units, e.inside] for e in v.costs.runs.get(name, ())],
        ]
        for i, (name, o) in enumerate(v.plan.operators.items())
    ]


def _moves(v: View, layouts: _Numbers, tensors: _Numbers) -> list[list[Any]]:
    parts = list(PARTS)
    return [
        [
            tensors(r.tensor),
            int(r.direction == "gradient"),
            v.tree.number.get(r.reader, -1),
            layouts.layout(r.source),
            layouts.layout(r.target),
            [[s.kind, list(s.axes), s.dim, s.to_dim, layouts.layout(s.target), s.bytes] for s in r.steps],
            v.costs.moved[i],
            v.costs.begins[i],
            v.tree.number.get(v.costs.owner[i], -1),
            parts.index(part_of_move(v.plan, i)),
        ]
        for i, r in enumerate(v.plan.redistributions)
    ]


def _parameters(v: View, layouts: _Numbers, tensors: _Numbers) -> dict[int, list[Any]]:
    return {
        tensors(name): [
            list(p.shape),
            layouts.layout(p.stored),
            [layouts.layout(x) for x in p.compute],
            layouts.layout(p.gradient),
            layouts.layout(p.optimizer),
            v.costs.optimizer.get(name, 0),
            v.tree.number.get(v.costs.updated.get(name, ""), -1),
        ]
        for name, p in v.plan.parameters.items()
    }


def _tensor(name: str, t: TensorDocument | None, layouts: _Numbers) -> list[Any]:
    if t is None:
        return [name]
    return [name, t.shape, t.dtype, str(t.role), layouts.layout(t.layout), layouts.layout(t.gradient)]


def _level(level: Level) -> list[Any]:
    d = level.drawing
    pills = [[list(p.moves), p.source, list(p.targets)] for p in level.pills]
    return [
        list(level.members),
        pills,
        [list(r) for r in d.rows],
        list(d.x),
        _flat(d.segments),
        _flat(sorted(d.against)),
    ]


def _flat(pairs: Sequence[tuple[int, int]]) -> list[int]:
    return [i for pair in pairs for i in pair]
