"""How single operator types carry a new size; see `planner.frontends.rebind`.

A handler gets the walk's state and the operator, after its operands have their new shapes.  It may rewrite
constant operands, demand sizes of operands, and state the factors of the result.  Types without a handler
take what shape inference gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from planner.errors import InputError
from planner.frontends.carry import Carrier, Factors, join
from planner.frontends.draft import split_type
from planner.frontends.reshape_factors import reshaped
from planner.ir import Op

__all__ = ["handle"]

Array = np.ndarray[Any, Any]


def handle(c: Carrier, op: Op) -> None:
    domain, name = split_type(op.type)
    if any(isinstance(v, bytes) for v in op.attributes.values()):
        raise InputError(f"{op.type} '{op.name}' stops the new size: it holds a sub-graph with sizes of its own.")
    handler = _HANDLERS.get(name)
    if handler is not None and domain in ("", "com.microsoft"):
        handler(c, op)
    elif name in _SAME_SHAPE:
        _same_shape(c, op)


def _same_shape(c: Carrier, op: Op) -> None:
    """The result is shaped like operand 0."""
    t, o = op.inputs[0], op.outputs[0]
    for axis in range(len(c.before(t))):
        _pass_up(c, op, o, axis, t, axis)
    c.factors[o] = c.parts(t)


def _pass_up(c: Carrier, op: Op, o: str, axis: int, t: str, t_axis: int) -> None:
    size = c.wanted.get((o, axis))
    if size is not None:
        c.demand(t, t_axis, size, op)


def _broadcast(c: Carrier, op: Op) -> None:
    o = op.outputs[0]
    operands = [t for t in op.inputs if t]
    c.factors[o] = _broadcast_dims(c, op, operands, len(c.before(o)), 0, o)


def _broadcast_dims(c: Carrier, op: Op, operands: list[str], rank: int, tail: int, o: str) -> tuple[Factors, ...]:
    """Factors of the `rank` dimensions before the last `tail` ones, operands aligned at the right."""
    out: list[Factors] = []
    for axis in range(rank):
        places = []
        for t in operands:
            k = axis - (rank - (len(c.before(t)) - tail))
            if k >= 0:
                places.append((t, k))
        full = [(t, k) for t, k in places if c.before(t)[k] != 1]
        size = c.wanted.get((o, axis))
        if size is None:
            moved = [c.after(t)[k] for t, k in (full or places) if c.after(t)[k] != c.before(t)[k]]
            size = moved[0] if moved else None
        if size is not None:
            for t, k in full:
                c.demand(t, k, size, op)
            if not full and places and all(c.after(t)[k] == 1 for t, k in places) and size != 1:
                t, k = places[0]
                c.demand(t, k, size, op)
        best = max(places, key=lambda p: _informative(c, p[0], p[1]), default=None)
        out.append(c.parts(best[0])[best[1]] if best else ((1, 1),))
    return tuple(out)


def _informative(c: Carrier, t: str, axis: int) -> tuple[bool, bool, int]:
    return c.before(t)[axis] != 1, c.after(t)[axis] != c.before(t)[axis], len(c.parts(t)[axis])


def _matmul(c: Carrier, op: Op) -> None:
    a, b, o = op.inputs[0], op.inputs[1], op.outputs[0]
    ra, rb = len(c.before(a)), len(c.before(b))
    if ra < 2 or rb < 2 or split_type(op.type)[1] == "FusedMatMul":
        return
    for t, k, other, j in ((a, ra - 1, b, rb - 2), (b, rb - 2, a, ra - 1)):
        if c.after(t)[k] != c.before(t)[k]:
            c.demand(other, j, c.after(t)[k], op)
    rank = len(c.before(o))
    _pass_up(c, op, o, rank - 2, a, ra - 2)
    _pass_up(c, op, o, rank - 1, b, rb - 1)
    batch = _broadcast_dims(c, op, [a, b], rank - 2, 2, o)
    c.factors[o] = (*batch, c.parts(a)[ra - 2], c.parts(b)[rb - 1])


def _gemm(c: Carrier, op: Op) -> None:
    a, b, o = op.inputs[0], op.inputs[1], op.outputs[0]
    row, inner_a = (1, 0) if op.attributes.get("transA", 0) else (0, 1)
    inner_b, column = (1, 0) if op.attributes.get("transB", 0) else (0, 1)
    for t, k, other, j in ((a, inner_a, b, inner_b), (b, inner_b, a, inner_a)):
        if c.after(t)[k] != c.before(t)[k]:
            c.demand(other, j, c.after(t)[k], op)
    _pass_up(c, op, o, 0, a, row)
    _pass_up(c, op, o, 1, b, column)
    c.factors[o] = (c.parts(a)[row], c.parts(b)[column])
    bias = op.inputs[2] if len(op.inputs) > 2 else ""
    if bias:
        shape = c.before(bias)
        for k in range(len(shape)):
            size = join(c.factors[o][k + 2 - len(shape)])
            if shape[k] != 1 and size != shape[k]:
                c.demand(bias, k, size, op)


def _concat(c: Carrier, op: Op) -> None:
    o = op.outputs[0]
    rank = len(c.before(o))
    along = int(op.attributes.get("axis", 0)) % rank
    for axis in range(rank):
        if axis == along:
            continue
        size = c.wanted.get((o, axis))
        for t in op.inputs:
            if size is None and c.after(t)[axis] != c.before(t)[axis]:
                size = c.after(t)[axis]
        if size is not None:
            for t in op.inputs:
                c.demand(t, axis, size, op)
    source = next((t for t in op.inputs if c.changed(t)), op.inputs[0])
    parts = list(c.parts(source))
    parts[along] = ((c.before(o)[along], sum(c.after(t)[along] for t in op.inputs)),)
    c.factors[o] = tuple(parts)


def _reshape(c: Carrier, op: Op) -> None:
    t, target, o = op.inputs[0], op.inputs[1], op.outputs[0]
    if c.value(target) is None:
        return
    old_out = c.before(o)
    factors = reshaped(c.parts(t), old_out)
    for axis, size in enumerate(old_out):
        want = c.wanted.get((o, axis))
        if want is not None and factors is not None and join(factors[axis]) != want:
            k = _covering_axis(c.before(t), old_out, axis)
            if k is None or (want * c.before(t)[k]) % size:
                raise InputError(
                    f"constant '{target}', the shape {list(old_out)} of Reshape '{op.name}', stops the new size: "
                    f"its dimension {axis} of {size} would have to be {want}."
                )
            c.demand(t, k, want * c.before(t)[k] // size, op)
    if factors is None:
        raise InputError(
            f"constant '{target}', the shape {list(old_out)} of Reshape '{op.name}', stops the new size: "
            f"from {list(c.before(t))} → {list(c.after(t))} it is not clear which of its dimensions to change."
        )
    c.rewrite(op, 1, [join(f) for f in factors])
    c.factors[o] = factors


def _flatten(c: Carrier, op: Op) -> None:
    factors = reshaped(c.parts(op.inputs[0]), c.before(op.outputs[0]))
    if factors is not None:
        c.factors[op.outputs[0]] = factors


def _covering_axis(old_in: tuple[int, ...], old_out: tuple[int, ...], axis: int) -> int | None:
    """The operand's dimension that a dimension of the result is, or is a part of."""
    stride = math.prod(old_out[axis + 1 :])
    for k, size in enumerate(old_in):
        inner = math.prod(old_in[k + 1 :])
        if stride % inner == 0 and (size * inner) % (stride * old_out[axis]) == 0 and inner <= stride:
            return k
    return None


