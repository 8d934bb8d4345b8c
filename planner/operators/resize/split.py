"""Resizing while resampled space is split: a rank makes its results from a band of the source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from planner.ir import Op
from planner.kernels.precision import widen
from planner.kernels.shards import Array
from planner.kernels.split import kernel
from planner.kernels.spmd import Coroutine, ShardContext
from planner.kernels.window import Reach, fetch, release
from planner.operators.resize.gradient import resample, resample_gradient, resampled
from planner.operators.resize.rule import Resampling

__all__ = ["space_of"]

Operands = Sequence["Array | None"]


def _space(op: Op, inputs: Operands, place: ShardContext) -> list[Reach[Resampling]]:
    return space_of(op, inputs[0], inputs, place)


def space_of(op: Op, x: Any, values: Operands, place: ShardContext) -> list[Reach[Resampling]]:
    """The resampled dimensions of an operand, from the values of the others.  A dimension without factors is whole, or
    has one element."""
    rule = place.rule
    assert rule is not None
    operand, result = rule.operands[0], rule.results[0]
    assert operand is not None
    assert result is not None
    source, target = [], []
    for local, read, made in zip(x.shape, operand, result, strict=True):
        source.append(math.prod(rule.factors[f] for f in read) if read else local)
        target.append(math.prod(rule.factors[f] for f in made) if made or read else local)
    found = resampled(op, values, source, target)
    return [Reach.at(place, r, dim, f"y{i}") for i, (dim, r) in enumerate(found.items())]


def _forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    x = inputs[0]
    assert x is not None
    space = _space(op, inputs, place)
    y = widen((yield from fetch(x, space, "elements", place)))
    for r in space:
        y = resample(y, r.dim, r.window, r.own("positions"), r.needed("elements"))
    return [y.astype(x.dtype)]


def _backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    x, dy = inputs[0], gradients[0]
    assert x is not None
    assert dy is not None
    space = _space(op, inputs, place)
    g = widen(dy)
    for r in space:
        g = resample_gradient(g, r.dim, r.window, r.own("positions"), r.needed("elements"))
    mine = yield from release(g.astype(x.dtype), space, "elements", place)
    return [mine, *[None] * (len(inputs) - 1)]


kernel(["Resize", "Upsample"], _forward, _backward)
