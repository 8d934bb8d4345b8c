"""How look-ups by index carry a new size: the indices follow the rows they enumerate."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from planner.frontends.facts.sizes import carries
from planner.frontends.resized.carry import Carrier, Factors, join
from planner.frontends.resized.reshape_factors import reshaped
from planner.frontends.resized.resize import resize_value
from planner.frontends.steps.draft import split_type
from planner.ir import Op

__all__: list[str] = []

Array = np.ndarray[Any, Any]


@carries("Gather")
def _gather(c: Carrier, op: Op) -> None:
    data, indices, o = op.inputs[0], op.inputs[1], op.outputs[0]
    shape = c.before(data)
    axis = int(op.attributes.get("axis", 0)) % len(shape)
    n, old, new = len(c.before(indices)), shape[axis], c.after(data)[axis]
    for k in range(len(shape)):
        if k != axis:
            c.pass_up(op, o, k if k < axis else k + n - 1, data, k)
    for k in range(n):
        c.pass_up(op, o, axis + k, indices, k)
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
    elif flat.size and int((_current(c, indices, value)).max()) >= new:
        c.refuse(
            f"constant '{indices}' stops the new size: {op.type} '{op.name}' looks up row "
            f"{int(flat.max())} of '{data}', which has {new} now."
        )
    return None


def _current(c: Carrier, t: str, value: Array) -> Array:
    """The values of a constant as it is now; `value` where they are not known."""
    now = c.tensors[t].value
    return value if now is None else now


@carries("GatherND")
def _gather_nd(c: Carrier, op: Op) -> None:
    """Each component of the last dimension of the indices counts along one dimension of the data."""
    data, indices, o = op.inputs[0], op.inputs[1], op.outputs[0]
    lead = len(c.before(indices)) - 1
    for k in range(lead):
        c.pass_up(op, o, k, indices, k)
    skip = int(op.attributes.get("batch_dims", 0))
    for k in range(skip):
        for t, other in ((data, indices), (indices, data)):
            if c.after(t)[k] != c.before(t)[k]:
                c.demand(other, k, c.after(t)[k], op, c.parts(t)[k])
    width = c.before(indices)[-1]
    _follow_components(c, op, data, indices, skip)
    c.factors[o] = (*c.parts(indices)[:-1], *c.parts(data)[skip + width :])


@carries("ScatterND")
def _scatter_nd(c: Carrier, op: Op) -> None:
    """ScatterND(data, indices, updates): the result is like the data, updates are [*indices[:-1], *rest of data]."""
    data, indices, updates, o = op.inputs[0], op.inputs[1], op.inputs[2], op.outputs[0]
    for k in range(len(c.before(data))):
        c.pass_up(op, o, k, data, k)
    lead, width = len(c.before(indices)) - 1, c.before(indices)[-1]
    _follow_components(c, op, data, indices, 0)
    for k in range(lead):
        for t, other in ((updates, indices), (indices, updates)):
            if c.changed(t) and c.after(t)[k] != c.before(t)[k]:
                c.demand(other, k, c.after(t)[k], op)
                _cover_targets(c, op, data, indices, k, c.after(t)[k])
    for k in range(width, len(c.before(data))):
        j = lead + k - width
        if c.after(data)[k] != c.before(data)[k]:
            c.demand(updates, j, c.after(data)[k], op)
        elif c.after(updates)[j] != c.before(updates)[j]:
            c.demand(data, k, c.after(updates)[j], op)
    c.factors[o] = c.parts(data)


def _cover_targets(c: Carrier, op: Op, data: str, indices: str, k: int, size: int) -> None:
    """Data that the indices filled up to its last row ends at their new last row."""
    value = c.value(indices)
    resized = None if value is None else resize_value(value, k, size)
    if value is None or resized is None:
        return
    for j in range(value.shape[-1]):
        last, new_last = int(value[..., j].max(initial=-1)), int(resized[..., j].max(initial=-1))
        if last + 1 == c.before(data)[j] and new_last != last:
            c.demand(data, j, new_last + 1, op)


@carries("GatherElements", "ScatterElements")
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
        if old == new:
            continue
        if value is None:  # unread: take the first dimension of that size for the one that counts
            lead = c.before(indices)[:-1]
            free = [k for k, s in enumerate(lead) if s == old and k not in taken]
            if free:
                taken.add(free[0])
                c.demand(indices, free[0], new, op)
            continue
        k = _counting_axis(value[..., j], old, taken)
        if k is None:
            if int(_current(c, indices, value)[..., j].max(initial=0)) >= new:
                c.refuse(
                    f"constant '{indices}' stops the new size: {op.type} '{op.name}' looks up "
                    f"rows beyond the {new} of '{data}'."
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