def _expand(c: Carrier, op: Op) -> None:
    t, target, o = op.inputs[0], op.inputs[1], op.outputs[0]
    stated = c.value(target)
    if stated is None:
        return
    new = [int(s) for s in stated]
    rank, lead = len(c.before(o)), len(c.before(o)) - len(c.before(t))
    factors: list[Factors] = []
    for axis in range(rank):
        k, j = axis - lead, axis - (rank - len(new))
        want = c.wanted.get((o, axis))
        before, after = (c.before(t)[k], c.after(t)[k]) if k >= 0 else (1, 1)
        size = c.before(o)[axis]
        if before != 1:
            if want is not None:
                c.demand(t, k, want, op)
            if j >= 0 and new[j] != 1:
                new[j] = after
        elif want is not None:
            if j < 0:
                c.demand(t, k, want, op)
            else:
                new[j] = want
        elif after != 1 and j >= 0 and new[j] != 1:
            raise InputError(
                f"constant '{target}', the shape {new} of Expand '{op.name}', stops the new size: dimension {axis} of its "
                f"operand grows from 1 to {after}."
            )
        result = max(after, new[j] if j >= 0 else 1) if before == 1 else after
        factors.append(c.parts(t)[k] if k >= 0 and after == result and after != before else ((size, result),))
    c.rewrite(op, 1, new)
    c.factors[o] = tuple(factors)


