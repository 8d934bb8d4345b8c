"""Normalisations and softmax: whatever statistics are taken over stays whole."""

from __future__ import annotations

import math
from collections.abc import Collection

from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Rule

__all__: list[str] = []


def _names(rank: int, whole: Collection[int]) -> list[str]:
    return [f"d{i}{'!' if i in whole else ''}" for i in range(rank)]


def _layer(o: Operator, *, parameters: int, statistics: int, operand: int = 0) -> Rule:
    """X, then `parameters` operands that broadcast against it, to Y and `statistics` of one value per row."""
    rank = o.rank(operand)
    first = o.axis(-1, rank)
    names = _names(rank, range(first, rank))
    x = " ".join(names)
    extra = [" ".join(names[rank - o.rank(i) :]) if o.has(i) else "-" for i in range(1, 1 + parameters)]
    rows = " ".join([*names[:first], *("1" for _ in names[first:])])
    return sharded(
        o,
        f"{', '.join([x, *extra])} -> {', '.join([x, *[rows] * statistics])}",
        kind="normalization",
        differentiable=range(1 + parameters),
        saved=(0, 1),
        saved_results=(1, 2),
        flops=8.0 * math.prod(o.shape(0)),
        backward_flops=16.0 * math.prod(o.shape(0)),
    )


@rule("LayerNormalization")
def _layer_normalization(o: Operator) -> Rule:
    """Mean and inverse deviation of each row are results two and three; training reads them back."""
    return _layer(o, parameters=2, statistics=2)


@rule("RMSNormalization", "SimplifiedLayerNormalization", "com.microsoft::SimplifiedLayerNormalization")
def _rms_normalization(o: Operator) -> Rule:
    return _layer(o, parameters=1, statistics=1)


@rule("com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization")
def _skip_layer_normalization(o: Operator) -> Rule:
    """norm(X + skip + bias); the fourth result is the sum."""
    rows = " ".join(f"d{i}" for i in range(o.rank(0) - 1))
    skip = " ".join(rows.split()[o.rank(0) - o.rank(1) :])
    parameters = "h!, h!, h!" if o.type.endswith("::SkipLayerNormalization") else "h!, h!"
    return sharded(
        o,
        f"{rows} h!, {skip} h!, {parameters} -> {rows} h!, {rows} 1, {rows} 1, {rows} h!",
        kind="normalization",
        differentiable=range(len(o.inputs)),
        saved=(0, 1, 2),
        saved_results=(1, 2, 3),
        flops=10.0 * math.prod(o.shape(0)),
        backward_flops=18.0 * math.prod(o.shape(0)),
    )


@rule("BatchNormalization")
def _batch_normalization(o: Operator) -> Rule:
    """Inference: affine in data, bias and running mean together.

    In training the statistics are taken over batch and space, which stay whole.
    """
    data = float(math.prod(o.shape(0)))
    if o.attribute("training_mode", 0) or any(map(o.yields, range(1, 5))) or _trains_by_age(o):
        text = "n! c x...!, c, c, c, c -> n! c x...!, c, c, c, c"
        return sharded(
            o,
            text,
            kind="normalization",
            differentiable=(0, 1, 2),
            saved=(0, 1),
            flops=8 * data,
            backward_flops=16 * data,
        )
    return sharded(
        o,
        "n c x..., c, c, c, c -> n c x...",
        kind="normalization",
        linear=[(0, 2, 3)],
        differentiable=range(5),
        saved=(0, 1, 3, 4),
        flops=2 * data,
        backward_flops=4 * data,
    )


def _trains_by_age(o: Operator) -> bool:
    return o.opset < 7 and not o.attribute("is_test", 0)


@rule("InstanceNormalization")
def _instance_normalization(o: Operator) -> Rule:
    data = float(math.prod(o.shape(0)))
    return sharded(
        o,
        "n c x...!, c, c -> n c x...!",
        kind="normalization",
        differentiable=(0, 1, 2),
        saved=(0, 1),
        flops=8 * data,
        backward_flops=16 * data,
    )


@rule("GroupNormalization")
def _group_normalization(o: Operator) -> Rule:
    """Scale and bias have one value per channel since version 21, one per group before."""
    groups = int(o.attribute("num_groups", 1))
    parameter = "(g c!)" if o.shape(1) == (o.shape(0)[1],) else "g"
    data = float(math.prod(o.shape(0)))
    return sharded(
        o,
        f"n (g c!) x...!, {parameter}, {parameter} -> n (g c!) x...!",
        kind="normalization",
        sizes={"g": groups},
        differentiable=(0, 1, 2),
        saved=(0, 1),
        flops=8 * data,
        backward_flops=16 * data,
        counts={"num_groups": ("g",)},
    )


@rule("LpNormalization")
def _lp_normalization(o: Operator) -> Rule:
    return _over(o, {o.axis(-1)}, flops=4)


@rule("MeanVarianceNormalization")
def _mean_variance_normalization(o: Operator) -> Rule:
    rank = o.rank(0)
    return _over(o, {int(a) % rank for a in o.attribute("axes", (0, 2, 3))}, flops=8)


@rule("Softmax", "LogSoftmax")
def _softmax(o: Operator) -> Rule:
    """Before version 13 the trailing dimensions from `axis` on are normalised together."""
    rank = o.rank(0)
    axes = {o.axis(-1)} if o.opset >= 13 else set(range(o.axis(1), rank))
    return _over(o, axes, flops=12)


@rule("Hardmax")
def _hardmax(o: Operator) -> Rule:
    rank = o.rank(0)
    axes = {o.axis(-1)} if o.opset >= 13 else set(range(o.axis(1), rank))
    names = " ".join(_names(rank, axes))
    return sharded(o, f"{names} -> {names}", kind="normalization")


def _over(o: Operator, axes: set[int], *, flops: float) -> Rule:
    names = " ".join(_names(o.rank(0), axes))
    saved = () if o.type.endswith("oftmax") else (0,)
    return sharded(
        o,
        f"{names} -> {names}",
        kind="normalization",
        differentiable=(0,),
        saved=saved,
        saved_results=(0,),
        flops=flops * math.prod(o.result()),
        backward_flops=4.0 * math.prod(o.result()),
    )
