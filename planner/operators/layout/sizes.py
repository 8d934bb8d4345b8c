"""How operators that only rearrange elements carry a new size: their stated shapes and bounds are rewritten."""

from __future__ import annotations

import math

import numpy as np

from planner.frontends.facts.sizes import carries, shaped_like_first
from planner.frontends.resized.carry import Carrier, Factors, join
from planner.frontends.resized.reshape_factors import reshaped
from planner.frontends.steps.draft import split_type
from planner.ir import Op

__all__: list[str] = []


@carries("Reshape")
def _reshape(c: Carrier, op: Op) -> None:
    t, target, o = op.inputs[0], op.inputs[1], op.outputs[0]
    stated = c.value(target)
    if stated is None:
        return
    old_out = c.before(o)
    factors = reshaped(c.parts(t), old_out)
    for axis, size in enumerate(old_out):
        want = c.wanted.get((o, axis))
        if want is not None and factors is not None and join(factors[axis]) != want:
            k = _covering_axis(c.before(t), old_out, axis)
            if k is None or (want * c.before(t)[k]) % size:
                c.refuse(
                    f"constant '{target}', the shape {list(old_out)} of Reshape '{op.name}', stops the new size: "
                    f"its dimension {axis} of {size} would have to be {want}."
                )
                continue
            c.demand(t, k, want * c.before(t)[k] // size, op)
    if factors is None:
        c.refuse(
            f"constant '{target}', the shape {list(old_out)} of Reshape '{op.name}', stops the new size: "
            f"from {list(c.before(t))} → {list(c.after(t))} it is not clear which of its dimensions to change."
        )
        return
    new = [join(f) for f in factors]
    for axis, size in enumerate(stated.reshape(-1)):
        if size == -1 or (size == 0 and axis < len(c.after(t)) and c.after(t)[axis] == new[axis]):
            new[axis] = int(size)  # what the file leaves to the operator stays with it
    c.rewrite(op, 1, new)
    c.factors[o] = factors


@carries("Flatten")
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


@carries("Expand")
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
            c.refuse(
                f"constant '{target}', the shape {new} of Expand '{op.name}', stops the new size: "
                f"dimension {axis} of its operand grows from 1 to {after}."
            )
        result = max(after, new[j] if j >= 0 else 1) if before == 1 else after
        factors.append(c.parts(t)[k] if k >= 0 and after == result and after != before else ((size, result),))
    c.rewrite(op, 1, new)
    c.factors[o] = tuple(factors)


@carries("ConstantOfShape")
def _constant_of_shape(c: Carrier, op: Op) -> None:
    stated = c.value(op.inputs[0])
    if stated is not None:
        c.rewrite(op, 0, [c.wanted.get((op.outputs[0], k), int(s)) for k, s in enumerate(stated)])


@carries("Slice")
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
            c.pass_up(op, o, k, t, k)
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


@carries("Transpose")
def _transpose(c: Carrier, op: Op) -> None:
    t, o = op.inputs[0], op.outputs[0]
    rank = len(c.before(t))
    perm = op.attributes.get("perm", tuple(reversed(range(rank))))
    for axis, k in enumerate(perm):
        c.pass_up(op, o, axis, t, k)
    c.factors[o] = tuple(c.parts(t)[k] for k in perm)


@carries("Squeeze", "Unsqueeze")
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
        c.refuse(
            f"Squeeze '{op.name}' stops the new size: it takes out a dimension of '{t}' that is no longer 1 "
            f"({list(c.before(t))} → {list(c.after(t))})."
        )
    parts = c.parts(t)
    if inserting:
        for j, k in enumerate(rest):
            c.pass_up(op, o, k, t, j)
        found = {k: parts[j] for j, k in enumerate(rest)}
        c.factors[o] = tuple(found.get(k, ((1, 1),)) for k in range(len(longer)))
    else:
        for j, k in enumerate(rest):
            c.pass_up(op, o, j, t, k)
        c.factors[o] = tuple(parts[k] for k in rest)


@carries("Split")
def _split(c: Carrier, op: Op) -> None:
    t = op.inputs[0]
    rank = len(c.before(t))
    along = int(op.attributes.get("axis", 0)) % rank
    old, new = c.before(t)[along], c.after(t)[along]
    if old != new and len(op.inputs) > 1 and op.inputs[1]:
        value = c.value(op.inputs[1])
        if value is None or len({int(v) for v in value}) != 1 or new % len(value):
            c.refuse(
                f"constant '{op.inputs[1]}', the sizes of Split '{op.name}', stops the new size: {old} → {new} "
                "cannot be divided as before."
            )
            return
        c.rewrite(op, 1, [new // len(value)] * len(value))
    for o in op.outputs:
        if o:
            for k in range(rank):
                if k != along:
                    c.pass_up(op, o, k, t, k)
            parts = list(c.parts(t))
            parts[along] = ((c.before(o)[along], -1),)
            c.factors[o] = tuple(parts)


@carries("Tile")
def _tile(c: Carrier, op: Op) -> None:
    """A dimension that is wanted longer is repeated more often; one of the operand that changed has its copies."""
    t, o = op.inputs[0], op.outputs[0]
    repeats = c.value(op.inputs[1])
    if repeats is None:
        return
    new = [int(r) for r in repeats]
    factors: list[Factors] = []
    for axis, times in enumerate(repeats.tolist()):
        before, after = c.before(t)[axis], c.after(t)[axis]
        want = c.wanted.get((o, axis))
        if want is not None and want != after * times and before == after:
            if want % after == 0:
                new[axis] = want // after
            elif want % times == 0:
                c.demand(t, axis, want // times, op)
        factors.append(((times, new[axis]), *c.parts(t)[axis]))
    c.rewrite(op, 1, new)
    c.factors[o] = tuple(factors)


@carries("Concat")
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


shaped_like_first("Identity", "Trilu", "planner::Detach")
