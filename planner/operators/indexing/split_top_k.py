"""The largest (smallest) elements along a split dimension: every rank proposes its own, and all choose alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, normalise_axis
from planner.kernels.split import kernel
from planner.kernels.spmd import Coroutine, ShardContext, all_gather

__all__: list[str] = []

Operands = Sequence["Array | None"]


def _order(x: Array, axis: int, count: int, *, largest: bool) -> Array:
    """Places of the best elements, in order; of equal ones the first."""
    if largest:
        backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        order = x.shape[axis] - 1 - np.flip(backwards, axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    return np.asarray(order.take(np.arange(min(count, x.shape[axis])), axis=axis))


def _forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """Shards follow each other in the order of their ranks, so that of equal candidates the first has the lowest
    index in the whole."""
    x = inputs[0]
    assert x is not None
    axis = normalise_axis(op.attributes.get("axis", -1), x.ndim)
    given = inputs[1] if len(inputs) > 1 else None
    count = int(op.attributes["k"] if given is None else np.asarray(given).reshape(()))
    largest = bool(op.attributes.get("largest", 1))
    mine = _order(x, axis, count, largest=largest)
    values = yield from all_gather(np.take_along_axis(x, mine, axis), "v")
    places = yield from all_gather(mine + place.offset["v"], "v")
    candidates = np.concatenate(values, axis=axis)
    best = _order(candidates, axis, count, largest=largest)
    indices = np.take_along_axis(np.concatenate(places, axis=axis), best, axis).astype(np.int64)
    found: list[Array | None] = [np.take_along_axis(candidates, best, axis), indices]
    return [v if name else None for v, name in zip(found, op.outputs, strict=False)]


def _backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """Each rank keeps the gradient of the chosen elements that it holds."""
    x, dy, indices = inputs[0], gradients[0], outputs[1]
    assert x is not None
    assert indices is not None
    if dy is None or not wanted[0]:
        return [None, None]
    axis = normalise_axis(op.attributes.get("axis", -1), x.ndim)
    local = indices - place.offset["v"]
    held = (local >= 0) & (local < x.shape[axis])
    # A row beyond the last takes what other ranks hold.
    wide = np.zeros((*x.shape[:axis], x.shape[axis] + 1, *x.shape[axis + 1 :]), dtype=dy.dtype)
    np.put_along_axis(wide, np.where(held, local, x.shape[axis]), dy, axis)
    return [wide.take(np.arange(x.shape[axis]), axis=axis), None]
    yield  # never communicates


kernel(["TopK"], _forward, _backward)
