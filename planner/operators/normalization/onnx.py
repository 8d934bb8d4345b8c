"""Normalisations while the dimensions that they are taken over are split: first the mean, then the mean square of what
is left, so that nothing cancels, each one all-reduce over every split factor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from planner.emit.onnx.ranks.local import Local
from planner.emit.onnx.ranks.reduced import reduced_factors, total
from planner.emit.onnx.ranks.registry import Operands, lowers, needed
from planner.emit.onnx.ranks.writer import Shape, Value, Writer

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class _Rows:
    """A normalisation seen as one over `axes` of `x`; `scale` and `bias` broadcast against it.  `shape` is that of the
    result, `centred` False for root mean squares."""

    x: Value
    axes: tuple[int, ...]
    scale: Value | None
    bias: Value | None
    epsilon: float
    shape: Shape
    centred: bool = True


@dataclass(frozen=True, slots=True)
class _Moments:
    mean: Value | None
    inverse: Value  # 1/√(variance + ε)
    centred: Value
    variance: Value


def _moments(w: Writer, rows: _Rows, here: Local) -> _Moments:
    local = math.prod(rows.x.dims[a] for a in rows.axes)
    count = w.number(local * math.prod(here.place.shards[f] for f in reduced_factors(here)), rows.x)
    mean, centred = None, rows.x
    if rows.centred:
        mean = w.join("Div", total(w, w.reduce("ReduceSum", rows.x, rows.axes), here), count)
        centred = w.join("Sub", rows.x, mean)
    squares = w.reduce("ReduceSum", w.join("Mul", centred, centred), rows.axes)
    variance = w.join("Div", total(w, squares, here), count)
    deviation = w.each("Sqrt", w.join("Add", variance, w.number(rows.epsilon, variance)))
    return _Moments(mean, w.each("Reciprocal", deviation), centred, variance)


def _normalised(w: Writer, rows: _Rows, m: _Moments) -> Value:
    y = w.join("Mul", m.centred, m.inverse)
    y = y if rows.scale is None else w.join("Mul", y, rows.scale)
    y = y if rows.bias is None else w.join("Add", y, rows.bias)
    return w.reshape(y, rows.shape)


def _wide(w: Writer, operands: Operands, index: int) -> Value | None:
    x = operands[index] if index < len(operands) else None
    return None if x is None else w.widened(x)


def _skip(w: Writer, here: Local, operands: Operands) -> _Rows:
    """norm(X + skip + bias)."""
    simplified = "Simplified" in here.op.type
    x = w.join("Add", w.widened(needed(operands[0])), w.widened(needed(operands[1])))
    added = _wide(w, operands, 3 if simplified else 4)
    x = x if added is None else w.join("Add", x, added)
    bias = None if simplified else _wide(w, operands, 3)
    return _Rows(x, (x.rank - 1,), _wide(w, operands, 2), bias, _epsilon(here, 1e-12), x.dims, centred=not simplified)


def _column(w: Writer, v: Value | None, rank: int) -> Value | None:
    return None if v is None else w.reshape(v, (1, v.dims[0], *(1,) * (rank - 2)))


def _epsilon(here: Local, default: float = 1e-5) -> float:
    return float(here.op.attributes.get("epsilon", default))


def _layer(w: Writer, here: Local, operands: Operands) -> _Rows:
    x = w.widened(needed(operands[0]))
    first = here.axis(-1, x.rank)
    plain = here.op.type == "LayerNormalization"
    bias = _wide(w, operands, 2) if plain else None
    return _Rows(x, tuple(range(first, x.rank)), _wide(w, operands, 1), bias, _epsilon(here), x.dims, centred=plain)


def _instance(w: Writer, here: Local, operands: Operands) -> _Rows:
    x = w.widened(needed(operands[0]))
    scale, bias = (_column(w, _wide(w, operands, i), x.rank) for i in (1, 2))
    return _Rows(x, tuple(range(2, x.rank)), scale, bias, _epsilon(here), x.dims)


def _batch(w: Writer, here: Local, operands: Operands) -> _Rows:
    x = w.widened(needed(operands[0]))
    scale, bias = (_column(w, _wide(w, operands, i), x.rank) for i in (1, 2))
    return _Rows(x, (0, *range(2, x.rank)), scale, bias, _epsilon(here), x.dims)


def _group(w: Writer, here: Local, operands: Operands) -> _Rows:
    """Channels as (groups, channels of a group); one parameter per channel or, before version 21, per group."""
    x = w.widened(needed(operands[0]))
    groups = int(here.op.attributes["num_groups"])
    shape = (x.dims[0], groups, x.dims[1] // groups, *x.dims[2:])

    def parameter(v: Value | None) -> Value | None:
        return None if v is None else w.reshape(v, (groups, v.dims[0] // groups, *(1,) * (x.rank - 2)))

    scale, bias = (parameter(_wide(w, operands, i)) for i in (1, 2))
    axes = tuple(range(2, len(shape)))
    return _Rows(w.reshape(x, shape), axes, scale, bias, _epsilon(here), x.dims)


def _mean_variance(w: Writer, here: Local, operands: Operands) -> _Rows:
    x = w.widened(needed(operands[0]))
    axes = tuple(sorted(int(a) % x.rank for a in here.op.attributes.get("axes", (0, 2, 3))))
    return _Rows(x, axes, None, None, 1e-9, x.dims)


_ROWS: dict[str, Callable[[Writer, Local, Operands], _Rows]] = {
    "BatchNormalization": _batch,
    "GroupNormalization": _group,
    "InstanceNormalization": _instance,
    "LayerNormalization": _layer,
    "MeanVarianceNormalization": _mean_variance,
    "RMSNormalization": _layer,
    "SimplifiedLayerNormalization": _layer,
    "com.microsoft::SkipLayerNormalization": _skip,
    "com.microsoft::SkipSimplifiedLayerNormalization": _skip,
}


@lowers(*_ROWS)
def _normalise(w: Writer, here: Local, operands: Operands) -> list[Value | None]:
    rows = _ROWS[here.op.type](w, here, operands)
    m = _moments(w, rows, here)
    results: list[Value | None] = [_normalised(w, rows, m)]
    if here.op.type == "BatchNormalization":
        results += _running(w, here, operands, m)
    elif "Skip" in here.op.type:
        results += [m.mean, m.inverse, rows.x]
    elif here.op.type == "LayerNormalization":
        results += [m.mean, m.inverse]
    else:
        results.append(m.inverse)
    return [r if name else None for name, r in zip(here.op.outputs, results, strict=False)]


def _running(w: Writer, here: Local, operands: Operands, m: _Moments) -> list[Value | None]:
    """Running mean and variance, then, in older versions, those of the batch."""
    momentum = float(here.op.attributes.get("momentum", 0.9))
    assert m.mean is not None
    found: list[Value | None] = []
    batch = [w.reshape(v, (w.elements(v),)) for v in (m.mean, m.variance)]
    for i, new in zip((3, 4), batch, strict=True):
        old = w.widened(needed(operands[i]))
        new = w.cast(new, old.dtype)
        kept = w.join("Mul", old, w.number(momentum, old))
        found.append(w.join("Add", kept, w.join("Mul", new, w.number(1 - momentum, new))))
    return [*found, batch[0], w.reshape(m.inverse, (w.elements(m.inverse),))]


@lowers("LpNormalization")
def _power(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """x / ‖x‖ₚ with p = 1 or 2, zero where the norm is."""
    x = w.widened(needed(operands[0]))
    axis, p = here.axis(-1, x.rank), int(here.op.attributes.get("p", 2))
    size = w.each("Abs", x)
    powers = total(w, w.reduce("ReduceSum", size if p == 1 else w.join("Mul", x, x), [axis]), here)
    norm = powers if p == 1 else w.each("Sqrt", powers)
    none = w.join("Equal", norm, w.number(0, norm), "bool")
    safe = w.where(none, w.number(1, norm), norm)
    return [w.where(none, w.number(0, x), w.join("Div", x, safe))]
