"""Products, convolutions, attention and lookups: one kernel forward, one or two backward."""

from __future__ import annotations

from typing import Final

from planner.evaluate.fusion import Core, Regions
from planner.evaluate.local import Local
from planner.evaluate.tally import Tally
from planner.evaluate.workload import Kernel, KernelKind
from planner.ir import Op
from planner.pricing.activity import saved_slots

__all__ = ["HEAVY", "count_core", "count_heavy"]

HEAVY: Final = frozenset({"matmul", "conv", "attention", "gather"})
CAUSAL_SHARE: Final = 0.5  # of the scores, the part that a causal mask leaves
# Forward: scores and weighted sum.  Backward: scores again and a gradient of each operand of both (FlashAttention 2,
# Dao 2023, section 4.1).
BACKWARD_SHARE: Final = 2.5


def count_heavy(tally: Tally, at: Local, op: Op, core: bool) -> None:
    """An operator that is a kernel by itself; `core` says that it belongs to an attention written out."""
    if all(t in at.model.weights for t in op.inputs if t):
        return
    rule, unit, trained = at.rule(op), at.unit(op), at.trained(op)
    moved = sum(at.read(op, i) for i, t in enumerate(op.inputs) if t)
    written = sum(at.written(op, j) for j, t in enumerate(op.outputs) if t)
    if rule.kind == "gather":
        # A row is read and written; backward its gradient is read and added to the table's.
        tally.add(unit, core, Kernel("gather", 0.0, 2 * written), [Kernel("gather", 0.0, 3 * written)] * trained)
    elif rule.kind == "attention":
        share = CAUSAL_SHARE if op.attributes.get("is_causal") else 1.0
        traffic, dims = moved + written, at.attention(op)
        back = Kernel("attention_backward", rule.backward_flops / at.shards(op) * share, 2 * traffic, *dims)
        tally.add(unit, True, Kernel("attention", at.flops(op) * share, traffic, *dims), [back] * trained)
        tally.results[unit] += 2 * written
    else:
        _count_product(tally, at, op, core, moved + written)
        tally.results[unit] += 0.0 if core else written
    tally.pass_through(unit, written)
    if trained:
        for i in saved_slots(op, rule, at.model.active):
            if i < len(op.inputs) and op.inputs[i]:
                tally.save(at, unit, op.inputs[i], core and rule.kind != "attention" and _normalised(at, op, i))
        for j in rule.saved_results:
            if j < len(op.outputs) and op.outputs[j]:
                tally.save(at, unit, op.outputs[j], False)


def _count_product(tally: Tally, at: Local, op: Op, core: bool, traffic: float) -> None:
    """A gradient for each of the first two operands that has one costs what the product costs."""
    unit, flops, active = at.unit(op), at.flops(op), at.model.active
    b, m, n, k = at.product(op, flops)
    kind: KernelKind = "product" if at.rule(op).kind == "matmul" else "convolution"
    back: list[Kernel] = []
    if at.trained(op):
        if op.inputs[0] in active:
            back.append(Kernel(kind, flops, traffic, b, m, k, n))
        if len(op.inputs) > 1 and op.inputs[1] in active:
            back.append(Kernel(kind, flops, traffic, b, k, n, m))
            if op.inputs[1] in at.model.weights:
                tally.of_weights[unit][back[-1]] += 1
                if b == 1:  # grouped products add to the sum of gradients themselves
                    tally.widest[unit][at.root(op.inputs[0])] += round(at.read(op, 1) / at.width)
    tally.add(unit, core, Kernel(kind, flops, traffic, b, m, n, k), back)


def _normalised(at: Local, op: Op, i: int) -> bool:
    """Whether operand i is what softmax leaves: made inside the core, and again when the core is computed again."""
    producer = at.graph.producers.get(at.root(op.inputs[i]))
    return producer is not None and at.rule(producer).kind == "normalization"


def count_core(tally: Tally, at: Local, core: Core, regions: Regions) -> None:
    """Attention written out in operators, run as one kernel that keeps no scores."""
    scores, output = at.graph.op(core.scores), at.graph.op(core.output)
    unit = at.unit(scores)
    flops = sum(at.flops(op) for op in (scores, output))
    inside = {t for r in core.regions for op in regions.members[r] for t in op.outputs} | set(scores.outputs)
    reads = [(scores, 0), (scores, 1)] + [(output, i) for i, t in enumerate(output.inputs) if t not in inside]
    moved = sum(at.read(op, i) for op, i in reads) + at.written(output, 0)
    share = CAUSAL_SHARE if _masked(at, core, regions) else 1.0
    dims = at.product(scores, flops / 2)
    back = [Kernel("attention_backward", BACKWARD_SHARE * flops * share, 2 * moved, *dims)] * at.trained(output)
    tally.add(unit, True, Kernel("attention", flops * share, moved, *dims), back)
    tally.results[unit] += 2 * at.written(output, 0)
    if at.trained(output):
        for op, i in reads:
            tally.save(at, unit, op.inputs[i], False)
        tally.save(at, unit, output.outputs[0], False)


def _masked(at: Local, core: Core, regions: Regions) -> bool:
    """A fixed square mask is taken for a causal one."""
    members = (op for r in core.regions for op in regions.members[r])
    for t in (t for op in members for t in op.inputs if t and (at.is_fixed(t) or at.is_constant(t))):
        shape = at.graph.tensors[t].shape or ()
        if len(shape) >= 2 and shape[-1] == shape[-2] > 1:
            return True
    return False
