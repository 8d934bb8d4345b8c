"""Sums of the rows of each segment: all that the planner knows of them stands in this one module.

    planner::SegmentSum(data [n, …], segments [n]; num_segments) -> [num_segments, …]

Row s of the result is the sum of the rows whose segment is s; a row of another number belongs to no segment.  Rows of
one segment need not follow each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from planner.frontends.facts.shapes import UNKNOWN, Inferred, Operands, given, infers
from planner.frontends.facts.sizes import carries
from planner.frontends.resized.broadcasting import share
from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.gradients import Call, register
from planner.kernels.local import local_kernel
from planner.kernels.precision import widen
from planner.kernels.split import kernel
from planner.kernels.spmd import Coroutine, ShardContext
from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Rule
from planner.runtime import registry as on_torch
from planner.verify.uses import Reading, Use, Uses, reads

if TYPE_CHECKING:
    from torch import Tensor

    from planner.frontends.resized.carry import Carrier

__all__: list[str] = []

TYPE = "planner::SegmentSum"
Given = Sequence["Array | None"]


@rule(TYPE)
def _rule(o: Operator) -> Rule:
    """Parts of the rows give pending sums.  A rank that holds some of the segments adds up the rows of these alone, and
    so it must know which they are; the gradient of the other rows is zero there."""
    return sharded(
        o,
        "n d..., n -> s d...",
        kind="gather",
        linear=[(0,)],
        differentiable=(0,),
        saved=(1,),
        flops=float(math.prod(o.shape(0))),
        aware=["s"],
        counts={"num_segments": ("s",)},
    )


@infers(TYPE)
def _shape(op: Op, operands: Operands) -> list[Inferred]:
    data = given(operands, 0)
    if data is None or not data.shape:
        return [UNKNOWN]
    return [(data.dtype, (int(op.attributes["num_segments"]), *data.shape[1:]))]


@carries(TYPE)
def _sizes(c: Carrier, op: Op) -> None:
    """Data and segments have one number of rows; the number of segments stays."""
    data, result = op.inputs[0], op.outputs[0]
    share(c, op, {0: 0, 1: 0})
    for axis in range(1, len(c.before(data))):
        c.pass_up(op, result, axis, data, axis)
    segments = c.before(result)[0]
    c.factors[result] = (((segments, segments),), *c.parts(data)[1:])


@reads(TYPE)
def _values(r: Reading) -> Uses:
    return {1: Use(below=(r.attr("num_segments", 1),))}


def _sums(data: Array, segments: Array, count: int, first: int) -> Array:
    """The sums of `count` segments, of which `first` is the number of the first; half precision is summed in single."""
    held, at = _held(segments, count, first)
    rows = widen(data)
    out = np.zeros((count, *data.shape[1:]), dtype=rows.dtype)
    np.add.at(out, at[held], rows[held])
    return out.astype(data.dtype, copy=False)


def _held(segments: Array, count: int, first: int) -> tuple[Array, Array]:
    """Which rows belong to these segments, and to which of them."""
    at = segments - first
    return np.asarray((at >= 0) & (at < count)), at


def _rows(dy: Array, segments: Array, first: int) -> Array:
    """Of every row the gradient of its segment, or zero."""
    held, at = _held(segments, len(dy), first)
    mask = held.reshape(-1, *(1,) * (dy.ndim - 1))
    return np.where(mask, dy[np.where(held, at, 0)], np.zeros((), dtype=dy.dtype))


@local_kernel(TYPE)
def _forward(op: Op, inputs: Given) -> Sequence[Array | None]:
    return [_on_rank(op, inputs, 0)]


@register(TYPE)
def _gradient(c: Call) -> list[Array | None]:
    return [_rows(c.dy, c.operand(1), 0)]


def _on_rank(op: Op, inputs: Given, first: int) -> Array:
    data, segments = inputs[:2]
    assert data is not None
    assert segments is not None
    return _sums(data, segments, int(op.attributes["num_segments"]), first)


def _split_forward(op: Op, inputs: Given, place: ShardContext) -> Coroutine:
    return [_on_rank(op, inputs, place.offset["s"])]
    yield  # a generator that never communicates


def _split_backward(
    op: Op, inputs: Given, outputs: Given, gradients: Given, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    dy, segments = gradients[0], inputs[1]
    if dy is None or not wanted[0]:
        return [None, None]
    assert segments is not None
    return [_rows(dy, segments, place.offset["s"]), None]
    yield  # a generator that never communicates


kernel([TYPE], _split_forward, _split_backward)


@on_torch.operator(TYPE, aware=True)
def _on_torch(c: on_torch.Call) -> Tensor:
    """Rows of no segment that is held here go to a row behind the last."""
    import torch

    count, first = c.shape()[0], c.place.offset.get("s", 0)
    at = c.operand(1).long() - first
    at = torch.where((at >= 0) & (at < count), at, count)
    return c.x.new_zeros(count + 1, *c.x.shape[1:]).index_add(0, at, c.x)[:count]
