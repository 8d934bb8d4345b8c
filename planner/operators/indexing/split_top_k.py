"""The largest (smallest) elements along a split dimension: every rank proposes its own, and all choose alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, normalise_axis
from planner.kernels.shared import Call, shared
from planner.kernels.spmd import Coroutine, ShardContext

__all__: list[str] = []

Operands = Sequence["Array | None"]


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


@shared("TopK", backward=_backward)
def _top_k(c: Call) -> Coroutine:
    """Shards follow each other in the order of their ranks, so that of equal candidates the first has the lowest
    index in the whole."""
    x, xp = c.operand(), c.xp
    given = c.integers(1, "k")
    assert given is not None
    axis, count = c.axis(-1, x.ndim), given[0]
    mine, places = _best(c, x, min(count, x.shape[axis]), "proposed")
    values = yield from c.gathered(mine, "v")
    indices = yield from c.gathered(places + c.place.offset["v"], "v")
    best, chosen = _best(c, xp.concat(values, axis=axis), count, "chosen")
    found = [best, xp.take_along_axis(xp.concat(indices, axis=axis), chosen, axis=axis)]
    return [v if name else None for v, name in zip(found, c.op.outputs, strict=False)]


def _best(c: Call, x: Any, count: int, name: str) -> Sequence[Any]:
    """The best elements of `x` in order, of equal ones the first, and their places: what the operator itself finds."""
    op = replace(c.op, name=f"{c.op.name}/{name}", outputs=("values", "places"))
    if len(op.inputs) == 1:
        return c.run(replace(op, attributes={**op.attributes, "k": count}), [x])
    return c.run(op, [x, c.xp.asarray([count], dtype=c.xp.int64)])
