"""What has to be known of a model before a configuration is written for a framework that takes degrees."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from planner.clock import Configuration
from planner.emit.scheme import PRODUCTS
from planner.ir import Graph, Op, Role

__all__ = ["Model", "recomputes_layers"]


@dataclass(frozen=True, slots=True)
class Model:
    """`tied`: some weight has several readers, as a table that also makes logits; `tables_tied`: so has each that is
    looked up; `tokens`: the first input is a matrix, samples by positions."""

    tied: bool
    tables_tied: bool
    tokens: bool

    @classmethod
    def of(cls, graph: Graph) -> Model:
        weights = [t.name for t in graph.parameters if t.role is Role.PARAMETER]
        readers: dict[str, list[tuple[Op, int]]] = defaultdict(list)
        for op in graph.ops:
            for i, t in enumerate(op.inputs):
                readers[t].append((op, i))
        tables = [n for n in weights if any(op.type == "Gather" and i == 0 for op, i in readers[n])]
        multiplied = {n for n in tables if any(op.type in PRODUCTS and i == 1 for op, i in readers[n])}
        first = graph.tensors[graph.inputs[0]].shape if graph.inputs else None
        return cls(
            tied=any(len(readers[n]) > 1 for n in weights),
            tables_tied=multiplied == set(tables),
            tokens=first is not None and len(first) == 2,
        )


def recomputes_layers(c: Configuration, *, part: bool = False, by_stage: bool = False) -> bool:
    """Whether nothing is run again, or whole layers are: all of them, or with `part` some, as many in every stage, or
    with `by_stage` as many as each stage says."""
    if c.recompute_layers is not None:
        return by_stage
    return c.recompute == "none" or (c.recompute == "full" and (part or c.recompute_blocks == 1))
