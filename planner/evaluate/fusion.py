"""Which operators run as one kernel.

Frameworks and compilers run chains of elementwise operators, normalisations and reductions as one kernel that reads
what enters and writes what leaves.  Here: operators of those kinds that are connected, with no product, lookup or
transfer between them on any path.  `level` counts the latter along the longest path to an operator; only operators
of one level are joined, which keeps every region convex.

The core of attention is a product of two activations, a region with one softmax, and a product of its result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from planner.ir import Graph, Op
from planner.rules.rule import Rule

__all__ = ["Core", "Regions", "attention_cores", "join"]

FUSABLE = frozenset({"elementwise", "normalization", "reduction", "pooling", "layout", "free"})
VIEWS = frozenset({"free", "layout"})


@dataclass(frozen=True, slots=True)
class Regions:
    """`of[op]` is the number of its region; `members[r]` the operators of region r in graph order."""

    of: Mapping[str, int]
    members: tuple[tuple[Op, ...], ...]


@dataclass(frozen=True, slots=True)
class Core:
    """Scores, softmax and weighted sum of one attention: its two products and the regions between them."""

    scores: str
    output: str
    regions: frozenset[int]


def join(
    graph: Graph, rules: Mapping[str, Rule], barriers: Mapping[str, Collection[str]], skip: Collection[str], fuse: bool
) -> Regions:
    """Regions of the operators outside `skip`.

    `barriers[op]` are the operands of `op` that a transfer stands before.
    """
    level: dict[str, int] = {}
    after: dict[str, int] = {}
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    order = [op for op in graph.ops if op.name not in skip]
    for op in order:
        parent[op.name] = op.name
        stopped = barriers.get(op.name, ())
        level[op.name] = max((after.get(t, 0) + (t in stopped) for t in op.inputs if t), default=0)
        soft = rules[op.name].kind in FUSABLE
        for t in op.outputs:
            if t:
                after[t] = level[op.name] + (not soft)
        if not (soft and fuse):
            continue
        for t in op.inputs:
            producer = graph.producers.get(t)
            if (
                producer is not None
                and producer.name in level
                and t not in stopped
                and rules[producer.name].kind in FUSABLE
                and level[producer.name] == level[op.name]
            ):
                parent[root(op.name)] = root(producer.name)
    number: dict[str, int] = {}
    members: list[list[Op]] = []
    of = {}
    for op in order:
        r = root(op.name)
        if r not in number:
            number[r] = len(members)
            members.append([])
        of[op.name] = number[r]
        members[number[r]].append(op)
    return Regions(of, tuple(tuple(m) for m in members))


def attention_cores(graph: Graph, rules: Mapping[str, Rule], regions: Regions, weights: Collection[str]) -> list[Core]:
    """Attention written out in products and a softmax; `weights` are tensors made of parameters alone."""
    found = []
    for number, members in enumerate(regions.members):
        if not any(op.type == "Softmax" for op in members):
            continue
        inside = {t for op in members for t in op.outputs}
        entering = {t for op in members for t in op.inputs if t and t not in inside}
        before = [graph.producers[t] for t in entering if t in graph.producers]
        scores = [op for op in before if _of_activations(op, rules, weights)]
        readers = {
            c.name: c
            for t in inside
            for c, _ in graph.consumers.get(t, ())
            if c.name not in regions.of or regions.of[c.name] != number
        }
        output = [c for c in readers.values() if _of_activations(c, rules, weights)]
        if len(scores) == 1 and len(output) == 1:
            found.append(Core(scores[0].name, output[0].name, frozenset({number})))
    return found


def _of_activations(op: Op, rules: Mapping[str, Rule], weights: Collection[str]) -> bool:
    return rules[op.name].kind == "matmul" and not any(t in weights for t in op.inputs if t)