def _constant_of_shape(c: Carrier, op: Op) -> None:
    stated = c.value(op.inputs[0])
    if stated is not None:
        c.rewrite(op, 0, [c.wanted.get((op.outputs[0], k), int(s)) for k, s in enumerate(stated)])


def _slice(c: Carrier, op: Op) -> None:
    t, o = op.inputs[0], op.outputs[0]
    before, after = c.before(t), c.after(t)
    if len(op.inputs) < 3:
        return _slice_attributes(c, op)
    starts, ends = c.value(op.inputs[1]), c.value(op.inputs[2])
    if starts is None or ends is None:
        return None
    axes = c.value(op.inputs[3]) if len(op.inputs) > 3 and op.inputs[3] else np.arange(len(starts))
    steps = c.value(op.inputs[4]) if len(op.inputs) > 4 and op.inputs[4] else np.ones(len(starts), dtype=np.int64)
    if axes is None or steps is None:
        return None
    new_starts, new_ends = [int(s) for s in starts], [int(e) for e in ends]
    sliced = {int(a) % len(before) for a in axes}
    for i, a in enumerate(axes):
        k = int(a) % len(before)
        new_starts[i], new_ends[i] = _moved(new_starts[i], new_ends[i], int(steps[i]), before[k], after[k])
        want = c.wanted.get((o, k))
        if want is not None and steps[i] == 1:
            whole = c.before(o)[k] == before[k]
            if whole:
                c.demand(t, k, want, op)
            elif after[k] == before[k]:
                first = new_starts[i] if new_starts[i] >= 0 else new_starts[i] + before[k]
                if first + want > before[k]:
                    c.demand(t, k, first + want, op)
                new_starts[i], new_ends[i] = first, first + want
    c.rewrite(op, 1, new_starts)
    c.rewrite(op, 2, new_ends)
    for k in range(len(before)):
        if k not in sliced:
            _pass_up(c, op, o, k, t, k)
    c.factors[o] = tuple(
        f if k not in sliced or c.before(o)[k] == before[k] else ((c.before(o)[k], -1),)
        for k, f in enumerate(c.parts(t))
    )
    return None


def _moved(start: int, end: int, step: int, old: int, new: int) -> tuple[int, int]:
    """Bounds of a slice after its dimension went from old to new: those near the end stay near the end."""
    if old == new or start < 0 or end < 0 or step < 1:
        return start, end
    if old // 2 < end < old:
        end = end - old + new
    if 0 < old // 2 < start < old:
        start = start - old + new
    return start, end


def _slice_attributes(c: Carrier, op: Op) -> None:
    """Before operator set 10 the bounds are attributes."""
    starts, ends = op.attributes.get("starts", ()), op.attributes.get("ends", ())
    axes = op.attributes.get("axes", tuple(range(len(starts))))
    before, after = c.before(op.inputs[0]), c.after(op.inputs[0])
    moved = [
        _moved(s, e, 1, before[a % len(before)], after[a % len(before)])
        for s, e, a in zip(starts, ends, axes, strict=True)
    ]
    c.fixed[op.name, -1] = {"starts": tuple(s for s, _ in moved), "ends": tuple(e for _, e in moved)}


