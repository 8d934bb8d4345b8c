"""Normalisations while the dimensions that they are taken over are split: their sums are all-reduced.

The rules (`rule.py`) declare the same collectives: per split factor the mean and the mean square of each row, one after
the other so that nothing cancels; backward one or two sums, packed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, normalise_axis
from planner.kernels.gradients import unbroadcast
from planner.kernels.precision import widen
from planner.kernels.split import kernel
from planner.kernels.spmd import Collective, Coroutine, Received, ShardContext, all_reduce
from planner.operators.elementwise.gradient import sigmoid

__all__ = ["Operands", "Reduction", "reduced_factors", "total"]

Operands = Sequence["Array | None"]
Reduction = Generator[Collective, Received, Array]
Axes = tuple[int, ...]


def reduced_factors(place: ShardContext) -> tuple[str, ...]:
    """The split factors over which the operator reduces, in the order of its rule."""
    assert place.rule is not None
    communicates = {c.factor for c in place.rule.inner}
    return tuple(f for f in (*place.rule.factors, *place.rule.modes) if f in communicates and place.splits(f))


def total(value: Array, place: ShardContext, reduction: str = "sum") -> Reduction:
    """`value` reduced over all factors that the operator reduces over."""
    for factor in reduced_factors(place):
        value = yield from all_reduce(value, reduction, factor)
    return value


@dataclass(frozen=True, slots=True)
class _Rows:
    """A normalisation seen as one over `axes` of `x`; `scale` and `bias` broadcast against `x`.

    `restore` gives a result its own shape; `centred` is False for root mean squares; `silu` follows where it is fused.
    """

    x: Array
    axes: Axes
    scale: Array | None
    bias: Array | None
    epsilon: float
    centred: bool = True
    silu: bool = False
    outside: float = 0.0  # added to the deviation, where ε is added to the variance
    restore: Callable[[Array], Array] = np.asarray

    def count(self, place: ShardContext) -> int:
        """Elements of a row of the whole."""
        local = math.prod(self.x.shape[a] for a in self.axes)
        return local * math.prod(place.shards[f] for f in reduced_factors(place))


@dataclass(frozen=True, slots=True)
class _Moments:
    mean: Array
    inverse: Array  # 1/√(variance + ε), or 1/(√variance + ε)
    centred: Array
    variance: Array | None = None  # of the forward alone


def _moments(rows: _Rows, place: ShardContext) -> Generator[Collective, Received, _Moments]:
    """Two passes, so that nothing cancels: the mean, then the mean square of what is left."""
    n = rows.count(place)
    mean = np.zeros((), dtype=rows.x.dtype)
    if rows.centred:
        mean = (yield from total(rows.x.sum(axis=rows.axes, keepdims=True), place)) / n
    centred = rows.x - mean
    squares = yield from total(np.square(centred).sum(axis=rows.axes, keepdims=True), place)
    variance = np.asarray(squares / n, dtype=rows.x.dtype)
    inverse = np.asarray(1 / (np.sqrt(variance + rows.epsilon) + rows.outside), dtype=rows.x.dtype)
    return _Moments(np.asarray(mean, dtype=rows.x.dtype), inverse, centred, variance)


def _normalised(rows: _Rows, m: _Moments) -> Array:
    y = m.centred * m.inverse
    y = y if rows.scale is None else y * rows.scale
    return y if rows.bias is None else y + rows.bias


def _activated(rows: _Rows, y: Array) -> Array:
    return y * sigmoid(y) if rows.silu else y


def _back(rows: _Rows, m: _Moments, dy: Array, place: ShardContext) -> Reduction:
    """dX of a normalisation: dx̂ less its mean and less its part along x̂, over the deviation."""
    g = dy if rows.scale is None else dy * rows.scale
    unit = m.centred * m.inverse
    sums = [np.sum(g * unit, axis=rows.axes, keepdims=True)]
    if rows.centred:
        sums.append(np.sum(g, axis=rows.axes, keepdims=True))
    means = (yield from total(np.stack(sums), place)) / rows.count(place)
    along = unit * means[0]
    return np.asarray(m.inverse * (g - along - (means[1] if rows.centred else 0)))


def _float(inputs: Operands, index: int) -> Array | None:
    return widen(inputs[index]) if index < len(inputs) and inputs[index] is not None else None


def _layer_rows(op: Op, inputs: Operands) -> _Rows:
    x = widen(inputs[0])
    first = normalise_axis(op.attributes.get("axis", -1), x.ndim)
    plain = op.type == "LayerNormalization"
    return _Rows(
        x,
        tuple(range(first, x.ndim)),
        _float(inputs, 1),
        _float(inputs, 2) if plain else None,
        float(op.attributes.get("epsilon", 1e-5)),
        centred=plain,
    )


def _skip_rows(op: Op, inputs: Operands) -> _Rows:
    simplified = "Simplified" in op.type
    at = 3 if simplified else 4
    x = widen(inputs[0]) + widen(inputs[1])
    bias = _float(inputs, at)
    return _Rows(
        x if bias is None else x + bias,
        (x.ndim - 1,),
        _float(inputs, 2),
        None if simplified else _float(inputs, 3),
        float(op.attributes.get("epsilon", 1e-12)),
        centred=not simplified,
    )


def _column(v: Array | None, ndim: int) -> Array | None:
    return None if v is None else v.reshape(1, -1, *(1,) * (ndim - 2))


def _instance_rows(op: Op, inputs: Operands) -> _Rows:
    x = widen(inputs[0])
    scale, bias = (_column(_float(inputs, i), x.ndim) for i in (1, 2))
    return _Rows(x, tuple(range(2, x.ndim)), scale, bias, float(op.attributes.get("epsilon", 1e-5)))


def _group_rows(op: Op, inputs: Operands) -> _Rows:
    """x with its channels as (groups, channels of a group); one parameter per channel or, before version 21, per group.
    ONNX Runtime's own form has channels last and may fuse an activation."""
    x = widen(inputs[0])
    own = op.type == "com.microsoft::GroupNorm"
    groups = int(op.attributes["groups" if own else "num_groups"])
    at = x.ndim - 1 if own and op.attributes.get("channels_last", 1) else 1
    shape = (*x.shape[:at], groups, x.shape[at] // groups, *x.shape[at + 1 :])

    def parameter(v: Array | None) -> Array | None:
        return None if v is None else v.reshape(groups, -1, *(1,) * (x.ndim - 1 - at))

    scale, bias = (parameter(_float(inputs, i)) for i in (1, 2))
    return _Rows(
        x.reshape(shape),
        tuple(a for a in range(1, len(shape)) if a != at),
        scale,
        bias,
        float(op.attributes.get("epsilon", 1e-5)),
        silu=own and bool(op.attributes.get("activation", 0)),
        restore=lambda y: y.reshape(x.shape),
    )


def _batch_rows(op: Op, inputs: Operands) -> _Rows:
    x = widen(inputs[0])
    scale, bias = (_column(_float(inputs, i), x.ndim) for i in (1, 2))
    return _Rows(x, (0, *range(2, x.ndim)), scale, bias, float(op.attributes.get("epsilon", 1e-5)))


def _mean_variance_rows(op: Op, inputs: Operands) -> _Rows:
    x = widen(inputs[0])
    axes = tuple(sorted(normalise_axis(int(a), x.ndim) for a in op.attributes.get("axes", (0, 2, 3))))
    return _Rows(x, axes, None, None, 0.0, outside=1e-9)


_ROWS: dict[str, Callable[[Op, Operands], _Rows]] = {
    "BatchNormalization": _batch_rows,
    "GroupNormalization": _group_rows,
    "InstanceNormalization": _instance_rows,
    "LayerNormalization": _layer_rows,
    "MeanVarianceNormalization": _mean_variance_rows,
    "RMSNormalization": _layer_rows,
    "SimplifiedLayerNormalization": _layer_rows,
    "com.microsoft::BatchNormInternal": _batch_rows,
    "com.microsoft::GroupNorm": _group_rows,
    "com.microsoft::SimplifiedLayerNormalization": _layer_rows,
    "com.microsoft::SkipLayerNormalization": _skip_rows,
    "com.microsoft::SkipSimplifiedLayerNormalization": _skip_rows,
}


def _forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    rows = _ROWS[op.type](op, inputs)
    m = yield from _moments(rows, place)
    results: list[Array | None] = [rows.restore(_activated(rows, _normalised(rows, m)))]
    if op.type in ("BatchNormalization", "com.microsoft::BatchNormInternal"):
        results += [*_running(op, inputs, m), m.mean.reshape(-1), m.inverse.reshape(-1)]
    elif "Skip" in op.type:
        results += [m.mean, m.inverse, rows.x]
    elif op.type == "LayerNormalization":
        results += [m.mean, m.inverse]
    else:
        results.append(m.inverse)
    assert inputs[0] is not None
    kept = [r if name else None for name, r in zip(op.outputs, results, strict=False)]
    kept += [None] * (len(op.outputs) - len(kept))
    # Statistics stay in single precision; what has the shape of the operand has its type, too.
    kept = [r if r is None or r.shape != inputs[0].shape else r.astype(inputs[0].dtype) for r in kept]
    return [*kept, m.mean, m.inverse]  # the backward reads the statistics, results or not


def _running(op: Op, inputs: Operands, m: _Moments) -> list[Array]:
    """Running mean and variance."""
    momentum = float(op.attributes.get("momentum", 0.9))
    mean, variance = widen(inputs[3]), widen(inputs[4])
    assert inputs[3] is not None
    assert m.variance is not None
    batch = m.mean.reshape(-1), m.variance.reshape(-1)
    return [
        (old * momentum + new * (1 - momentum)).astype(inputs[3].dtype)
        for old, new in zip((mean, variance), batch, strict=True)
    ]


def _backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """One or two sums per row travel."""
    rows = _ROWS[op.type](op, inputs)
    mean, inverse = widen(outputs[-2]), widen(outputs[-1])
    m = _Moments(mean, inverse, rows.x - mean)
    dy = np.zeros_like(rows.x) if gradients[0] is None else widen(gradients[0]).reshape(rows.x.shape)
    if rows.silu:
        y = _normalised(rows, m)
        dy = dy * sigmoid(y) * (1 + y * (1 - sigmoid(y)))
    dx = yield from _back(rows, m, dy, place)
    further = gradients[3] if "Skip" in op.type and len(gradients) > 3 else None
    if further is not None:
        dx = dx + widen(further)
    dx = rows.restore(dx)
    found: list[Array | None] = [dx]
    if "Skip" in op.type:
        found.append(dx)
    if rows.scale is not None:
        found.append(unbroadcast(dy * m.centred * m.inverse, rows.scale.shape))
    if rows.bias is not None:
        found.append(unbroadcast(dy, rows.bias.shape))
    found += [None] * (len(inputs) - len(found))
    at = 3 if "Simplified" in op.type else 4  # the bias that joins X and skip
    if "Skip" in op.type and at < len(inputs):
        found[at] = dx
    fitted = []
    for g, x, want in zip(found, inputs, wanted, strict=True):
        fitted.append(_fit(g, x) if want and g is not None and x is not None else None)
    return fitted


def _fit(gradient: Array, operand: Array) -> Array:
    """Summed over the dimensions along which the operand was repeated, in its shape and type."""
    if gradient.ndim >= operand.ndim and gradient.size != operand.size:
        gradient = unbroadcast(gradient, (*(1,) * (gradient.ndim - operand.ndim), *operand.shape))
    return gradient.reshape(operand.shape).astype(operand.dtype)


kernel(list(_ROWS), _forward, _backward)


def _layer_norm_gradient_operator(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """dY, X, scale, mean, 1/deviation of exported training graphs; the simplified form has no mean."""
    dy, x, scale = (widen(v) for v in inputs[:3])
    first = normalise_axis(op.attributes.get("axis", -1), x.ndim)
    axes = tuple(range(first, x.ndim))
    kept = (*x.shape[:first], *(1,) * len(axes))
    centred = "Simplified" not in op.type
    mean = widen(inputs[3]).reshape(kept) if centred else np.zeros((), dtype=x.dtype)
    inverse = widen(inputs[4 if centred else 3]).reshape(kept)
    rows = _Rows(x, axes, scale, None, 0.0, centred=centred)
    m = _Moments(mean, inverse, x - mean)
    dx = yield from _back(rows, m, dy, place)
    results: list[Array | None] = [dx, unbroadcast(dy * m.centred * inverse, scale.shape)]
    if centred:
        results.append(unbroadcast(dy, scale.shape))
    assert inputs[0] is not None
    dtype = inputs[0].dtype
    return [None if r is None or not n else r.astype(dtype) for n, r in zip(op.outputs, results, strict=False)]


kernel(
    ["com.microsoft::LayerNormalizationGrad", "com.microsoft::SimplifiedLayerNormalizationGrad"],
    _layer_norm_gradient_operator,
)


def _batch_norm_gradient_operator(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """dY, X, scale, mean, 1/deviation of exported training graphs: dScale and dBias are the sums that dX needs."""
    dy, x = widen(inputs[0]), widen(inputs[1])
    scale, mean, inverse = (widen(_column(v, x.ndim)) for v in inputs[2:5])
    axes = (0, *range(2, x.ndim))
    unit = (x - mean) * inverse
    dscale, dbias = yield from total(np.stack([np.sum(g, axis=axes, keepdims=True) for g in (dy * unit, dy)]), place)
    n = _Rows(x, axes, None, None, 0.0).count(place)
    found = [scale * inverse * (dy - (unit * dscale + dbias) / n), dscale.reshape(-1), dbias.reshape(-1)]
    pairs = zip(op.outputs, found, (inputs[1], inputs[2], inputs[2]), strict=False)
    return [r.astype(like.dtype) if name and like is not None else None for name, r, like in pairs]


kernel(["com.microsoft::BatchNormalizationGrad"], _batch_norm_gradient_operator)


def _power_norm_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """x / ‖x‖ₚ with p = 1 or 2, zero where the norm is."""
    x, p, axis = _power_norm(op, inputs)
    powers = yield from total(np.sum(np.abs(x) ** p, axis=axis, keepdims=True), place)
    norm = np.asarray(powers ** (1 / p), dtype=x.dtype)
    y = np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)
    assert inputs[0] is not None
    return [y.astype(inputs[0].dtype), norm]


def _power_norm_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """dx = (dy − d‖x‖/dx · Σ dy·y) / ‖x‖."""
    x, p, axis = _power_norm(op, inputs)
    y, norm, dy = widen(outputs[0]), widen(outputs[-1]), widen(gradients[0])
    along = yield from total(np.sum(dy * y, axis=axis, keepdims=True), place)
    slope = np.sign(x) if p == 1 else y
    dx = np.divide(dy - slope * along, norm, out=np.zeros_like(x), where=norm != 0)
    assert inputs[0] is not None
    return [dx.astype(inputs[0].dtype)]


def _power_norm(op: Op, inputs: Operands) -> tuple[Array, int, int]:
    x = widen(inputs[0])
    return x, int(op.attributes.get("p", 2)), normalise_axis(op.attributes.get("axis", -1), x.ndim)


kernel(["LpNormalization"], _power_norm_forward, _power_norm_backward)
