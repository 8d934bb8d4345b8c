"""Local response normalisation while channels are split: each rank fetches the channels that its windows reach into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.local import run_local
from planner.kernels.precision import widen
from planner.kernels.split import kernel
from planner.kernels.spmd import Coroutine, ShardContext
from planner.kernels.transport import CollectiveKernel, collect
from planner.operators.pooling.rule import response_reach

__all__ = ["grown_channels"]

Operands = Sequence["Array | None"]

_CHANNELS = 1


def grown_channels(x: Any, before: int, after: int, place: ShardContext) -> CollectiveKernel:
    """`x` with the channels around it that exist."""
    count, shards = x.shape[_CHANNELS], place.shards["c"]
    starts = range(0, count * shards, count)
    wanted = [np.arange(max(s - before, 0), min(s + count + after, count * shards)) for s in starts]
    return (yield from collect(x, _CHANNELS, wanted, "c", place))


def _window_sum(x: Array, before: int, after: int, place: ShardContext) -> CollectiveKernel:
    """For each channel of this rank the sum over those from `before` it to `after` it."""
    count = x.shape[_CHANNELS]
    grown = yield from grown_channels(x, before, after, place)
    skipped = min(before, place.index["c"] * count)
    wide = widen(grown)
    sums = np.zeros(x.shape, dtype=wide.dtype)
    for c in range(count):
        sums[:, c] = wide[:, max(c + skipped - before, 0) : c + skipped + after + 1].sum(axis=_CHANNELS)
    return sums


def _forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    x = inputs[0]
    assert x is not None
    before, after = response_reach(op.attributes["size"])
    grown = yield from grown_channels(x, before, after, place)
    y = run_local(op, [grown])[0]
    assert y is not None
    first = min(before, place.index["c"] * x.shape[_CHANNELS])
    return [y[:, first : first + x.shape[_CHANNELS]]]


def _backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """y = x·s^-β, s = k + α/n·Σ x²: windows once more for s, and mirrored for what flows through it."""
    x, dy = inputs[0], gradients[0]
    assert x is not None
    size, alpha = op.attributes["size"], op.attributes.get("alpha", 1e-4)
    beta, bias = op.attributes.get("beta", 0.75), op.attributes.get("bias", 1.0)
    before, after = response_reach(size)
    dy = np.zeros_like(x) if dy is None else dy
    s = bias + alpha / size * (yield from _window_sum(x * x, before, after, place))
    through = yield from _window_sum((dy * x * s ** (-beta - 1)).astype(x.dtype), after, before, place)
    return [(dy * s**-beta - 2 * alpha * beta / size * x * through).astype(x.dtype) if wanted[0] else None]


kernel(["LRN"], _forward, _backward)
