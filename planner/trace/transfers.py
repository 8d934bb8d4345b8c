"""What ranks exchange: redistributions of activations, those of parameters, collectives inside operators."""

from __future__ import annotations

from collections.abc import Collection

from planner.cost_models.kernels import Kernel
from planner.ir import Layout
from planner.lowering import Redistribute
from planner.redistribute.steps import FREE, StepKind
from planner.trace.exchanges import weight_moves
from planner.trace.passes import passes
from planner.trace.placed import Placed
from planner.trace.totals import Phase, WorkloadTotals
from planner.trace.workload import TracedCollective
from planner.work.activity import saved_slots

__all__ = ["count_inner", "count_redistributions"]


def count_redistributions(totals: WorkloadTotals, at: Placed, *, gathered_again: bool) -> None:
    """Counts every redistribution between operators, and of parameters.

    `gathered_again`: what an operator's backward pass reads of a gathered operand is kept as it was before, and
    gathered once more (Korthikanti et al. 2022); else the gathered operand is kept.
    """
    for move in weight_moves(at.program, at.facts):
        totals.exchanges.add(move, move.steps)
    seen: dict[tuple[str, str, bool], list[Redistribute]] = {}  # not a set of them: hashing layouts takes long
    for i, again in passes(at.program):
        if not isinstance(i, Redistribute) or i.tensor in at.facts.weights or all(s.kind in FREE for s in i.steps):
            continue
        if again:
            if not gathered_again:
                _transfer(totals, at, i, gathered_again, again=True)
        elif i not in (before := seen.setdefault((i.tensor, i.reader, i.gradient), [])):
            before.append(i)
            _transfer(totals, at, i, gathered_again)


def _transfer(
    totals: WorkloadTotals, at: Placed, c: Redistribute, gathered_again: bool, *, again: bool = False
) -> None:
    producer = at.graph.producers.get(c.tensor)
    readers = [(op, i) for op, i in at.graph.consumers.get(c.tensor, ()) if not c.reader or op.name == c.reader]
    reading = [op for op, _ in readers]
    # A sum is carried out where it arises, forward and backward; all else is brought where it is read.
    of_readers = not c.source.partial if not c.gradient else bool(c.source.partial)
    if producer is None or (of_readers and reading):
        unit = min(map(at.unit, reading))
    else:
        unit = at.unit(producer)
    whole = at.bytes(c.tensor)
    phase: Phase = "again" if again else "backward" if c.gradient else "forward"
    near = [*reading, *([] if producer is None else [producer])]
    products = any(at.rule(op).cost.kind.product for op in (near if c.gradient else reading))
    for s in c.steps:
        if s.kind not in FREE:
            gathers = products and s.kind == StepKind.ALL_GATHER
            totals.send(
                phase, unit, TracedCollective(str(s.kind), s.axes, s.group_bytes(whole, at.mesh), of_products=gathers)
            )
    if producer is not None:
        part = at.fusion.parts.get(producer.name)
        if part is not None and producer.outputs.index(c.tensor) in part.inside:
            copies = [_copied(whole, x, at) for x in (c.source, c.target)]
            if again:
                totals.again[unit].update(copies)
            else:
                totals.add(unit, False, *(([], copies) if c.gradient else (copies, [])))
    if gathered_again and not c.gradient and c.tensor in at.active:
        saved = any(
            i in saved_slots(op, at.rule(op), at.active) and at.strategy(op).operands[i] == c.target
            for op, i in readers
        )
        for s in c.steps if saved else ():
            if s.kind == StepKind.ALL_GATHER and not s.source.partial:
                size = s.group_bytes(whole, at.mesh)
                totals.send("backward", unit, TracedCollective(str(s.kind), s.axes, size, True, products))


def _copied(whole: int, layout: Layout, at: Placed) -> Kernel:
    """A tensor that lies inside a kernel is written for a redistribution, or read from one."""
    return Kernel("copy", 0.0, whole / layout.shards(at.mesh), 1.0, 1.0, 1.0, 1.0, 0)


def count_inner(totals: WorkloadTotals, at: Placed, again: Collection[str]) -> None:
    """Counts collectives inside operators, of which those `again` run twice."""
    for op in at.graph.ops:
        if op.name in at.facts.fixed:
            continue
        for x in at.strategy(op).inner:
            if x.backward and not at.trained(op):
                continue
            ranks = 1 if x.kind in ("all_reduce", "permute") else at.mesh.size(x.axes)
            transfer = TracedCollective(
                x.kind, x.axes, float(at.settings.payload_bytes(x) * ranks), x.kind == "permute"
            )
            if at.rule(op).cost.kind == "attention" and not x.backward:
                totals.send("core", at.unit(op), transfer, x.count)
            totals.send("backward" if x.backward else "forward", at.unit(op), transfer, x.count)
            if op.name in again and not x.backward:
                totals.send("again", at.unit(op), transfer, x.count)