def _transpose(c: Carrier, op: Op) -> None:
    t, o = op.inputs[0], op.outputs[0]
    rank = len(c.before(t))
    perm = op.attributes.get("perm", tuple(reversed(range(rank))))
    for axis, k in enumerate(perm):
        _pass_up(c, op, o, axis, t, k)
    c.factors[o] = tuple(c.parts(t)[k] for k in perm)


def _squeezing(c: Carrier, op: Op) -> None:
    """Unsqueeze and Squeeze: the dimensions other than the ones put in or taken out, in order."""
    t, o = op.inputs[0], op.outputs[0]
    inserting = split_type(op.type)[1] == "Unsqueeze"
    longer = c.before(o) if inserting else c.before(t)
    axes = op.attributes.get("axes")
    if axes is None and len(op.inputs) > 1 and op.inputs[1]:
        value = c.value(op.inputs[1])
        axes = None if value is None else tuple(int(v) for v in np.atleast_1d(value))
    if axes is None:
        axes = tuple(k for k, s in enumerate(longer) if s == 1)
    gone = {int(a) % len(longer) for a in axes}
    rest = [k for k in range(len(longer)) if k not in gone]
    if not inserting and any(c.after(t)[k] != 1 for k in gone):
        if "axes" in op.attributes or len(op.inputs) > 1:
            raise InputError(
                f"Squeeze '{op.name}' stops the new size: it takes out a dimension of '{t}' that is no longer 1 "
                f"({list(c.before(t))} → {list(c.after(t))})."
            )
    parts = c.parts(t)
    if inserting:
        for j, k in enumerate(rest):
            _pass_up(c, op, o, k, t, j)
        found = {k: parts[j] for j, k in enumerate(rest)}
        c.factors[o] = tuple(found.get(k, ((1, 1),)) for k in range(len(longer)))
    else:
        for j, k in enumerate(rest):
            _pass_up(c, op, o, j, t, k)
        c.factors[o] = tuple(parts[k] for k in rest)


def _gather(c: Carrier, op: Op) -> None:
    data, indices, o = op.inputs[0], op.inputs[1], op.outputs[0]
    shape = c.before(data)
    axis = int(op.attributes.get("axis", 0)) % len(shape)
    n, old, new = len(c.before(indices)), shape[axis], c.after(data)[axis]
    for k in range(len(shape)):
        if k != axis:
            _pass_up(c, op, o, k if k < axis else k + n - 1, data, k)
    for k in range(n):
        _pass_up(c, op, o, axis + k, indices, k)
    value = c.value(indices)
    rows = c.parts(indices)
    parts = c.parts(data)
    if old != new and value is not None:
        rows = _follow_rows(c, op, parts[axis], value, new) or rows
    c.factors[o] = (*parts[:axis], *rows, *parts[axis + 1 :])


def _follow_rows(c: Carrier, op: Op, counted: Factors, value: Array, new: int) -> tuple[Factors, ...] | None:
    """Constant indices into a dimension that changed: every row in order, the last one, or early ones.

    Returns factors of the indices when they enumerate the rows, in whatever shape.
    """
    data, indices = op.inputs[:2]
    old = math.prod(o for o, _ in counted)
    flat = value.reshape(-1)
    if value.ndim and flat.size == old and (flat == np.arange(old)).all():
        rows = reshaped([counted], value.shape)
        if rows is not None:
            c.rewrite(op, 1, np.arange(new).reshape([join(f) for f in rows]))
            return rows
    if flat.size == 1 and old > 1 and int(flat[0]) == old - 1:
        c.rewrite(op, 1, np.full(value.shape, new - 1))
    elif flat.size and int(flat.max()) >= new:
        raise InputError(
            f"constant '{indices}' stops the new size: {op.type} '{op.name}' looks up row {int(flat.max())} of '{data}', "
            f"which has {new} now."
        )
    return None


