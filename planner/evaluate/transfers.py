"""What ranks exchange along the traced axes: conversions between layouts, and collectives inside operators."""

from __future__ import annotations

from collections import defaultdict
from typing import cast

from planner.evaluate.axis import PARTIAL, WHOLE, Along
from planner.evaluate.local import Local
from planner.evaluate.tally import Phase, Tally
from planner.evaluate.workload import Axis, TransferKind
from planner.ir import Op
from planner.work.activity import saved_slots

__all__ = ["count_transfers"]

Barriers = dict[str, set[str]]


def count_transfers(tally: Tally, at: Local) -> Barriers:
    """Counts every transfer; returns, for operators that a transfer stands before, the operands it delivers."""
    barriers: Barriers = defaultdict(set)
    for axis, along in at.axes.items():
        _inner(tally, at, axis, along)
        for t in along.rest:
            if t not in at.model.weights and not at.is_fixed(t):
                _sum(tally, at, axis, along, t, barriers)
                _convert(tally, at, axis, along, t, barriers)
    return barriers


def _sum(tally: Tally, at: Local, axis: Axis, along: Along, t: str, barriers: Barriers) -> None:
    """A pending sum, carried out where it arises."""
    producer = at.graph.producers.get(t)
    if along.written.get(t) != PARTIAL or producer is None:
        return
    unit, whole = at.unit(producer), at.resting(t, but=axis)
    if along.rest[t] == WHOLE:
        tally.send("forward", unit, "all_reduce", axis, whole)
    else:
        tally.send("forward", unit, "reduce_scatter", axis, whole)
        if t in at.model.active:
            tally.send("backward", unit, "all_gather", axis, whole)
    for op, _ in at.graph.consumers.get(t, ()):
        barriers[op.name].add(t)


def _convert(tally: Tally, at: Local, axis: Axis, along: Along, t: str, barriers: Barriers) -> None:
    """What readers need that differs from how the tensor rests: once for all that need the same."""
    rest, whole, carries = along.rest[t], at.resting(t, but=axis), t in at.model.active
    readings: dict[int, list[tuple[Op, int]]] = defaultdict(list)
    for op, i in at.graph.consumers.get(t, ()):
        code = along.choices[op.name].operands[i]
        if op.name not in at.model.fixed and code is not None:
            readings[code].append((op, i))
    for code, readers in readings.items():
        unit = min(at.unit(op) for op, _ in readers)
        summed = carries and any(along.choices[op.name].operand_gradients[i] == PARTIAL for op, i in readers)
        if code == rest:
            if rest == WHOLE and summed:
                tally.send("backward", unit, "all_reduce", axis, whole)
            continue
        if rest == WHOLE:  # every rank reads a part of what it holds; the gradient comes back in parts
            if carries:
                tally.send("backward", unit, "all_gather", axis, whole)
            continue
        for op, _ in readers:
            barriers[op.name].add(t)
        if code != WHOLE:
            tally.send("forward", unit, "all_to_all", axis, whole)
            if carries:
                tally.send("backward", unit, "all_to_all", axis, whole)
            continue
        tally.send("forward", unit, "all_gather", axis, whole)
        if summed:
            tally.send("backward", unit, "reduce_scatter", axis, whole)
        # The input is kept divided and gathered again for the gradient of the weight.
        if carries and any(i in saved_slots(op, at.rule(op), at.model.active) for op, i in readers):
            tally.send("backward", unit, "all_gather", axis, whole, hidden=True)


def _inner(tally: Tally, at: Local, axis: Axis, along: Along) -> None:
    for op in at.graph.ops:
        choice = along.choices[op.name]
        if not choice.inner or op.name in at.model.fixed:
            continue
        others = at.shards(op) // choice.parallelism
        for x in choice.inner:
            if x.backward and not at.trained(op):
                continue
            kind = cast(TransferKind, x.kind)
            width = x.item_bytes if x.statistic else min(x.item_bytes, int(at.width) * max(1, x.item_bytes // 4))
            gathered = along.size if kind in ("all_gather", "all_to_all") else 1
            size = x.elements * width * gathered / others
            phase: Phase = "backward" if x.backward else "forward"
            if at.rule(op).kind == "attention" and not x.backward:
                tally.send("core", at.unit(op), kind, axis, size, hidden=kind == "permute", times=x.count)
            tally.send(phase, at.unit(op), kind, axis, size, hidden=kind == "permute", times=x.count)
