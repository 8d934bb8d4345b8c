"""Repeated blocks: layers that are the same but for their weights.

Every operator gets a signature: type, attributes, operand kinds with shapes, result shapes.  A run is a
stretch of the operator sequence that is periodic in its signatures and whose data flow is periodic, too:
an operand from inside the block or from the block before comes from the corresponding place of every
block; one from outside is the same tensor for all (a mask), or for each a source of the same kind (its
weights), or for each the result of another operator of the same shape (activations kept for a backward
run).  Of overlapping runs the one that covers most operators is taken, with the shortest period; then what
is left to either side is searched again.  Module paths are not needed.

Operators that depend on no parameter are left out of this sequence, since exporters place them anywhere.  Those that a
single block reads, as the mask that each layer makes of a common one, belong to it where all blocks have the like.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.ir import Graph, Op, Role
from planner.ir.memoized import memoized

__all__ = ["BlockRun", "repeated_blocks"]

MIN_PERIOD = 3  # shorter repetitions are chains of the same arithmetic, not layers
_SOURCE, _FED = -1, -2  # operands that no operator of the sequence computes; the latter come from before any run
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class BlockRun:
    """`blocks[k]` are the names of block k's operators; corresponding ones share a position.  Each stands behind those
    that it reads."""

    blocks: tuple[tuple[str, ...], ...]
    feeders: int = 0  # so many of a block's first operators depend on no parameter; they may stand anywhere before it

    @property
    def count(self) -> int:
        return len(self.blocks)

    @property
    def size(self) -> int:
        return len(self.blocks[0])


@memoized
def repeated_blocks(graph: Graph) -> tuple[BlockRun, ...]:
    """Maximal runs of at least two structurally identical consecutive blocks, in graph order; found once as long as the
    graph lives."""
    numbers: dict[str, int] = {}
    ops = _weighted(graph)
    signature = np.array([numbers.setdefault(_signature(graph, op), len(numbers)) for op in ops], dtype=np.int64)
    index = {op.name: i for i, op in enumerate(ops)}
    sources = [_sources(graph, op, index) for op in ops]
    runs: list[tuple[int, BlockRun]] = []
    pending = [(0, len(ops))]
    while pending:
        low, high = pending.pop()
        found = _best(signature, sources, low, high)
        if found is None:
            continue
        start, period, count = found
        names = [op.name for op in ops[start : start + count * period]]
        blocks = tuple(tuple(names[k * period : (k + 1) * period]) for k in range(count))
        runs.append((start, BlockRun(blocks)))
        pending += [(low, start), (start + count * period, high)]
    found_runs = [run for _, run in sorted(runs, key=lambda r: r[0])]
    return tuple(_with_feeders(graph, found_runs, set(index)))


def _with_feeders(graph: Graph, runs: Sequence[BlockRun], weighted: set[str]) -> list[BlockRun]:
    """The runs, whose blocks begin with the operators without parameters that they alone read."""
    place = {
        name: (r, k, position)
        for r, run in enumerate(runs)
        for k, block in enumerate(run.blocks)
        for position, name in enumerate(block)
    }
    results = {*graph.outputs, graph.loss}
    numbers: dict[object, int] = {}
    feeders: dict[tuple[int, int], dict[int, str]] = defaultdict(dict)
    for op in reversed(graph.ops):
        if op.name in weighted or not results.isdisjoint(op.outputs):
            continue
        readers = [(r.name, k, o) for o, t in enumerate(op.outputs) for r, k in graph.consumers.get(t, ())]
        if not readers or len({place.get(name, ())[:2] for name, _, _ in readers}) > 1 or readers[0][0] not in place:
            continue
        # What it does, and where it is read, by which corresponding operators of other blocks are found.
        read_at = frozenset((place[name][2], k, o) for name, k, o in readers)
        number = numbers.setdefault((_signature(graph, op), read_at), -1 - len(numbers))
        r, k, _ = place[readers[0][0]]
        place[op.name] = r, k, number
        feeders[r, k][number] = op.name
    out = []
    for r, run in enumerate(runs):
        own = [feeders[r, k] for k in range(run.count)]
        common = [n for n in reversed(own[0]) if all(n in found for found in own)]
        blocks = zip(own, run.blocks, strict=True)
        out.append(BlockRun(tuple((*(found[n] for n in common), *block) for found, block in blocks), len(common)))
    return out


def _weighted(graph: Graph) -> list[Op]:
    """Operators that depend on a parameter, in order; all of them where there is none."""
    moved = {t.name for t in graph.parameters}
    ops = []
    for op in graph.ops:
        if not moved.isdisjoint(op.inputs):
            ops.append(op)
            moved.update(o for o in op.outputs if o)
    return ops or list(graph.ops)


def _signature(graph: Graph, op: Op) -> str:
    def kind(t: str) -> str:
        if not t:
            return "-"
        tensor = graph.tensors[t]
        fed = t in graph.producers or tensor.role is Role.INPUT
        role = Role.ACTIVATION if fed else tensor.role
        value = ""
        if tensor.value is not None:
            value = hashlib.sha256(np.ascontiguousarray(tensor.value).tobytes()).hexdigest()[:16]
        return f"{role}{'frozen' if tensor.frozen else ''}{tensor.dtype}{tensor.shape}{value}"

    attributes = [(k, v.tobytes() if isinstance(v, np.ndarray) else v) for k, v in sorted(op.attributes.items())]
    return repr((op.type, op.opset, attributes, [kind(t) for t in op.inputs], [kind(t) for t in op.outputs]))


def _sources(graph: Graph, op: Op, index: dict[str, int]) -> list[tuple[int, int, str]]:
    """For each operand (producer's index; which of its outputs; name).

    The index is `_SOURCE` where nothing that depends on a parameter makes it, and `_FED` for what the graph is fed.
    """
    out = []
    for t in op.inputs:
        producer = graph.producers.get(t)
        if producer is not None:
            out.append((index.get(producer.name, _SOURCE), producer.outputs.index(t), t))
        else:
            fed = bool(t) and graph.tensors[t].role is Role.INPUT
            out.append((_FED if fed else _SOURCE, 0, t))
    return out


def _best(
    signature: Array, sources: Sequence[list[tuple[int, int, str]]], low: int, high: int
) -> tuple[int, int, int] | None:
    """(start, period, count) of the run that covers most of ops[low:high]."""
    window = signature[low:high]
    candidates: list[tuple[int, int, int, int]] = []  # (−coverage bound, period, start, matched length)
    for period in _periods(window):
        same = np.concatenate(([False], window[:-period] == window[period:], [False]))
        edges = np.flatnonzero(same[1:] != same[:-1])
        for a, b in zip(edges[::2], edges[1::2], strict=True):
            if b - a >= period:
                candidates.append((-((b - a) // period + 1) * period, period, int(a), int(b - a)))
    candidates.sort()
    best: tuple[int, int, int] | None = None
    covered = 0
    for bound, period, start, length in candidates:
        if -bound <= covered:
            break
        for s, count in _verified(sources, low + start, period, length):
            if count * period > covered:
                covered = count * period
                best = (_aligned(sources, s, period, count, low + start + length + period), period, count)
    return best


def _periods(window: Array) -> list[int]:
    """Distances between successive operators with the same signature, the only periods there can be."""
    order = np.lexsort((np.arange(len(window)), window))
    ranked = window[order]
    gaps = np.diff(order)[ranked[1:] == ranked[:-1]]
    return [int(p) for p in np.unique(gaps) if MIN_PERIOD <= p <= len(window) // 2]


def _verified(
    sources: Sequence[list[tuple[int, int, str]]], start: int, period: int, length: int
) -> list[tuple[int, int]]:
    """(start, count) of the stretches of a signature-periodic range whose data flow is periodic as well."""
    good = np.array([_corresponds(sources, i, period, start) for i in range(start, start + length)])
    edges = np.flatnonzero(np.diff(np.concatenate(([0], good.astype(np.int8), [0]))))
    return [
        (start + int(a), int(b - a) // period + 1)
        for a, b in zip(edges[::2], edges[1::2], strict=True)
        if b - a >= period
    ]


def _corresponds(sources: Sequence[list[tuple[int, int, str]]], i: int, period: int, start: int) -> bool:
    """Whether operator i + period reads what operator i reads, one block later."""
    for (p, k, t), (q, m, u) in zip(sources[i], sources[i + period], strict=True):
        if _SOURCE in (p, q):
            if p != q:
                return False  # a source for one and a result for the other
        elif p >= start:
            if (q, m) != (p + period, k):
                return False
        elif q >= start + period and t != u:
            return False  # only the first block may read from before the run where others read their predecessor
    return True


def _aligned(sources: Sequence[list[tuple[int, int, str]]], start: int, period: int, count: int, end: int) -> int:
    """Of the possible starts of the run the one whose block boundaries the fewest tensors cross."""
    slack = min((end - start) - count * period, period - 1)
    if slack <= 0:
        return start
    best, least = start, -1
    for s in range(start, start + slack + 1):
        boundary = s + period
        crossing = {
            (p, k)
            for i in range(boundary, min(boundary + period, len(sources)))
            for p, k, _ in sources[i]
            if s <= p < boundary
        }
        if least < 0 or len(crossing) < least:
            best, least = s, len(crossing)
    return best
