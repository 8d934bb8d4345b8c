"""What operators compute, counted by unit of the model: kernels, and results that memory depends on."""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost_models.kernels import Kernel
from planner.frontends.facts.loss import is_loss_of_scores
from planner.ir import Op
from planner.trace.placed import Placed
from planner.trace.totals import WorkloadTotals
from planner.work.fusion import Core
from planner.work.operators import Operator, kernels

__all__ = ["Kernels", "count_core", "count_operator", "kernels_of"]

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


def count_operator(totals: WorkloadTotals, at: Placed, op: Op, made: Kernels | None, core: bool) -> None:
    """The kernels of an operator, where they are wanted, and what the memory of its unit depends on; `core` says that
    it belongs to an attention."""
    part, rule, unit = at.fusion.parts[op.name], at.rule(op), at.unit(op)
    attention = part.role != "idle" and rule.cost.kind == "attention"
    if made is not None:
        totals.add(unit, core or attention, *made)
    if is_loss_of_scores(op.type) and part.role == "fused":
        totals.scores[unit] += at.read(op, 0)
    if part.role == "heavy" and not rule.cost.kind.fuses:
        _count_heavy(totals, at, op, core)


def _count_heavy(totals: WorkloadTotals, at: Placed, op: Op, core: bool) -> None:
    rule, unit = at.rule(op), at.unit(op)
    if rule.cost.kind != "gather" and (rule.cost.kind == "attention" or not core):
        written = sum(at.written(op, j) for j, t in enumerate(op.outputs) if t)
        totals.results[unit] += written * (2 if rule.cost.kind == "attention" else 1)
    right = op.inputs[1] if rule.cost.kind.product and len(op.inputs) > 1 else ""
    if right in at.active and right in at.facts.weights and at.trained(op):
        batch = 1 if rule.cost.kind == "conv" else at.product_batch(op)
        if batch == 1:  # grouped products add to the sum of gradients themselves
            totals.widest[unit][at.root(op.inputs[0])] += round(at.read(op, 1) / at.width)


def count_core(totals: WorkloadTotals, at: Placed, core: Core) -> None:
    """What an attention written out leaves where it runs as one kernel."""
    scores, output = at.graph.op(core.scores), at.graph.op(core.output)
    totals.results[at.unit(scores)] += 2 * at.written(output, 0)
