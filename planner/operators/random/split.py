"""Random numbers while any dimension is split: each rank draws those of its part of the whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.draws import dropout_mask
from planner.kernels.split import kernel
from planner.kernels.spmd import Coroutine, ShardContext
from planner.operators.random.local import DRAWING, Part, drawn, dropout_ratio

__all__: list[str] = []

Operands = Sequence["Array | None"]


def _part(place: ShardContext) -> Part:
    """This rank's part of the first result, one factor per dimension."""
    rule = place.rule
    assert rule is not None
    factors = [d[0] if d else "" for d in rule.results[0] or ()]
    whole = tuple(rule.factors.get(f, 1) for f in factors)
    return Part(
        tuple(n // place.shards.get(f, 1) for f, n in zip(factors, whole, strict=True)),
        tuple(place.offset.get(f, 0) for f in factors),
        whole,
    )


def _forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    return drawn(op, inputs, _part(place))[: len(op.outputs)]
    yield  # never communicates


def _dropout_back(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """The elements that the forward kept, drawn again."""
    dy, ratio = gradients[0], dropout_ratio(op, inputs)
    if dy is None or not wanted[0]:
        return [None] * len(inputs)
    mask = dropout_mask(op, ratio, _part(place).index)
    dx = np.where(mask, dy / dy.dtype.type(1 - ratio or 1), np.zeros((), dtype=dy.dtype))
    return [dx.astype(dy.dtype), *[None] * (len(inputs) - 1)]
    yield  # never communicates


kernel(sorted(DRAWING - {"Dropout"}), _forward)
kernel(["Dropout"], _forward, _dropout_back)
