"""Which operands a parameter is, through the casts and transposes that stand between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.ir import Graph

__all__ = ["Reader", "readers_of"]


@dataclass(frozen=True, slots=True)
class Reader:
    """Operand `slot` of an operator; `transposed`: it is the parameter turned."""

    operator: str
    slot: int
    transposed: bool = False


def readers_of(graph: Graph, tensor: str, transposed: bool = False) -> Iterator[Reader]:
    """In graph order."""
    for op, i in graph.consumers.get(tensor, ()):
        turns = op.type == "Transpose" and list(op.attributes.get("perm", (1, 0))) == [1, 0]
        if turns or op.type in ("Cast", "Identity"):
            yield from readers_of(graph, op.outputs[0], transposed != turns)
        else:
            yield Reader(op.name, i, transposed)
