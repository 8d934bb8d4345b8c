"""Normalisations while the dimensions that they are taken over are split: their sums are all-reduced.

The rules (`rule.py`) declare the same collectives: per split factor the mean and the mean square of each row, one after
the other so that nothing cancels; backward one or two sums, packed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, normalise_axis
from planner.kernels.gradients import unbroadcast
from planner.kernels.precision import widen
from planner.kernels.shared import Call, numpy_call, shared
from planner.kernels.split import kernel
from planner.kernels.spmd import Collective, Coroutine, Received, ShardContext, all_reduce
from planner.operators.elementwise.gradient import sigmoid

__all__ = ["Operands", "Reduction", "total"]

Operands = Sequence["Array | None"]
Reduction = Generator[Collective, Received, Array]
Axes = tuple[int, ...]


def total(value: Array, place: ShardContext, reduction: str = "sum") -> Reduction:
    """`value` reduced over all factors that the operator reduces over."""
    for factor in place.reduced_factors():
        value = yield from all_reduce(value, reduction, factor)
    return value


@dataclass(frozen=True, slots=True)
class _Rows:
    """A normalisation seen as one over `axes` of `x`; `scale` and `bias` broadcast against `x`.

    `shape` is that of the result; `centred` is False for root mean squares; `silu` follows where it is fused.
    """

    x: Any
    axes: Axes
    scale: Any
    bias: Any
    epsilon: float
    shape: tuple[int, ...]
    centred: bool = True
    silu: bool = False
    outside: float = 0.0  # added to the deviation, where ε is added to the variance

    def count(self, place: ShardContext) -> int:
        """Elements of a row of the whole."""
        local = math.prod(self.x.shape[a] for a in self.axes)
        return local * math.prod(place.shards[f] for f in place.reduced_factors())


@dataclass(frozen=True, slots=True)
class _Moments:
    mean: Any  # None where rows are not centred
    inverse: Any  # 1/√(variance + ε), or 1/(√variance + ε)
    centred: Any
    variance: Any = None  # of the forward alone


def _moments(c: Call, rows: _Rows) -> Generator[Collective, Any, _Moments]:
    """Two passes, so that nothing cancels: the mean, then the mean square of what is left."""
    n, xp = rows.count(c.place), c.xp
    mean, centred = None, rows.x
    if rows.centred:
        mean = (yield from c.total(xp.sum(rows.x, axis=rows.axes, keepdims=True))) / n
        centred = rows.x - mean
    squares = yield from c.total(xp.sum(xp.square(centred), axis=rows.axes, keepdims=True))
    variance = squares / n
    deviation = xp.sqrt(variance + rows.epsilon)
    return _Moments(mean, 1 / (deviation + rows.outside if rows.outside else deviation), centred, variance)


def _normalised(rows: _Rows, m: _Moments) -> Any:
    y = m.centred * m.inverse
    y = y if rows.scale is None else y * rows.scale
    return y if rows.bias is None else y + rows.bias


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


def _epsilon(c: Call, default: float = 1e-5) -> float:
    return float(c.attr("epsilon", default))


def _layer_rows(c: Call) -> _Rows:
    x = c.widened()
    axes = tuple(range(c.axis(-1, x.ndim), x.ndim))
    plain = c.op.type == "LayerNormalization"
    bias = c.maybe_widened(2) if plain else None
    return _Rows(x, axes, c.maybe_widened(1), bias, _epsilon(c), x.shape, centred=plain)


def _skip_rows(c: Call) -> _Rows:
    """norm(X + skip + bias)."""
    simplified = "Simplified" in c.op.type
    x, added = c.widened(0) + c.widened(1), c.maybe_widened(3 if simplified else 4)
    x = x if added is None else x + added
    bias = None if simplified else c.maybe_widened(3)
    axes = (x.ndim - 1,)
    return _Rows(x, axes, c.maybe_widened(2), bias, _epsilon(c, 1e-12), x.shape, centred=not simplified)


def _column(c: Call, index: int, ndim: int) -> Any:
    """A parameter of channels, to broadcast against them."""
    v = c.maybe_widened(index)
    return None if v is None else c.xp.reshape(v, (1, v.shape[0], *(1,) * (ndim - 2)))


def _instance_rows(c: Call) -> _Rows:
    x = c.widened()
    scale, bias = (_column(c, i, x.ndim) for i in (1, 2))
    return _Rows(x, tuple(range(2, x.ndim)), scale, bias, _epsilon(c), x.shape)


def _group_rows(c: Call) -> _Rows:
    """x with its channels as (groups, channels of a group); one parameter per channel or, before version 21, per group.
    ONNX Runtime's own form has channels last and may fuse an activation."""
    x = c.widened()
    own = c.op.type == "com.microsoft::GroupNorm"
    groups = int(c.attr("groups" if own else "num_groups"))
    at = x.ndim - 1 if own and c.attr("channels_last", 1) else 1
    shape = (*x.shape[:at], groups, x.shape[at] // groups, *x.shape[at + 1 :])

    def parameter(v: Any) -> Any:
        return None if v is None else c.xp.reshape(v, (groups, v.shape[0] // groups, *(1,) * (x.ndim - 1 - at)))

    scale, bias = (parameter(c.maybe_widened(i)) for i in (1, 2))
    axes = tuple(a for a in range(1, len(shape)) if a != at)
    silu = own and bool(c.attr("activation", 0))
    return _Rows(c.xp.reshape(x, shape), axes, scale, bias, _epsilon(c), x.shape, silu=silu)


def _batch_rows(c: Call) -> _Rows:
    x = c.widened()
    scale, bias = (_column(c, i, x.ndim) for i in (1, 2))
    return _Rows(x, (0, *range(2, x.ndim)), scale, bias, _epsilon(c), x.shape)


def _mean_variance_rows(c: Call) -> _Rows:
    x = c.widened()
    axes = tuple(sorted(normalise_axis(int(a), x.ndim) for a in c.attr("axes", (0, 2, 3))))
    return _Rows(x, axes, None, None, 0.0, x.shape, outside=1e-9)


_ROWS: dict[str, Callable[[Call], _Rows]] = {
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


def _backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """One or two sums per row travel."""
    rows = _ROWS[op.type](numpy_call(op, inputs, place))
    inverse = widen(outputs[-1])
    m = _Moments(None, inverse, rows.x - widen(outputs[-2]) if rows.centred else rows.x)
    dy = np.zeros_like(rows.x) if gradients[0] is None else widen(gradients[0]).reshape(rows.x.shape)
    if rows.silu:
        y = _normalised(rows, m)
        dy = dy * sigmoid(y) * (1 + y * (1 - sigmoid(y)))
    dx = yield from _back(rows, m, dy, place)
    further = gradients[3] if "Skip" in op.type and len(gradients) > 3 else None
    if further is not None:
        dx = dx + widen(further)
    dx = dx.reshape(rows.shape)
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


@shared(*_ROWS, backward=_backward)
def _normalise(c: Call) -> Coroutine:
    op, xp = c.op, c.xp
    rows = _ROWS[op.type](c)
    m = yield from _moments(c, rows)
    y = _normalised(rows, m)
    results = [xp.reshape(y / (1 + xp.exp(-y)) if rows.silu else y, rows.shape)]
    mean = m.inverse * 0 if m.mean is None and any(op.outputs[1:2]) else m.mean
    if op.type in ("BatchNormalization", "com.microsoft::BatchNormInternal"):
        batch = [xp.reshape(v, (math.prod(v.shape),)) for v in (m.mean, m.variance)]
        results += [*_running(c, batch), batch[0], xp.reshape(m.inverse, batch[0].shape)]
    elif "Skip" in op.type:
        results += [mean, m.inverse, rows.x]
    elif op.type == "LayerNormalization":
        results += [mean, m.inverse]
    else:
        results.append(m.inverse)
    delivered = [r if name else None for name, r in zip(op.outputs, results, strict=False)]
    delivered += [None] * (len(op.outputs) - len(delivered))
    # Statistics stay in single precision; what has the shape of the operand has its type, too.
    delivered = [r if r is None or r.shape != c.operand().shape else c.like(r) for r in delivered]
    return [*delivered, m.mean, m.inverse]  # the backward reads the statistics, results or not


def _running(c: Call, batch: Sequence[Any]) -> list[Any]:
    """Running mean and variance."""
    momentum = float(c.attr("momentum", 0.9))
    return [
        c.like(c.widened(i) * momentum + new * (1 - momentum), 3) if any(c.op.outputs[i - 2 : i - 1]) else None
        for i, new in zip((3, 4), batch, strict=True)
    ]


def _layer_norm_gradient_operator(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """dY, X, scale, mean, 1/deviation of exported training graphs; the simplified form has no mean."""
    dy, x, scale = (widen(v) for v in inputs[:3])
    first = normalise_axis(op.attributes.get("axis", -1), x.ndim)
    axes = tuple(range(first, x.ndim))
    one_shape = (*x.shape[:first], *(1,) * len(axes))
    centred = "Simplified" not in op.type
    inverse = widen(inputs[4 if centred else 3]).reshape(one_shape)
    rows = _Rows(x, axes, scale, None, 0.0, x.shape, centred=centred)
    m = _Moments(None, inverse, x - widen(inputs[3]).reshape(one_shape) if centred else x)
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
    channels = (1, -1, *(1,) * (x.ndim - 2))
    scale, mean, inverse = (widen(v).reshape(channels) for v in inputs[2:5])
    axes = (0, *range(2, x.ndim))
    unit = (x - mean) * inverse
    dscale, dbias = yield from total(np.stack([np.sum(g, axis=axes, keepdims=True) for g in (dy * unit, dy)]), place)
    n = _Rows(x, axes, None, None, 0.0, x.shape).count(place)
    found = [scale * inverse * (dy - (unit * dscale + dbias) / n), dscale.reshape(-1), dbias.reshape(-1)]
    pairs = zip(op.outputs, found, (inputs[1], inputs[2], inputs[2]), strict=False)
    return [r.astype(like.dtype) if name and like is not None else None for name, r, like in pairs]


kernel(["com.microsoft::BatchNormalizationGrad"], _batch_norm_gradient_operator)


def _power_norm_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """dx = (dy − d‖x‖/dx · Σ dy·y) / ‖x‖."""
    x, p = widen(inputs[0]), int(op.attributes.get("p", 2))
    axis = normalise_axis(op.attributes.get("axis", -1), x.ndim)
    y, norm, dy = widen(outputs[0]), widen(outputs[-1]), widen(gradients[0])
    along = yield from total(np.sum(dy * y, axis=axis, keepdims=True), place)
    slope = np.sign(x) if p == 1 else y
    dx = np.divide(dy - slope * along, norm, out=np.zeros_like(x), where=norm != 0)
    assert inputs[0] is not None
    return [dx.astype(inputs[0].dtype)]


@shared("LpNormalization", backward=_power_norm_backward)
def _power_norm(c: Call) -> Coroutine:
    """x / ‖x‖ₚ with p = 1 or 2, zero where the norm is."""
    x, xp, p = c.widened(), c.xp, int(c.attr("p", 2))
    axis = c.axis(-1, x.ndim)
    powers = yield from c.total(xp.sum(xp.abs(x) if p == 1 else xp.square(x), axis=axis, keepdims=True))
    none = powers == 0
    if c.followed:  # where there is nothing, a root would pass no number back
        powers = xp.where(none, c.still(powers), powers)
        norm = powers if p == 1 else xp.sqrt(xp.where(none, xp.ones_like(powers), powers))
        return [c.like(xp.where(none, xp.zeros_like(x), x / xp.where(none, xp.ones_like(norm), norm))), norm]
    norm = powers if p == 1 else xp.sqrt(powers)
    y = xp.where(none, 0, x / xp.where(none, 1, norm))
    return [c.like(y), norm]
