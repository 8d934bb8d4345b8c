"""Gradient operators of ONNX Runtime's training graphs (`com.microsoft`), planned as they stand.

They are forward operators here: nothing differentiates them again.  Gradients of parameters lack the
batch and are pending sums over its split.  All are linear in the incoming gradient.
"""

from __future__ import annotations

import math

from planner.operators.loss.rule import mean_sums, row_values, score_bytes
from planner.operators.normalization.rule import row_sums, softmax_axes, statistic_bytes
from planner.rules.movement import moving
from planner.rules.moves import moves_of
from planner.rules.notation import labels
from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, Rule

__all__: list[str] = []


@rule(
    "com.microsoft::BiasFastGeluGrad_dX",
    "com.microsoft::BiasGeluGrad_dX",
    "com.microsoft::DropoutGrad",
    "com.microsoft::FastGeluGrad",
    "com.microsoft::GeluGrad",
    "com.microsoft::LeakyReluGrad",
    "com.microsoft::QuickGeluGrad",
    "com.microsoft::ReluGrad",
    "com.microsoft::SigmoidGrad",
    "com.microsoft::TanhGrad",
)
def _elementwise(o: Operator) -> Rule:
    """dY and the operand or result that the forward saved; of fused ones a bias; of dropout mask, ratio, mode."""
    text = "d..., d..., -, - -> d..." if o.type.endswith("::DropoutGrad") else "d..., d..., d... -> d..."
    return sharded(o, text, linear=[(0,)], flops=10.0 * math.prod(o.result()))


@rule(
    "com.microsoft::LogSoftmaxGrad",
    "com.microsoft::LogSoftmaxGrad_13",
    "com.microsoft::SoftmaxGrad",
    "com.microsoft::SoftmaxGrad_13",
)
def _softmax(o: Operator) -> Rule:
    """dY and the softmax: one sum per row where the row is split."""
    axes = softmax_axes(o, matrix=not o.type.endswith("_13"))
    factors = [f"d{i}" for i in range(o.rank(0))]
    reduced, rows = [factors[i] for i in sorted(axes)], [f for i, f in enumerate(factors) if i not in axes]
    names = " ".join(factors)
    return sharded(
        o,
        f"{names}, {names} -> {names}",
        kind="normalization",
        linear=[(0,)],
        flops=4.0 * math.prod(o.result()),
        inner=row_sums(reduced, rows, statistic_bytes(o), forward=1, backward=0),
    )


@rule("com.microsoft::LayerNormalizationGrad", "com.microsoft::SimplifiedLayerNormalizationGrad")
def _layer_normalization(o: Operator) -> Rule:
    """dY, X, scale, mean, inverse deviation to dX, dScale, dBias (simplified: neither mean nor dBias)."""
    rank = o.rank(1)
    first = o.axis(-1, rank)
    rows, normalised = labels("d", first), " ".join(f"d{i}" for i in range(first, rank))
    statistic = f"{rows} {' '.join('1' for _ in range(first, rank))}"
    x = f"{rows} {normalised}"
    simplified = o.type.endswith("::SimplifiedLayerNormalizationGrad")
    statistics, parameters = ([statistic], [normalised]) if simplified else ([statistic] * 2, [normalised] * 2)
    return sharded(
        o,
        f"{', '.join([x, x, normalised, *statistics])} -> {', '.join([x, *parameters])}",
        kind="normalization",
        linear=[(0,)],
        flops=16.0 * math.prod(o.shape(1)),
        inner=row_sums(
            normalised.split(), rows.split(), statistic_bytes(o) * (1 if simplified else 2), forward=1, backward=0
        ),
    )


@rule("com.microsoft::SoftmaxCrossEntropyLossGrad", "com.microsoft::SoftmaxCrossEntropyLossInternalGrad")
def _softmax_cross_entropy(o: Operator) -> Rule:
    """dLoss, log-probabilities, labels, class weights, the label to ignore, what is added to the result.

    A mean divides by the total weight of the whole batch, one reduced scalar; the weight of a label is known to the
    rank that holds its class.
    """
    rank = o.rank(1)
    if o.rank(2) == 1 and rank > 2:
        raise KeepWholeError("labels and scores are laid out differently")
    space = labels("d", rank - 2)
    reduction = str(o.attribute("reduction", "mean"))
    loss = f"n {space}" if reduction == "none" else ""
    rows = ["n", *space.split()]
    size = score_bytes(o)
    total = mean_sums(rows, size, scalars=1) if reduction == "mean" else []
    return sharded(
        o,
        f"{loss}, n c {space}, n {space}, c, -, n c {space} -> n c {space}",
        kind="normalization",
        linear=[(0, 5)],
        flops=4.0 * math.prod(o.result()),
        inner=[*row_values(rows, size, int(o.has(3))), *total],
        aware=["c"],
    )


@rule("com.microsoft::GatherGrad")
def _gather(o: Operator) -> Rule:
    """Shape of the table, indices, dY: rows are added up, so that split indices leave a pending sum; a rank that holds
    part of the table adds up what falls into it."""
    table = o.result()
    axis = o.axis(0, len(table))
    before, after = labels("l", axis), labels("r", len(table) - axis - 1)
    indices = labels("i", o.rank(1))
    return sharded(
        o,
        f"-, {indices}, {before} {indices} {after} -> {before} v {after}",
        kind="gather",
        linear=[(2,)],
        flops=float(math.prod(o.shape(2))),
        shape_operand=0,
        aware=["v"],
    )


@rule("com.microsoft::SliceGrad")
def _slice(o: Operator) -> Rule:
    """dY, shape of the operand, and the slice's own operands: zeros around dY."""
    return moving(o, moves_of(o), differentiable=False, shape_operand=1)


@rule("com.microsoft::Scale")
def _scale(o: Operator) -> Rule:
    """dY times or divided by a scalar."""
    return sharded(o, "d..., *... -> d...", linear=[(0,)] if o.attribute("scale_down", 0) else [(0,), (1,)])


@rule("com.microsoft::ReduceSumTraining")
def _reduce_sum(o: Operator) -> Rule:
    rank = o.rank(0)
    axes = {a % rank for a in o.ints(1, "axes") or range(rank)}
    keep = o.attribute("keepdims", 1)
    dims = [("1" if i in axes else f"d{i}") for i in range(rank) if keep or i not in axes]
    return sharded(
        o,
        f"{labels('d', rank)}, - -> {' '.join(dims)}",
        kind="reduction",
        combine={f"d{i}": Combine.SUM for i in axes},
        linear=[(0,)],
        flops=float(math.prod(o.shape(0))),
    )
