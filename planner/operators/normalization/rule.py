"""Normalisations and softmax.

Statistics over a split dimension are reduced inside the operator, one value per row: a softmax reduces a maximum and
a sum, a normalisation the mean and the mean square; backward they need one and two sums.  Results of one value per row
are whole on every rank that holds a part of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, InnerCollective, Rule

__all__ = ["row_sums", "softmax_axes", "statistic_bytes"]


def statistic_bytes(o: Operator) -> int:
    """Statistics are kept in single precision at least."""
    return max(4, o.item_bytes)


def row_sums(
    reduced: Iterable[str], rows: Sequence[str], item_bytes: int, *, forward: int, backward: int
) -> tuple[InnerCollective, ...]:
    """All-reduces of one value per row for every factor that may be split: `forward` of them, and `backward` values
    packed into one."""
    inner: list[InnerCollective] = []
    for f in reduced:
        if forward:
            inner.append(InnerCollective(f, "all_reduce", tuple(rows), item_bytes, count=forward, statistic=True))
        if backward:
            inner.append(
                InnerCollective(f, "all_reduce", tuple(rows), item_bytes * backward, backward=True, statistic=True)
            )
    return tuple(inner)


def _layer(o: Operator, *, parameters: int, statistics: int) -> Rule:
    """X, then `parameters` operands that broadcast against it, to Y and `statistics` of one value per row."""
    rank = o.rank(0)
    first = o.axis(-1, rank)
    names = [f"d{i}" for i in range(rank)]
    x = " ".join(names)
    extra = [" ".join(names[rank - o.rank(i) :]) if o.has(i) else "-" for i in range(1, 1 + parameters)]
    rows = " ".join([*names[:first], *("1" for _ in names[first:])])
    centred = o.type == "LayerNormalization"
    return sharded(
        o,
        f"{', '.join([x, *extra])} -> {', '.join([x, *[rows] * statistics])}",
        kind="normalization",
        combine=dict.fromkeys(names[first:], Combine.INNER),
        differentiable=range(1 + parameters),
        saved=(0, 1),
        saved_results=(1, 2),
        flops=8.0 * math.prod(o.shape(0)),
        backward_flops=16.0 * math.prod(o.shape(0)),
        inner=row_sums(names[first:], names[:first], statistic_bytes(o), forward=1 + centred, backward=1 + centred),
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
    rows = [f"d{i}" for i in range(o.rank(0) - 1)]
    skip = " ".join(rows[o.rank(0) - o.rank(1) :])
    centred = o.type.endswith("::SkipLayerNormalization")
    parameters = "h, h, h" if centred else "h, h"
    positions = " ".join(rows)
    return sharded(
        o,
        f"{positions} h, {skip} h, {parameters} -> {positions} h, {positions} 1, {positions} 1, {positions} h",
        kind="normalization",
        combine={"h": Combine.INNER},
        differentiable=range(len(o.inputs)),
        saved=(0, 1, 2),
        saved_results=(1, 2, 3),
        flops=10.0 * math.prod(o.shape(0)),
        backward_flops=18.0 * math.prod(o.shape(0)),
        inner=row_sums(["h"], rows, statistic_bytes(o), forward=1 + centred, backward=1 + centred),
    )


@rule("BatchNormalization", "com.microsoft::BatchNormInternal")
def _batch_normalization(o: Operator) -> Rule:
    """Inference: affine in data, bias and running mean together.

    In training the statistics of each channel are taken over batch and space: synchronised over the ranks that
    split them, one value per channel.  Older versions than 14 leave open what the running statistics are.
    """
    data = float(math.prod(o.shape(0)))
    internal = o.type.endswith("::BatchNormInternal")
    if internal or o.attribute("training_mode", 0) or any(map(o.yields, range(1, 5))) or _trains_by_age(o):
        space = [f"x{i}" for i in range(o.rank(0) - 2)]
        return sharded(
            o,
            f"n c {' '.join(space)}, c, c, c, c -> n c {' '.join(space)}, c, c, c, c",
            kind="normalization",
            whole=[] if internal or o.opset >= 14 else ["n", *space],
            combine=dict.fromkeys(["n", *space], Combine.INNER),
            differentiable=(0, 1, 2),
            saved=(0, 1),
            flops=8 * data,
            backward_flops=16 * data,
            inner=row_sums(["n", *space], ["c"], statistic_bytes(o), forward=2, backward=2),
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


@rule("com.microsoft::BatchNormalizationGrad")
def _batch_normalization_gradient(o: Operator) -> Rule:
    """dY, X, scale, mean, inverse deviation to dX, dScale, dBias, which are the two sums that dX needs of all ranks."""
    space = [f"x{i}" for i in range(o.rank(1) - 2)]
    x = f"n c {' '.join(space)}"
    return sharded(
        o,
        f"{x}, {x}, c, c, c -> {x}, c, c",
        kind="normalization",
        combine=dict.fromkeys(["n", *space], Combine.INNER),
        linear=[(0,)],
        flops=16.0 * math.prod(o.shape(1)),
        inner=row_sums(["n", *space], ["c"], 2 * statistic_bytes(o), forward=1, backward=0),
    )


@rule("InstanceNormalization")
def _instance_normalization(o: Operator) -> Rule:
    data = float(math.prod(o.shape(0)))
    space = [f"x{i}" for i in range(o.rank(0) - 2)]
    x = f"n c {' '.join(space)}"
    return sharded(
        o,
        f"{x}, c, c -> {x}",
        kind="normalization",
        differentiable=(0, 1, 2),
        saved=(0, 1),
        flops=8 * data,
        backward_flops=16 * data,
        inner=row_sums(space, ["n", "c"], statistic_bytes(o), forward=2, backward=2),
    )


@rule("GroupNormalization", "com.microsoft::GroupNorm")
def _group_normalization(o: Operator) -> Rule:
    """Scale and bias have one value per channel since version 21, one per group before.  ONNX Runtime's own form may
    have channels last."""
    own = o.type.endswith("::GroupNorm")
    counted = "groups" if own else "num_groups"
    space = [f"x{i}" for i in range(o.rank(0) - 2)]
    last = own and bool(o.attribute("channels_last", 1))
    x = " ".join(["n", *space, "(g c)"] if last else ["n", "(g c)", *space])
    per_channel = o.shape(1) == (o.shape(0)[-1 if last else 1],)
    data = float(math.prod(o.shape(0)))
    return sharded(
        o,
        f"{x}, {'(g c), (g c)' if per_channel else 'g, g'} -> {x}",
        kind="normalization",
        sizes={"g": int(o.attribute(counted, 1))},
        differentiable=(0, 1, 2),
        saved=(0, 1),
        flops=8 * data,
        backward_flops=16 * data,
        counts={counted: ("g",)},
        inner=row_sums(["c", *space], ["n", "g"], statistic_bytes(o), forward=2, backward=2),
    )


@rule("LpNormalization")
def _lp_normalization(o: Operator) -> Rule:
    """A rank divides by the norm of the whole row: one sum of powers forward, one of products backward."""
    return _over(o, {o.axis(-1)}, flops=4, forward=1, backward=1)


@rule("MeanVarianceNormalization")
def _mean_variance_normalization(o: Operator) -> Rule:
    rank = o.rank(0)
    return _over(o, {int(a) % rank for a in o.attribute("axes", (0, 2, 3))}, flops=8, forward=2, backward=2)


def softmax_axes(o: Operator, *, matrix: bool, operand: int = 0) -> set[int]:
    """Before version 13 the trailing dimensions from `axis` on are normalised together."""
    rank = o.rank(operand)
    return set(range(o.axis(1, rank), rank)) if matrix else {o.axis(-1, rank)}


@rule("Softmax", "LogSoftmax")
def _softmax(o: Operator) -> Rule:
    """A maximum and a sum per row; backward one sum."""
    return _over(o, softmax_axes(o, matrix=o.opset < 13), flops=12, forward=2, backward=1)


@rule("com.microsoft::BiasSoftmax")
def _bias_softmax(o: Operator) -> Rule:
    """Softmax of X + bias, over all dimensions from `axis` on."""
    rank = o.rank(0)
    axes = softmax_axes(o, matrix=True)
    names = [f"d{i}" for i in range(rank)]
    return sharded(
        o,
        f"{' '.join(names)}, {' '.join(names[rank - o.rank(1) :])} -> {' '.join(names)}",
        kind="normalization",
        differentiable=(0, 1),
        saved_results=(0,),
        flops=13.0 * math.prod(o.result()),
        backward_flops=5.0 * math.prod(o.result()),
        inner=row_sums(
            [names[i] for i in sorted(axes)],
            [n for i, n in enumerate(names) if i not in axes],
            statistic_bytes(o),
            forward=2,
            backward=1,
        ),
    )


@rule("Hardmax")
def _hardmax(o: Operator) -> Rule:
    """Ranks compare the maxima of their parts of a row.  Of dimensions that are flattened into one row the first may be
    split, in whose order the shards follow."""
    axes = sorted(softmax_axes(o, matrix=o.opset < 13))
    first = next((a for a in axes if o.shape(0)[a] > 1), -1)
    names = [f"d{i}{'!' if i in axes and i != first else ''}" for i in range(o.rank(0))]
    rows = tuple(f"d{i}" for i in range(o.rank(0)) if i not in axes)
    return sharded(
        o,
        f"{' '.join(names)} -> {' '.join(names)}",
        kind="normalization",
        inner=[InnerCollective(f"d{first}", "all_gather", rows, o.item_bytes)],
    )


def _over(o: Operator, axes: set[int], *, flops: float, forward: int, backward: int) -> Rule:
    names = [f"d{i}" for i in range(o.rank(0))]
    saved = () if o.type.endswith("oftmax") else (0,)
    reduced, rows = [names[i] for i in sorted(axes)], [f for i, f in enumerate(names) if i not in axes]
    return sharded(
        o,
        f"{' '.join(names)} -> {' '.join(names)}",
        kind="normalization",
        differentiable=(0,),
        saved=saved,
        saved_results=(0,),
        flops=flops * math.prod(o.result()),
        backward_flops=4.0 * math.prod(o.result()),
        inner=row_sums(reduced, rows, statistic_bytes(o), forward=forward, backward=backward),
    )
