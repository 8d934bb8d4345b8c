"""What operators compute and keep, counted by unit of the model: kernels, activations for the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cost_models.kernels import Kernel
from planner.ir import Op
from planner.trace.placed import Placed
from planner.trace.tally import Tally
from planner.work.activity import saved_slots
from planner.work.fusion import HEAVY, Core
from planner.work.operators import Operator, kernels

__all__ = ["LOSSES", "count_core", "count_operator", "count_region", "kernels_of"]

LOSSES: Final = frozenset({"SoftmaxCrossEntropyLoss", "com.microsoft::SoftmaxCrossEntropyLossInternal"})
Kernels = tuple[Sequence[Kernel], Sequence[Kernel]]


def kernels_of(at: Placed) -> dict[str, Kernels]:
    """By operator, those forward and backward; operators of one rule, part and strategy have the same."""
    found: dict[object, Kernels] = {}
    out = {}
    for op in at.graph.ops:
        part = at.fusion.parts.get(op.name)
        if part is None:
            continue
        rule = at.rule(op)
        key = (id(rule), part, id(at.strategy(op)))
        if key not in found:
            sizes = [at.bytes(t) for t in op.inputs], [at.bytes(t) for t in op.outputs]
            found[key] = kernels(Operator(rule, part, *sizes, at.width), at.shares(op))
        out[op.name] = found[key]
    return out


def count_operator(tally: Tally, at: Placed, op: Op, made: Kernels, core: bool) -> None:
    """The kernels of an operator; `core` says that it belongs to an attention."""
    part, rule, unit = at.fusion.parts[op.name], at.rule(op), at.unit(op)
    attention = part.role != "idle" and rule.kind == "attention"
    tally.add(unit, core or attention, *made)
    if op.type in LOSSES and part.role == "fused":
        tally.scores[unit] += at.read(op, 0)
    if part.role == "heavy" and rule.kind in HEAVY:
        _count_heavy(tally, at, op, core)


def _count_heavy(tally: Tally, at: Placed, op: Op, core: bool) -> None:
    rule, unit, active = at.rule(op), at.unit(op), at.active
    written = sum(at.written(op, j) for j, t in enumerate(op.outputs) if t)
    if rule.kind == "attention":
        tally.results[unit] += 2 * written
    elif rule.kind != "gather" and not core:
        tally.results[unit] += written
    tally.pass_through(unit, written)
    if not at.trained(op):
        return
    if rule.kind in ("matmul", "conv") and len(op.inputs) > 1 and op.inputs[1] in active & at.facts.weights:
        batch = 1 if rule.kind == "conv" else at.product_batch(op)
        if batch == 1:  # grouped products add to the sum of gradients themselves
            tally.widest[unit][at.root(op.inputs[0])] += round(at.read(op, 1) / at.width)
    for i in saved_slots(op, rule, active):
        if i < len(op.inputs) and op.inputs[i]:
            tally.save(at, unit, op.inputs[i], core and rule.kind != "attention" and _normalised(at, op, i))
    for j in rule.saved_results:
        if j < len(op.outputs) and op.outputs[j]:
            tally.save(at, unit, op.outputs[j], False)


def _normalised(at: Placed, op: Op, i: int) -> bool:
    """Whether operand i is what softmax leaves: made inside the core, and again when the core is computed again."""
    producer = at.graph.producers.get(at.root(op.inputs[i]))
    return producer is not None and at.rule(producer).kind == "normalization"


def count_core(tally: Tally, at: Placed, core: Core) -> None:
    """What an attention written out keeps where it runs as one kernel."""
    scores, output = at.graph.op(core.scores), at.graph.op(core.output)
    unit = at.unit(scores)
    tally.results[unit] += 2 * at.written(output, 0)
    if at.trained(output):
        for op in (scores, output):
            for i in at.fusion.parts[op.name].reads:
                tally.save(at, unit, op.inputs[i], False)
        tally.save(at, unit, output.outputs[0], False)


def count_region(tally: Tally, at: Placed, number: int, core: bool) -> None:
    """What a chain of operators that run as one kernel keeps for its backward pass."""
    unit = at.unit(at.fusion.members[number][0])
    for k in at.fusion.kept[number]:
        op = at.graph.op(k.op)
        size = at.written(op, k.place) if k.result else at.read(op, k.place)
        tally.save(at, unit, k.tensor, core and k.made, size)
