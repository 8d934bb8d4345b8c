"""Linear attention while the sequence is split: ranks exchange what their shard does to the state."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.split import kernel
from planner.kernels.spmd import Collective, Coroutine, Received, ShardContext, all_gather
from planner.operators.attention.masked import merge_heads, split_heads
from planner.operators.linear_attention.gradient import Recurrence, as_gradients

__all__: list[str] = []

Operands = Sequence["Array | None"]
# Per shard: the factor of the map S → A S + B (None: one), and B.
Maps = list[tuple["Array | None", Array]]


def _forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    here = Recurrence.of(op, _wide(inputs))
    first = _past(here, inputs)
    maps = yield from _maps(here, place)
    y, states = here.run(_after(first, maps[: _index(place)]))
    last = _after(first, maps) if maps else states[-1]
    x = inputs[0]
    assert x is not None
    past = inputs[3] if len(inputs) > 3 else None
    flat = merge_heads(y.reshape(y.shape[0], -1, *y.shape[3:]), 3)
    results = [flat.astype(x.dtype), last.astype(x.dtype if past is None else past.dtype)]
    return [r if name else None for r, name in zip(results, op.outputs, strict=False)]


def _backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """Gradients of the state run the other way: G → Aᵀ G + C.

    The state handed on is the same on all ranks that split groups: each takes its part of its gradient.
    """
    here = Recurrence.of(op, _wide(inputs))
    maps = yield from _maps(here, place)
    _, states = here.run(_after(_past(here, inputs), maps[: _index(place)]))
    given, end = (*_wide(gradients), None)[:2]
    heads = op.attributes["q_num_heads"]
    shape = (*here.q.shape[:4], here.v.shape[-1])
    dy = np.zeros(shape, here.q.dtype) if given is None else split_heads(given, heads).reshape(shape)
    g = here.zero() if end is None else (end / place.shards.get("g", 1)).astype(here.k.dtype)
    if maps:
        starts = yield from all_gather(here.back(states, dy, here.zero()).start, "t")
        for j in reversed(range(_index(place) + 1, len(maps))):
            g = _applied(maps[j][0], g, transposed=True) + starts[j]
    found = as_gradients(inputs, here.back(states, dy, g))
    if found[3] is not None and _index(place):
        found[3] = np.zeros_like(found[3])  # a pending sum: the past is the first shard's
    return [
        None if g is None or x is None or not w else g.astype(x.dtype)
        for g, x, w in zip(found, inputs, wanted, strict=False)
    ]


def _wide(values: Operands) -> list[Array | None]:
    return [None if x is None else x.astype(np.float32) if x.dtype.itemsize < 4 else x for x in values]


def _past(here: Recurrence, inputs: Operands) -> Array:
    past = inputs[3] if len(inputs) > 3 else None
    return here.zero() if past is None else past.astype(here.k.dtype)


def _index(place: ShardContext) -> int:
    return place.index.get("t", 0)


def _maps(here: Recurrence, place: ShardContext) -> Generator[Collective, Received, Maps]:
    """Those of all shards in order; none where the sequence is whole."""
    if "t" not in place.shards:
        return []
    added = yield from all_gather(here.run(here.zero())[1][-1], "t")
    mine = here.carry()
    if mine is None:
        return [(None, b) for b in added]
    carried = yield from all_gather(mine, "t")
    return list(zip(carried, added, strict=True))


def _after(state: Array, maps: Maps) -> Array:
    for a, b in maps:
        state = _applied(a, state) + b
    return state


def _applied(a: Array | None, state: Array, *, transposed: bool = False) -> Array:
    if a is None:
        return state
    if a.ndim == 3:
        return np.asarray(a[..., None] * state)
    return np.asarray((np.swapaxes(a, -1, -2) if transposed else a) @ state)


kernel(["LinearAttention", "com.microsoft::LinearAttention"], _forward, _backward)
