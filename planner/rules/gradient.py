"""Gradient operators of ONNX Runtime's training graphs (`com.microsoft`), planned as they stand.

They are forward operators here: nothing differentiates them again.  Gradients of parameters lack the
batch and are pending sums over its split.  All are linear in the incoming gradient.
"""

from __future__ import annotations

import math

from planner.rules.notation import labels
from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, Rule

__all__: list[str] = []


@rule(
    "com.microsoft::FastGeluGrad",
    "com.microsoft::GeluGrad",
    "com.microsoft::LeakyReluGrad",
    "com.microsoft::QuickGeluGrad",
    "com.microsoft::ReluGrad",
    "com.microsoft::SigmoidGrad",
    "com.microsoft::TanhGrad",
)
def _elementwise(o: Operator) -> Rule:
    """dY and the operand or result that the forward saved."""
    return sharded(o, "d..., d... -> d...", linear=[(0,)], flops=10.0 * math.prod(o.result()))


@rule("com.microsoft::SoftmaxGrad", "com.microsoft::SoftmaxGrad_13", "com.microsoft::LogSoftmaxGrad_13")
def _softmax(o: Operator) -> Rule:
    """dY and the softmax; the normalised dimensions stay whole (trailing ones together before version 13)."""
    rank = o.rank(0)
    axes = {o.axis(-1)} if o.type.endswith("_13") else set(range(o.axis(1), rank))
    names = " ".join(f"d{i}{'!' if i in axes else ''}" for i in range(rank))
    return sharded(
        o, f"{names}, {names} -> {names}", kind="normalization", linear=[(0,)], flops=4.0 * math.prod(o.result())
    )


@rule("com.microsoft::LayerNormalizationGrad", "com.microsoft::SimplifiedLayerNormalizationGrad")
def _layer_normalization(o: Operator) -> Rule:
    """dY, X, scale, mean, inverse deviation to dX, dScale, dBias (simplified: neither mean nor dBias)."""
    rank = o.rank(1)
    first = o.axis(-1, rank)
    rows, normalised = labels("d", first), " ".join(f"d{i}!" for i in range(first, rank))
    kept = f"{rows} {' '.join('1' for _ in range(first, rank))}"
    x = f"{rows} {normalised}"
    simplified = o.type.endswith("::SimplifiedLayerNormalizationGrad")
    statistics, parameters = ([kept], [normalised]) if simplified else ([kept] * 2, [normalised] * 2)
    return sharded(
        o,
        f"{', '.join([x, x, normalised, *statistics])} -> {', '.join([x, *parameters])}",
        kind="normalization",
        linear=[(0,)],
        flops=16.0 * math.prod(o.shape(1)),
    )


@rule("com.microsoft::SoftmaxCrossEntropyLossGrad")
def _softmax_cross_entropy(o: Operator) -> Rule:
    """dLoss, log-probabilities, labels, class weights.

    A mean divides by what the labels and weights say of the whole batch, so that the batch stays whole.
    """
    rank = o.rank(1)
    space = labels("d", rank - 2)
    labels_only = o.rank(2) == 1 and rank > 2
    if labels_only:
        raise KeepWholeError("labels and scores are laid out differently")
    reduction = str(o.attribute("reduction", "mean"))
    loss = f"n {space}" if reduction == "none" else ""
    return sharded(
        o,
        f"{loss}, n c! {space}, n {space}, c! -> n c! {space}",
        kind="normalization",
        whole=["n", *space.split()] if reduction == "mean" else [],
        linear=[(0,)],
        flops=4.0 * math.prod(o.result()),
    )


@rule("com.microsoft::GatherGrad")
def _gather(o: Operator) -> Rule:
    """Shape of the table, indices, dY: rows are added up, so that split indices leave a pending sum."""
    table = o.result()
    axis = o.axis(0, len(table))
    before, after = labels("l", axis), labels("r", len(table) - axis - 1)
    indices = labels("i", o.rank(1))
    return sharded(
        o,
        f"-, {indices}, {before} {indices} {after} -> {before} * {after}",
        kind="gather",
        linear=[(2,)],
        flops=float(math.prod(o.shape(2))),
        shape_operand=0,
    )


@rule("com.microsoft::SliceGrad")
def _slice(o: Operator) -> Rule:
    """dY, shape of the operand, and the slice's own operands: zeros around dY."""
    same = [a == b for a, b in zip(o.shape(0), o.result(), strict=True)]
    steps = o.ints(5, "steps")
    if steps and min(steps) < 0:
        raise KeepWholeError("it was sliced backwards")
    names = " ".join(f"d{i}" if s else "*" for i, s in enumerate(same))
    return sharded(o, f"{names}, -, -, -, -, - -> {names}", kind="layout", linear=[(0,)], flops=0.0, shape_operand=1)


@rule("com.microsoft::ConvGrad")
def _conv(o: Operator) -> Rule:
    """dY, X, W to dX (lacks output channels), dW (lacks the batch) and dB (lacks the batch).

    dB does not depend on input channels: ranks that split them all compute it in full.
    """
    weight = o.shape(2)
    wanted = sum(map(o.yields, (0, 1)))
    return sharded(
        o,
        "n (g o) *..., n (g i) *..., (g o) i *... -> n (g i) *..., (g o) i *..., (g o)",
        kind="conv",
        sizes={"g": int(o.attribute("group", 1)), "i": weight[1]},
        combine={"i": Combine.INNER},
        linear=[(0,)],
        flops=2.0 * wanted * math.prod(o.shape(0)) * math.prod(weight[1:]),
        counts={"group": ("g",)},
    )


@rule("MaxPoolGrad", "com.microsoft::MaxPoolGrad")
def _max_pool(o: Operator) -> Rule:
    """dY and indices into the whole tensor, which mean other elements once batch or channels are split."""
    return sharded(o, "*..., *... -> *...", kind="reduction", flops=float(math.prod(o.shape(0))))


@rule("AveragePoolGrad", "com.microsoft::AveragePoolGrad")
def _average_pool(o: Operator) -> Rule:
    return sharded(o, "n c *... -> n c *...", kind="reduction", linear=[(0,)], flops=float(math.prod(o.result())))


@rule("com.microsoft::Scale")
def _scale(o: Operator) -> Rule:
    """dY times or divided by a scalar."""
    return sharded(o, "d..., *... -> d...", linear=[(0,)] if o.attribute("scale_down", 0) else [(0,), (1,)])


@rule("com.microsoft::ReduceSumTraining")
def _reduce_sum(o: Operator) -> Rule:
    rank = o.rank(0)
    axes = {a % rank for a in o.ints(1, "axes") or range(rank)}
    keep = o.attribute("keepdims", 1)
    kept = [("1" if i in axes else f"d{i}") for i in range(rank) if keep or i not in axes]
    return sharded(
        o,
        f"{labels('d', rank)}, - -> {' '.join(kept)}",
        kind="reduction",
        combine={f"d{i}": Combine.SUM for i in axes},
        linear=[(0,)],
        flops=float(math.prod(o.shape(0))),
    )
