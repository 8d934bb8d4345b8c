"""Operators that move elements along a split dimension: every rank fetches what its shard of the results lacks."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.namespaces import array_namespace
from planner.kernels.session import NoKernelError
from planner.kernels.shared import Call, shared
from planner.kernels.spmd import Collective, Coroutine, Received, ShardContext
from planner.kernels.transport import Indices, collect, give_back, part, taken
from planner.rules.movement import Movement
from planner.rules.moves import data_operands, moves_of
from planner.rules.operator import KeepWholeError, Operator
from planner.rules.rule import Dims

__all__ = ["carried", "returned", "whole_shape"]

Operands = Sequence["Array | None"]
Parts = Generator[Collective, Received, list[Array]]


def whole_shape(local: Sequence[int], dims: Dims | None, place: ShardContext) -> tuple[int, ...]:
    """Shape of the whole tensor of which a rank holds a shard of shape `local`."""
    if dims is None:
        return tuple(local)
    return tuple(s * math.prod(place.shards.get(f, 1) for f in d) for s, d in zip(local, dims, strict=True))


def whole_operator(op: Op, inputs: Sequence[Any], known: Sequence[Any], place: ShardContext) -> Operator:
    """The operator as its rule saw it: whole shapes, and of the `known` values those that rules read."""
    rule = place.rule
    assert rule is not None
    shapes = [
        None if x is None else whole_shape(x.shape, dims, place) for x, dims in zip(inputs, rule.operands, strict=True)
    ]
    types = tuple("" if x is None else str(x.dtype).rpartition(".")[2] for x in inputs)
    values = [
        known[i] if x is not None and x.ndim <= 1 and types[i].startswith("int") else None for i, x in enumerate(inputs)
    ]
    outputs: list[tuple[int, ...] | None] = [None] * len(op.outputs)
    if rule.shape_operand is not None and (stated := values[rule.shape_operand]) is not None:
        outputs[0] = whole_shape([int(n) for n in stated], rule.results[0], place)
        values[rule.shape_operand] = np.array(outputs[0], dtype=np.int64)
    return Operator(op, tuple(shapes), tuple(outputs), types, ("",) * len(op.outputs), tuple(values))


def carried(
    parts: Sequence[Any], dim: int, movement: Movement, factor: str | None, place: ShardContext, fill: Any = None
) -> Generator[Collective, Received, list[Any]]:
    """Local results of a movement along `dim`, which `factor` splits on both sides (None: nobody does)."""
    x = parts[0] if len(parts) == 1 else array_namespace(parts[0]).concat(parts, axis=dim)
    shards = 1 if factor is None else place.shards[factor]
    if factor is None:
        moved = taken(x, dim, movement.wanted(1)[0], fill)
    else:
        moved = yield from collect(x, dim, movement.wanted(shards), factor, place, fill)
    cuts = [0, *(int(n) for n in np.cumsum([len(s) // shards for s in movement.sources]))]
    return [part(moved, dim, *bounds) for bounds in pairwise(cuts)]


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


def _added(g: Array, dim: int, places: Array, offset: int, size: int) -> Array:
    """The transpose of taking the elements at `places`, of which this rank holds `size` from `offset` on."""
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
    def of(cls, op: Op, inputs: Sequence[Any], known: Sequence[Any], place: ShardContext) -> _Plan:
        """NoKernelError where values that are computed at run time decide on what moves."""
        rule, whole = place.rule, whole_operator(op, inputs, known, place)
        assert rule is not None
        data = tuple(data_operands(whole))
        steps = []
        try:
            moves = moves_of(whole)
        except KeepWholeError as reason:
            raise NoKernelError(str(reason)) from reason
        for dim, movement in sorted(moves.items()):
            if movement is None:
                raise NoKernelError(f"which elements of dimension {dim} it moves is computed at run time")
            factor = _split_factor([rule.operands[i] for i in data], dim, place)
            pending = factor is not None and _split_factor(rule.results, dim, place) is None
            if factor is not None and rule.splits_parts(data[0], dim):
                movement, factor = movement.of_equal_parts(place.shards[factor]), None
            steps.append(_Step(dim, movement, factor, pending))
        requested = (j for j, name in enumerate(op.outputs) if name and rule.results[j] is not None)
        return cls(data, tuple(requested), tuple(steps))


def _split_factor(tensors: Sequence[Dims | None], dim: int, place: ShardContext) -> str | None:
    """The split factor that the tensors carry along `dim`; those without elements carry none."""
    return next((f for dims in tensors if dims is not None for f in dims[dim] if place.splits(f)), None)


def _backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    plan = _Plan.of(op, inputs, inputs, place)
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


@shared("CenterCropPad", "Concat", "Pad", "Slice", "Split", backward=_backward)
@shared("com.microsoft::SliceGrad", "com.microsoft::SplitTraining")
def _moved(c: Call) -> Coroutine:
    plan, fill = _Plan.of(c.op, c.inputs, c.known, c.place), _fill(c)
    parts = [c.operand(i) for i in plan.data]
    for s in plan.steps:
        if s.pending and s.factor is not None:
            parts = [_read_here(parts[0], s.dim, s.movement.sources[0], c.place.offset[s.factor])]
        else:
            parts = yield from carried(parts, s.dim, s.movement, s.factor, c.place, fill)
    found = dict(zip(plan.requested, parts, strict=True))
    return [found.get(j) for j in range(len(c.op.outputs))]


def _read_here(x: Any, dim: int, places: Indices, offset: int) -> Any:
    """Elements at `places`, of which this rank holds those from `offset` on; zeros for the rest."""
    held = (places >= offset) & (places < offset + x.shape[dim])
    return taken(x, dim, np.where(held, places - offset, -1))


def _fill(c: Call) -> Any:
    """What Pad puts where no operand gives an element, unless it is zero."""
    if c.op.type != "Pad":
        return None
    if c.maybe(2) is not None:
        return c.xp.reshape(c.operand(2), ())
    value = c.attr("value", 0.0)
    return c.constant(value, c.operand().dtype) if value else None


@shared("com.microsoft::ConcatTraining")
def _concat_training(c: Call) -> Coroutine:
    """The second result states the lengths of the whole operands."""
    whole = whole_operator(c.op, c.inputs, c.known, c.place)
    axis = whole.axis(1)
    found = yield from _moved(c)
    lengths = [c.constant([whole.shape(i)[axis] for i in range(len(c.inputs))])]
    return [found[0], *lengths[: len(c.op.outputs) - 1]]
