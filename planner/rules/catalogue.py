"""What the planner knows of operators, as plain data for people: every type with its rule, or those of one graph.

`operators.json` is written by the proof of the rules in the test suite (`python -m tests.rules.catalogue --write`),
from ONNX's own node tests and small operators of every family; docs/operators.md shows the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

from planner.ir import Graph
from planner.rules.notation import describe
from planner.rules.registry import opaque_reason, registered_types, replicated, rule_for
from planner.rules.rule import Rule
from planner.rules.strategy import axis_roles

__all__ = ["CatalogueEntry", "catalogue", "graph_operators", "role_names"]


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """An operator type.

    rule      a rule of it in notation (rules are bound to shapes and attributes: others may differ), or why it
              stays whole
    splits    what one mesh axis may do: split a factor, `+g` pass pending sums of operand group g on
    """

    type: str
    rule: str
    splits: tuple[str, ...]
    opaque: bool = False
    count: int = 0  # operators of the type, of a graph
    example: str = ""  # the rule bound to the shapes of one of them

    def as_dict(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if v or k in ("type", "rule", "splits", "opaque")}


def role_names(rule: Rule) -> tuple[str, ...]:
    """What one mesh axis may do for the operator beside replicating it, sizes aside."""
    return tuple(str(r) for r in axis_roles(rule, training=False) if r.kind != "replicate")


def catalogue() -> tuple[CatalogueEntry, ...]:
    """All operator types that have a rule or a reason, those registered by other packages among them, sorted."""
    known = _proved()
    found = []
    for type_ in sorted(registered_types()):
        reason = opaque_reason(type_)
        if reason is not None:
            found.append(CatalogueEntry(type_, f"whole: {reason}", (), opaque=True))
        elif type_ in known:
            found.append(CatalogueEntry(type_, known[type_]["rule"], tuple(known[type_]["splits"])))
        else:
            found.append(CatalogueEntry(type_, "registered; bound to the shapes of an operator", ()))
    return tuple(found)


def graph_operators(graph: Graph) -> tuple[CatalogueEntry, ...]:
    """The operator types of a graph with the rule of the first operator that can be split, most frequent first."""
    counts = Counter(op.type for op in graph.ops)
    best: dict[str, CatalogueEntry] = {}
    for op in graph.ops:
        if op.type in best and best[op.type].splits:
            continue
        rule = rule_for(op, graph)
        bound = replicated(op, graph) if rule is None else rule
        best[op.type] = CatalogueEntry(
            op.type,
            bound.text,
            role_names(bound),
            opaque=opaque_reason(op.type) is not None,
            count=counts[op.type],
            example="" if bound.text.startswith("whole:") else describe(bound),
        )
    return tuple(best[t] for t, _ in counts.most_common())


def _proved() -> Mapping[str, Any]:
    text = files("planner.rules").joinpath("operators.json").read_text(encoding="utf-8")
    return json.loads(text)["operators"]
