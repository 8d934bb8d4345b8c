"""Operators that move elements along a split dimension: every rank fetches what its shard of the results lacks."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.split import kernel
from planner.kernels.spmd import Collective, Coroutine, Received, ShardContext
from planner.kernels.transport import collect, give_back
from planner.rules.movement import Movement
from planner.rules.moves import data_operands, moves_of
from planner.rules.operator import Operator
from planner.rules.rule import Dims

__all__ = ["carried", "returned", "whole_operator", "whole_shape"]

Operands = Sequence["Array | None"]
Parts = Generator[Collective, Received, list[Array]]


def whole_shape(local: Sequence[int], dims: Dims | None, place: ShardContext) -> tuple[int, ...]:
    """Shape of the whole tensor of which a rank holds a shard of shape `local`."""
    if dims is None:
        return tuple(local)
    return tuple(s * math.prod(place.shards.get(f, 1) for f in d) for s, d in zip(local, dims, strict=True))


def whole_operator(op: Op, inputs: Operands, place: ShardContext) -> Operator:
    """The operator as its rule saw it: whole shapes, and the values of the operands that rules read."""
    rule = place.rule
    assert rule is not None
    shapes = [
        None if x is None else whole_shape(x.shape, dims, place) for x, dims in zip(inputs, rule.operands, strict=True)
    ]
    values = [x if x is not None and x.ndim <= 1 and x.dtype.kind == "i" else None for x in inputs]
    outputs: list[tuple[int, ...] | None] = [None] * len(op.outputs)
    if rule.shape_operand is not None and (stated := inputs[rule.shape_operand]) is not None:
        outputs[0] = whole_shape([int(n) for n in stated], rule.results[0], place)
        values[rule.shape_operand] = np.array(outputs[0], dtype=np.int64)
    types = tuple("" if x is None else x.dtype.name for x in inputs)
    return Operator(op, tuple(shapes), tuple(outputs), types, ("",) * len(op.outputs), tuple(values))


def carried(parts: Sequence[Array], dim: int, movement: Movement, factor: str | None, place: ShardContext) -> Parts:
    """Local results of a movement along `dim`, which `factor` splits on both sides (None: nobody does)."""
    x = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=dim)
    if factor is not None:
        shards = place.shards[factor]
        moved = yield from collect(x, dim, movement.wanted(shards), factor, place)
    else:
        shards = 1
        moved = _taken(x, dim, movement.wanted(1)[0], 0)
    cuts = np.cumsum([len(s) // shards for s in movement.sources])[:-1]
    return np.split(moved, cuts, axis=dim)


def returned(
    gradients: Sequence[Array], dim: int, movement: Movement, factor: str | None, place: ShardContext
) -> Parts:
    """The transpose of `carried`."""
    g = gradients[0] if len(gradients) == 1 else np.concatenate(gradients, axis=dim)
    shards = 1 if factor is None else place.shards[factor]
    if factor is not None:
        size = sum(movement.operands) // shards
        moved = yield from give_back(g, dim, movement.wanted(shards), size, factor, place)
    else:
        moved = _added(g, dim, movement.wanted(1)[0], 0, sum(movement.operands))
    return np.split(moved, np.cumsum([n // shards for n in movement.operands])[:-1], axis=dim)


def _taken(x: Array, dim: int, places: Array, offset: int) -> Array:
    """Elements at `places`, of which this rank holds those from `offset` on; zeros for the rest."""
    out = np.zeros((*x.shape[:dim], len(places), *x.shape[dim + 1 :]), dtype=x.dtype)
    held = (places >= offset) & (places < offset + x.shape[dim])
    np.moveaxis(out, dim, 0)[held] = np.moveaxis(x.take(places[held] - offset, axis=dim), dim, 0)
    return out


def _added(g: Array, dim: int, places: Array, offset: int, size: int) -> Array:
    """The transpose of `_taken`."""
    out = np.zeros((*g.shape[:dim], size, *g.shape[dim + 1 :]), dtype=g.dtype)
    held = (places >= offset) & (places < offset + size)
    np.add.at(np.moveaxis(out, dim, 0), places[held] - offset, np.moveaxis(g, dim, 0)[held])
    return out


@dataclass(frozen=True, slots=True)
class _Step:
    """What happens along one dimension, which `factor` splits (None: nobody does).  `pending`: the result does not
    carry the factor, it is a pending sum of what the ranks hold."""

    dim: int
    movement: Movement
    factor: str | None
    pending: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    """Operands that are moved, results that are asked for, and the steps, one dimension after the other."""

    data: tuple[int, ...]
    requested: tuple[int, ...]
    steps: tuple[_Step, ...]

    @classmethod
    def of(cls, op: Op, inputs: Operands, place: ShardContext) -> _Plan:
        rule, whole = place.rule, whole_operator(op, inputs, place)
        assert rule is not None
        data = tuple(data_operands(whole))
        steps = []
        for dim, movement in sorted(moves_of(whole).items()):
            factor = _split_factor([rule.operands[i] for i in data], dim, place)
            pending = factor is not None and _split_factor(rule.results, dim, place) is None
            if movement is not None and factor is not None and rule.splits_parts(data[0], dim):
                movement, factor = movement.of_equal_parts(place.shards[factor]), None
            if movement is not None:
                steps.append(_Step(dim, movement, factor, pending))
        requested = (j for j, name in enumerate(op.outputs) if name and rule.results[j] is not None)
        return cls(data, tuple(requested), tuple(steps))


def _split_factor(tensors: Sequence[Dims | None], dim: int, place: ShardContext) -> str | None:
    """The split factor that the tensors carry along `dim`; those without elements carry none."""
    return next((f for dims in tensors if dims is not None for f in dims[dim] if place.splits(f)), None)


def _forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    plan, fill = _Plan.of(op, inputs, place), _fill(op, inputs)
    parts = [x for i in plan.data if (x := inputs[i]) is not None]
    for s in plan.steps:
        if s.pending and s.factor is not None:
            parts = [_taken(parts[0], s.dim, s.movement.sources[0], place.offset[s.factor])]
            continue
        parts = yield from carried(parts, s.dim, s.movement, s.factor, place)
        if fill is not None:
            shards, index = (1, 0) if s.factor is None else (place.shards[s.factor], place.index[s.factor])
            np.moveaxis(parts[0], s.dim, 0)[s.movement.wanted(shards)[index] < 0] = fill
    found = dict(zip(plan.requested, parts, strict=True))
    return [found.get(j) for j in range(len(op.outputs))]


def _backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    plan = _Plan.of(op, inputs, place)
    given = next(x for i in plan.data if (x := inputs[i]) is not None)
    parts = [
        _unread(given, k, plan.steps, place) if (g := gradients[j]) is None else g for k, j in enumerate(plan.requested)
    ]
    for s in reversed(plan.steps):
        if s.pending and s.factor is not None:
            size = s.movement.operands[0] // place.shards[s.factor]
            parts = [_added(parts[0], s.dim, s.movement.sources[0], place.offset[s.factor], size)]
        else:
            parts = yield from returned(parts, s.dim, s.movement, s.factor, place)
    found = dict(zip(plan.data, parts, strict=True))
    return [found.get(i) if i < len(wanted) and wanted[i] else None for i in range(len(inputs))]


def _unread(x: Array, result: int, steps: Sequence[_Step], place: ShardContext) -> Array:
    """Zeros for a result that nothing reads."""
    shape = list(x.shape)
    for s in steps:
        shards = 1 if s.factor is None or s.pending else place.shards[s.factor]
        shape[s.dim] = len(s.movement.sources[result]) // shards
    return np.zeros(shape, dtype=x.dtype)


def _fill(op: Op, inputs: Operands) -> Array | None:
    """What Pad puts where no operand gives an element, unless it is zero."""
    if op.type != "Pad":
        return None
    given = inputs[2] if len(inputs) > 2 else None
    value = np.asarray(op.attributes.get("value", 0.0) if given is None else given).reshape(())
    return value if bool(value != 0) else None


def _concat_training(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """The second result states the lengths of the whole operands."""
    whole = whole_operator(op, inputs, place)
    axis = whole.axis(1)
    lengths: list[Array | None] = [np.array([whole.shape(i)[axis] for i in range(len(inputs))], dtype=np.int64)]
    found = yield from _forward(op, inputs, place)
    return [found[0], *lengths[: len(op.outputs) - 1]]


kernel(["CenterCropPad", "Concat", "Pad", "Slice", "Split"], _forward, _backward)
kernel(["com.microsoft::SliceGrad", "com.microsoft::SplitTraining"], _forward)
kernel(["com.microsoft::ConcatTraining"], _concat_training)