def _gather_nd(c: Carrier, op: Op) -> None:
    """Each component of the last dimension of the indices counts along one dimension of the data."""
    data, indices, o = op.inputs[0], op.inputs[1], op.outputs[0]
    lead = len(c.before(indices)) - 1
    for k in range(lead):
        _pass_up(c, op, o, k, indices, k)
    skip = int(op.attributes.get("batch_dims", 0))
    width = c.before(indices)[-1]
    _follow_components(c, op, data, indices, skip)
    c.factors[o] = (*c.parts(indices)[:-1], *c.parts(data)[skip + width :])


def _scatter_nd(c: Carrier, op: Op) -> None:
    """ScatterND(data, indices, updates): the result is like the data, updates are [*indices[:-1], *rest of data]."""
    data, indices, updates, o = op.inputs[0], op.inputs[1], op.inputs[2], op.outputs[0]
    for k in range(len(c.before(data))):
        _pass_up(c, op, o, k, data, k)
    lead, width = len(c.before(indices)) - 1, c.before(indices)[-1]
    _follow_components(c, op, data, indices, 0)
    for k in range(lead):
        for t, other in ((updates, indices), (indices, updates)):
            if c.changed(t) and c.after(t)[k] != c.before(t)[k]:
                c.demand(other, k, c.after(t)[k], op)
    for k in range(width, len(c.before(data))):
        if c.after(data)[k] != c.before(data)[k]:
            c.demand(updates, lead + k - width, c.after(data)[k], op)
    c.factors[o] = c.parts(data)


def _elementwise_indices(c: Carrier, op: Op) -> None:
    """GatherElements and ScatterElements: indices (and updates) run beside the data in all dimensions but one."""
    data, o = op.inputs[0], op.outputs[0]
    scatter = split_type(op.type)[1] == "ScatterElements"
    along = int(op.attributes.get("axis", 0)) % len(c.before(data))
    beside = op.inputs[1:3] if scatter else op.inputs[1:2]
    for k, size in enumerate(c.before(data)):
        like = [t for t in (data, *beside) if c.before(t)[k] == size and k != along]
        want = c.wanted.get((o, k))
        if want is not None:
            c.demand(data if scatter else beside[0], k, want, op)
        moved = [c.after(t)[k] for t in like if c.after(t)[k] != size]
        for t in like if moved else ():
            c.demand(t, k, moved[0], op)
    if len(beside) == 2 and c.changed(beside[1]) and c.after(beside[1])[along] != c.before(beside[1])[along]:
        c.demand(beside[0], along, c.after(beside[1])[along], op)
    c.factors[o] = c.parts(data if scatter else beside[0])


def _follow_components(c: Carrier, op: Op, data: str, indices: str, skip: int) -> None:
    """Where the data's dimension changed, the indices that run through it get as many rows."""
    value, shape, width = c.value(indices), c.before(data), c.before(indices)[-1]
    taken: set[int] = set()
    for j in range(width):
        old, new = shape[skip + j], c.after(data)[skip + j]
        if old == new or value is None:
            continue
        k = _counting_axis(value[..., j], old, taken)
        if k is None:
            if int(value[..., j].max(initial=0)) >= new:
                raise InputError(
                    f"constant '{indices}' stops the new size: {op.type} '{op.name}' looks up rows beyond the {new} of '{data}'."
                )
            continue
        taken.add(k)
        if c.after(indices)[k] != new and old == 1:
            _count_rows(c, op, indices, k, j, new)
        else:
            c.demand(indices, k, new, op)


def _counting_axis(component: Array, size: int, taken: set[int]) -> int | None:
    """The dimension along which a component runs 0, 1, 2, …; of several of size one, the first."""
    for k, s in enumerate(component.shape):
        if k in taken or s != size:
            continue
        shape = [1] * component.ndim
        shape[k] = size
        if (component == np.arange(size).reshape(shape)).all():
            return k
    return None


def _count_rows(c: Carrier, op: Op, indices: str, k: int, j: int, new: int) -> None:
    """Indices of a single sample, extended to count samples along dimension k in component j."""
    c.demand(indices, k, new, op)
    tensor = c.resized.get(indices)
    if tensor is None or tensor.value is None:
        return
    value = tensor.value.copy()
    shape = [1] * (value.ndim - 1)
    shape[k] = new
    value[..., j] = np.arange(new).reshape(shape)
    c.resized[indices] = replace(tensor, value=value)


