"""A smaller graph of the same kind: a few of many equal layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.frontends.resized.blocks import BlockRun, repeated_blocks
from planner.ir import Graph, Op, Role

__all__ = ["BlockCut", "cut_blocks", "cut_layers", "removable_runs"]


def cut_layers(graph: Graph, keep: int) -> tuple[Graph, Mapping[str, str]]:
    """The graph with only the first `keep` blocks of each run, and sibling operator → original operator.

    What stands after a run reads the last kept block where it read the last one, and in general block
    j − (count − keep) where it read the removed block j, so that a backward run cut in the same way finds the
    activations of the blocks that are there.  Weights of removed blocks are replaced alike.  Outputs
    that removed blocks alone computed are dropped, and whatever nothing reads then (transposed weights).  ValueError
    when `keep` < 1.
    """
    if keep < 1:
        raise ValueError(f"keep={keep}: at least one block must stay")
    cuts = [
        BlockCut(
            run, tuple(range(keep)), tuple(max(j - (run.count - keep), 0) if j >= keep else j for j in range(run.count))
        )
        for run in removable_runs(graph)
        if run.count > keep
    ]
    sibling, _ = cut_blocks(graph, cuts)
    return sibling, {op.name: op.name for op in sibling.ops}


@dataclass(frozen=True, slots=True)
class BlockCut:
    """The blocks of a run that stay, by number, and for each block the one that stands in its place."""

    run: BlockRun
    remaining: tuple[int, ...]
    stand_in: tuple[int, ...]


def removable_runs(graph: Graph) -> list[BlockRun]:
    """Runs of equal blocks that data flows through."""
    return [r for r in repeated_blocks(graph) if not _prepares_weights(graph, r)]


def cut_blocks(graph: Graph, cuts: Sequence[BlockCut]) -> tuple[Graph, Mapping[str, str]]:
    """The graph without the blocks that are not kept, and removed tensor → the kept one that is read in its place."""
    if not cuts:
        return graph, {}
    removed = {name for c in cuts for j, block in enumerate(c.run.blocks) if j not in c.remaining for name in block}
    renamed = _closed(_results(graph, cuts) | _sources(graph, cuts))
    ops: list[Op] = []
    for op in graph.ops:
        if op.name not in removed:
            inputs = tuple(renamed.get(t, t) for t in op.inputs)
            ops.append(op if inputs == op.inputs else replace(op, inputs=inputs))
    made = {t for op in ops for t in op.outputs if t}
    outputs = tuple(o for o in graph.outputs if o in made or o not in graph.producers)
    if not outputs or (graph.loss is not None and graph.loss not in made):
        outputs = tuple(dict.fromkeys(renamed.get(o, o) for o in graph.outputs))
    ops = _needed(ops, {*outputs, *([graph.loss] if graph.loss in made else [])})
    read = {t for op in ops for t in op.inputs if t}
    inputs = tuple(t for t in graph.inputs if t not in renamed and (t in read or t not in graph.consumers))
    named = read | {t for op in ops for t in op.outputs if t} | {*inputs, *outputs}
    tensors = {t: v for t, v in graph.tensors.items() if t in named}
    loss = graph.loss if graph.loss in made else None
    return replace(graph, ops=tuple(ops), tensors=tensors, inputs=inputs, outputs=outputs, loss=loss), renamed


def _prepares_weights(graph: Graph, run: BlockRun) -> bool:
    """Its blocks read sources alone: each goes with its readers, which may be several runs."""
    inside = {name for block in run.blocks for name in block}
    reads = {t for name in inside for t in graph.op(name).inputs if t}
    return all(t not in graph.producers or graph.producers[t].name in inside for t in reads) and not any(
        graph.tensors[t].role is Role.INPUT for t in reads
    )


def _needed(ops: list[Op], wanted: set[str]) -> list[Op]:
    """The operators that the wanted tensors depend on."""
    needed, operators = set(wanted), []
    for op in reversed(ops):
        if not needed.isdisjoint(op.outputs):
            operators.append(op)
            needed.update(op.inputs)
    return operators[::-1]


def _closed(renamed: Mapping[str, str]) -> dict[str, str]:
    """Follow chains: the stand-in of one run's source may itself have one in another run."""
    found = {}
    for name in renamed:
        seen, last = {name}, renamed[name]
        while last in renamed and last not in seen:
            seen.add(last)
            last = renamed[last]
        found[name] = last
    return {a: b for a, b in found.items() if a != b}


def _results(graph: Graph, cuts: Sequence[BlockCut]) -> dict[str, str]:
    """Result of a removed block → the corresponding result of the kept block that takes its place."""
    found: dict[str, str] = {}
    for c in cuts:
        for j, block in enumerate(c.run.blocks):
            if j in c.remaining:
                continue
            for gone, stays in zip(block, c.run.blocks[c.stand_in[j]], strict=True):
                pairs = zip(graph.op(gone).outputs, graph.op(stays).outputs, strict=True)
                found.update((a, b) for a, b in pairs if a and b)
    return found


def _sources(graph: Graph, cuts: Sequence[BlockCut]) -> dict[str, str]:
    """Source that a removed block introduces (its weights) → that of the kept block in its place.

    A source belongs to the first run that reads it, if only one of the run's blocks does.
    """
    found: dict[str, str] = {}
    owned: set[str] = set()
    for c in cuts:
        readers: dict[str, set[int]] = {}
        place: dict[tuple[int, int, int], str] = {}
        where: dict[str, tuple[int, int]] = {}
        for j, block in enumerate(c.run.blocks):
            for i, name in enumerate(block):
                for k, t in enumerate(graph.op(name).inputs):
                    if t and t not in graph.producers:
                        readers.setdefault(t, set()).add(j)
                        place[j, i, k] = t
                        where.setdefault(t, (i, k))
        for t, blocks in readers.items():
            if t in owned or len(blocks) > 1:
                continue
            owned.add(t)
            j = next(iter(blocks))
            if j not in c.remaining:
                stand_in = place.get((c.stand_in[j], *where[t]))
                if stand_in is not None and stand_in != t:
                    found[t] = stand_in
    return found
