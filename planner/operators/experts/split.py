"""Mixtures of experts of which every rank holds a part.

With the tokens whole a rank computes those that chose its experts: the result is a pending sum.  With tokens and
experts split over the same axis, rows are dispatched to the ranks that hold their experts and results combined where
the tokens came from.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.gradients import unbroadcast
from planner.kernels.local import run_local
from planner.kernels.split import kernel
from planner.kernels.spmd import Collective, Coroutine, Received, ShardContext, exchange
from planner.operators.experts.gradient import expert_gradients, expert_product, token_rows

__all__: list[str] = []

Operands = Sequence["Array | None"]
_ROUTER_WEIGHTS = 14  # operand of QMoE that belongs to tokens, not to experts


class _Given(NamedTuple):
    """Local operands; `experts` are indices relative to this rank's, one per row, outside its range for others'."""

    rows: Array
    experts: Array
    weights: Array
    bias: Array | None
    tokens: tuple[int, ...]
    trans_b: bool
    mode: str


def _given(op: Op, inputs: Operands, place: ShardContext) -> _Given:
    x, weights, indices, bias = (*inputs, None)[:4]
    assert x is not None
    assert weights is not None
    assert indices is not None
    tokens = np.broadcast_shapes(indices.shape[: x.ndim - 1], x.shape[:-1])
    flat = indices.reshape(-1)
    whole = len(weights) * place.shards.get("e", 1)
    experts = np.where(flat < 0, flat + whole, flat).astype(indices.dtype)
    mode = next((m for m in place.shards if m.endswith("&e")), "")
    return _Given(token_rows(x, tokens), experts, weights, bias, tokens, bool(op.attributes.get("transB", 0)), mode)


@dataclass(frozen=True, slots=True)
class _Dispatch:
    """Which rows go to which rank: `sent[j]` are the rows whose expert shard j holds."""

    sent: tuple[Array, ...]
    mode: str
    me: int

    @classmethod
    def of(cls, given: _Given, place: ShardContext) -> _Dispatch:
        owner = given.experts // len(given.weights)
        sent = tuple(np.flatnonzero(owner == j) for j in range(place.shards[given.mode]))
        return cls(sent, given.mode, place.index[given.mode])

    def there(self, rows: Array) -> Generator[Collective, Received, list[Array]]:
        """What every rank has for this one, in the order of the ranks."""
        mine = rows[self.sent[self.me]]
        received = yield from exchange(
            [None if j == self.me else rows[at] for j, at in enumerate(self.sent)], self.mode, stays=mine
        )
        return [mine if part is None else part for part in received]

    def back(self, parts: Sequence[Array]) -> Generator[Collective, Received, Array]:
        """Rows return, each to its place."""
        own = parts[self.me]
        received = yield from exchange([None if j == self.me else p for j, p in enumerate(parts)], self.mode, stays=own)
        out = np.zeros((sum(map(len, self.sent)), *own.shape[1:]), dtype=own.dtype)
        for at, part in zip(self.sent, received, strict=True):
            out[at] = own if part is None else part
        return out


def _split(rows: Array, like: Sequence[Array]) -> list[Array]:
    return np.split(rows, np.cumsum([len(part) for part in like])[:-1])


def _forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    given = _given(op, inputs, place)
    if given.mode:
        dispatch = _Dispatch.of(given, place)
        arrived = yield from dispatch.there(given.rows)
        experts = yield from dispatch.there(given.experts)
        local = np.concatenate(experts) - place.offset["e"]
        y = expert_product(np.concatenate(arrived), local, given.weights, given.bias, trans_b=given.trans_b)
        result = yield from dispatch.back(_split(y, arrived))
    else:
        mine, local = _own(given, place)
        result = np.zeros((len(given.rows), given.weights.shape[1 if given.trans_b else 2]), dtype=given.rows.dtype)
        result[mine] = expert_product(given.rows[mine], local, given.weights, given.bias, trans_b=given.trans_b)
    return [result.reshape(*given.tokens, result.shape[-1])]


def _backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    given, dy = _given(op, inputs, place), gradients[0]
    x = inputs[0]
    if dy is None or x is None:
        return [None] * len(inputs)
    dy = dy.reshape(-1, dy.shape[-1])
    if given.mode:
        dispatch = _Dispatch.of(given, place)
        arrived = yield from dispatch.there(given.rows)
        experts = yield from dispatch.there(given.experts)
        dys = yield from dispatch.there(dy)
        local = np.concatenate(experts) - place.offset["e"]
        rows = np.concatenate(arrived)
        found = expert_gradients(rows, local, given.weights, np.concatenate(dys), trans_b=given.trans_b)
        dx = yield from dispatch.back(_split(found.rows, arrived))
    else:
        mine, local = _own(given, place)
        found = expert_gradients(given.rows[mine], local, given.weights, dy[mine], trans_b=given.trans_b)
        dx = np.zeros_like(given.rows)
        dx[mine] = found.rows
    each = (unbroadcast(dx.reshape(*given.tokens, x.shape[-1]), x.shape), found.weights, None, found.bias)
    return [g if w else None for g, w in zip(each, wanted, strict=False)]


def _own(given: _Given, place: ShardContext) -> tuple[Array, Array]:
    """Rows whose expert this rank holds, and which of its experts that is."""
    local = given.experts - place.offset.get("e", 0)
    mine = np.flatnonzero((local >= 0) & (local < len(given.weights)))
    return mine, local[mine]


def _mixture(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """Weights, scales and biases of other ranks' experts count as zero, and so do their results."""
    count, first = place.shards["e"], place.offset["e"]

    def whole(part: Array | None) -> Array | None:
        if part is None:
            return None
        out = np.zeros((len(part) * count, *part.shape[1:]), dtype=part.dtype)
        out[first : first + len(part)] = part
        return out

    routing = _ROUTER_WEIGHTS if op.type.endswith("QMoE") else len(inputs)
    return run_local(op, [x if i < 2 or i == routing else whole(x) for i, x in enumerate(inputs)])
    yield  # never communicates


kernel(["planner::ExpertMatMul"], _forward, _backward)
kernel(["com.microsoft::MoE", "com.microsoft::QMoE"], _mixture)