def _split(c: Carrier, op: Op) -> None:
    t = op.inputs[0]
    rank = len(c.before(t))
    along = int(op.attributes.get("axis", 0)) % rank
    old, new = c.before(t)[along], c.after(t)[along]
    if old != new and len(op.inputs) > 1 and op.inputs[1]:
        value = c.value(op.inputs[1])
        if value is None or len({int(v) for v in value}) != 1 or new % len(value):
            raise InputError(
                f"constant '{op.inputs[1]}', the sizes of Split '{op.name}', stops the new size: {old} → {new} "
                "cannot be divided as before."
            )
        c.rewrite(op, 1, [new // len(value)] * len(value))
    for o in op.outputs:
        if o:
            for k in range(rank):
                if k != along:
                    _pass_up(c, op, o, k, t, k)
            parts = list(c.parts(t))
            parts[along] = ((c.before(o)[along], -1),)
            c.factors[o] = tuple(parts)


def _recurrent(c: Carrier, op: Op) -> None:
    """Initial states [directions, batch, hidden] follow the batch of the sequence [steps, batch, features]."""
    first = bool(op.attributes.get("layout", 0))
    size = c.after(op.inputs[0])[0 if first else 1]
    for k in (5, 6):
        if len(op.inputs) > k and op.inputs[k]:
            c.demand(op.inputs[k], 0 if first else 1, size, op)


def _resize(c: Carrier, op: Op) -> None:
    """Stated sizes follow: equal ones stay equal, others keep their ratio."""
    t = op.inputs[0]
    sizes = c.value(op.inputs[3]) if len(op.inputs) > 3 and op.inputs[3] else None
    if sizes is not None and len(sizes) == len(c.before(t)):
        c.rewrite(op, 3, [int(s) * n // o for s, o, n in zip(sizes, c.before(t), c.after(t), strict=True)])


def _einsum(c: Carrier, op: Op) -> None:
    terms = str(op.attributes.get("equation", "")).replace(" ", "").split("->")[0].split(",")
    if any("." in term for term in terms) or len(terms) != len(op.inputs):
        return
    places = [(label, t, k) for term, t in zip(terms, op.inputs, strict=True) for k, label in enumerate(term)]
    moved = {label: c.after(t)[k] for label, t, k in places if c.after(t)[k] != c.before(t)[k]}
    for label, t, k in places:
        if label in moved and c.before(t)[k] != 1:
            c.demand(t, k, moved[label], op)


_SAME_SHAPE = frozenset({
    "Abs", "Acos", "Asin", "Atan", "BatchNormalization", "BitwiseNot", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Cos",
    "CumSum", "DequantizeLinear", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "GroupNormalization", "HardSigmoid",
    "HardSwish", "Hardmax", "Identity", "InstanceNormalization", "IsInf", "IsNaN", "LRN", "LayerNormalization", "LeakyRelu",
    "Log", "LogSoftmax", "Mish", "Neg", "Not", "QuantizeLinear", "RMSNormalization", "Reciprocal", "Relu", "Round", "Selu",
    "Shrink", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh",
    "ThresholdedRelu", "Trilu",
})  # fmt: skip

_BROADCASTING = (
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual", "Less",
    "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor",
)  # fmt: skip

_HANDLERS: dict[str, Callable[[Carrier, Op], None]] = {
    **dict.fromkeys(_BROADCASTING, _broadcast),
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Einsum": _einsum,
    "Expand": _expand,
    "Flatten": _flatten,
    "FusedMatMul": _matmul,
    "GRU": _recurrent,
    "GatherElements": _elementwise_indices,
    "ScatterElements": _elementwise_indices,
    "ScatterND": _scatter_nd,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "LSTM": _recurrent,
    "MatMul": _matmul,
    "RNN": _recurrent,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeezing,
    "Transpose": _transpose,
    "Unsqueeze": _squeezing,
}
