"""Which blocks of a model represent the others under a plan.

Blocks of a run are equal in the model; the plan may treat them differently.  Two blocks are *alike* where corresponding
operators have the same strategy, corresponding parameters the same stored layout, and corresponding tensors the same
layouts and redistributions, each towards the same place of the same or of a neighbouring block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from planner.frontends.resized.blocks import BlockRun
from planner.frontends.resized.siblings import BlockCut
from planner.ir import Graph
from planner.pricing import Assignment, RedistributionPlan

__all__ = ["Level", "cuts", "represented"]

Level = int  # 0: all transitions between kinds of blocks · 1: all kinds · 2: the first block alone


@dataclass(frozen=True, slots=True)
class _Place:
    block: int
    position: int


def cuts(graph: Graph, runs: Sequence[BlockRun], assignment: Assignment, level: Level) -> list[BlockCut]:
    """Of each run, the blocks that stay: for every pair of kinds that follow each other the first block of the second
    kind, so that all that meets in the model meets in what is kept."""
    found = []
    for run in runs:
        kinds = _kinds(graph, run, assignment)
        pairs = [(kinds[j - 1] if j else "", kind) for j, kind in enumerate(kinds)]
        levels: tuple[list[Hashable], ...] = ([*pairs], [*kinds], [""] * len(kinds))
        keys = levels[level]
        remaining = tuple(sorted({keys.index(key) for key in keys}))
        if len(remaining) < run.count:
            stand_in = tuple(max(k for k in remaining if k <= j) for j in range(run.count))
            found.append(BlockCut(run, remaining, stand_in))
    return found


def represented(graph: Graph, cut: BlockCut, assignment: Assignment) -> list[str]:
    """Lines for people: which block stands for which others, and which others nothing stands for."""
    kinds = _kinds(graph, cut.run, assignment)
    first = graph.op(cut.run.blocks[0][cut.run.feeders])
    where = f"of {cut.run.count} equal blocks from {first.module or first.name}"
    lines = []
    for kind in dict.fromkeys(kinds):
        members = [j for j, k in enumerate(kinds) if k == kind]
        run = [j for j in members if j in cut.remaining]
        others = [j for j in members if j not in cut.remaining]
        if run and others:
            same = f"{_ranges(others)} have the same layouts and redistributions"
            lines.append(f"{_ranges(run)} {where} executed; {same}")
        elif run:
            lines.append(f"{_ranges(run)} {where} executed")
        else:
            lines.append(f"{_ranges(others)} {where} NOT executed: no block that was has their layouts")
    return lines


def _kinds(graph: Graph, run: BlockRun, assignment: Assignment) -> list[str]:
    place = {name: _Place(j, i) for j, block in enumerate(run.blocks) for i, name in enumerate(block)}
    return [_kind(graph, block, j, place, assignment) for j, block in enumerate(run.blocks)]


def _kind(graph: Graph, block: Sequence[str], number: int, place: Mapping[str, _Place], assignment: Assignment) -> str:
    digest = hashlib.sha256()
    for name in block:
        op = graph.op(name)
        digest.update(repr(assignment.strategies[name].roles).encode())
        digest.update(str(name in assignment.blocks).encode())
        for t in (*op.inputs, *op.outputs):
            own = t in op.outputs or t not in graph.producers
            if t and own and t in assignment.redistributions:
                digest.update(_redistribution(assignment.redistributions[t], number, place).encode())
            if t in assignment.stored:
                digest.update(str(assignment.stored[t]).encode())
    return digest.hexdigest()


def _redistribution(redistribution: RedistributionPlan, number: int, place: Mapping[str, _Place]) -> str:
    def reader(name: str) -> str:
        at = place.get(name)
        return "" if not name else "outside" if at is None else f"{at.block - number}:{at.position}"

    moves = [
        f"{m.gradient}{m.source}>{m.target}{list(map(str, m.steps))}@{reader(m.reader)}" for m in redistribution.moves
    ]
    return f"{redistribution.produced} {redistribution.wanted} {moves}"


def _ranges(numbers: Sequence[int]) -> str:
    """`block 3`, `blocks 0, 2–5`."""
    parts = []
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [n for _, n in group]
        parts.append(f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}")
    return ("block " if len(numbers) == 1 else "blocks ") + ", ".join(parts)
