"""What operators compute and keep, counted by unit of the model: kernels, activations for the backward pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cost_models.kernels import Kernel
from planner.evaluate.axis import LOSSES
from planner.evaluate.local import Local
from planner.evaluate.tally import Tally
from planner.ir import Op
from planner.work.activity import saved_slots
from planner.work.fusion import HEAVY, Core, Fusion
from planner.work.operators import Operator, kernels

__all__ = ["count_core", "count_materialised", "count_operator", "count_region"]


def count_operator(tally: Tally, at: Local, fusion: Fusion, op: Op, core: bool) -> None:
    """The kernels of an operator; `core` says that it belongs to an attention."""
    part, rule = fusion.parts[op.name], at.rule(op)
    seen = Operator(rule, part, [at.bytes(t) for t in op.inputs], [at.bytes(t) for t in op.outputs], at.width)
    unit = at.unit(op)
    attention = part.role != "idle" and rule.kind == "attention"
    tally.add(unit, core or attention, *kernels(seen, at.shards_of(op)))
    if op.type in LOSSES and part.role == "fused":
        tally.scores[unit] += at.read(op, 0)
    if part.role == "heavy" and rule.kind in HEAVY:
        _count_heavy(tally, at, op, core)


def _count_heavy(tally: Tally, at: Local, op: Op, core: bool) -> None:
    rule, unit, active = at.rule(op), at.unit(op), at.model.active
    written = sum(at.written(op, j) for j, t in enumerate(op.outputs) if t)
    if rule.kind == "attention":
        tally.results[unit] += 2 * written
    elif rule.kind != "gather" and not core:
        tally.results[unit] += written
    tally.pass_through(unit, written)
    if not at.trained(op):
        return
    if rule.kind in ("matmul", "conv") and len(op.inputs) > 1 and op.inputs[1] in active & at.model.weights:
        batch = 1 if rule.kind == "conv" else at.product_batch(op)
        if batch == 1:  # grouped products add to the sum of gradients themselves
            tally.widest[unit][at.root(op.inputs[0])] += round(at.read(op, 1) / at.width)
    for i in saved_slots(op, rule, active):
        if i < len(op.inputs) and op.inputs[i]:
            tally.save(at, unit, op.inputs[i], core and rule.kind != "attention" and _normalised(at, op, i))
    for j in rule.saved_results:
        if j < len(op.outputs) and op.outputs[j]:
            tally.save(at, unit, op.outputs[j], False)


def _normalised(at: Local, op: Op, i: int) -> bool:
    """Whether operand i is what softmax leaves: made inside the core, and again when the core is computed again."""
    producer = at.graph.producers.get(at.root(op.inputs[i]))
    return producer is not None and at.rule(producer).kind == "normalization"


def count_core(tally: Tally, at: Local, fusion: Fusion, core: Core) -> None:
    """What an attention written out keeps where it runs as one kernel."""
    scores, output = at.graph.op(core.scores), at.graph.op(core.output)
    unit = at.unit(scores)
    tally.results[unit] += 2 * at.written(output, 0)
    if at.trained(output):
        for op in (scores, output):
            for i in fusion.parts[op.name].reads:
                tally.save(at, unit, op.inputs[i], False)
        tally.save(at, unit, output.outputs[0], False)


def count_region(tally: Tally, at: Local, fusion: Fusion, number: int, core: bool) -> None:
    """What a chain of operators that run as one kernel keeps for its backward pass."""
    unit = at.unit(fusion.members[number][0])
    for k in fusion.kept[number]:
        op = at.graph.op(k.op)
        size = at.written(op, k.place) if k.result else at.read(op, k.place)
        tally.save(at, unit, k.tensor, core and k.made, size)


def count_materialised(tally: Tally, at: Local, fusion: Fusion, delivered: Mapping[str, Collection[str]]) -> None:
    """What a transfer takes out of a kernel and brings back into it is written and read, and so is its gradient.
    `delivered`: by operator, the operands that a transfer stands before."""
    for name, tensors in delivered.items():
        op = at.graph.op(name)
        for t in tensors:
            producer = at.graph.producers.get(t)
            part = None if producer is None else fusion.parts.get(producer.name)
            if producer is None or part is None or producer.outputs.index(t) not in part.inside:
                continue
            moved = at.resting(t) + at.read(op, op.inputs.index(t))
            once = Kernel("layout", 0.0, moved, 1.0, 1.0, 1.0, 1.0)
            tally.add(at.unit(op), False, [once], [once] * (t in at.model.active))
