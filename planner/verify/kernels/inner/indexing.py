"""Gathers and scatters while the indexed dimension is split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.verify.kernels.inner.registry import kernel
from planner.verify.kernels.spmd import Coroutine, ShardContext
from planner.verify.vjp.attributes import Array, normalise_axis
from planner.verify.vjp.index import gather_gradient

__all__: list[str] = []

Operands = Sequence["Array | None"]


def _gather_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """Rows that other ranks hold read as zero: the result is a pending sum."""
    table, indices = inputs[0], inputs[1]
    assert table is not None
    assert indices is not None
    axis = normalise_axis(op.attributes.get("axis", 0), table.ndim)
    local, held = _local_rows(indices, table.shape[axis], place)
    found = np.take(table, np.where(held, local, 0), axis=axis)
    mask = held.reshape(held.shape + (1,) * (table.ndim - axis - 1))
    return [np.where(mask, found, np.zeros((), dtype=table.dtype))]
    yield  # a generator that never communicates


def _gather_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """Each rank collects the gradient of the rows it holds."""
    table, indices, dy = inputs[0], inputs[1], gradients[0]
    assert table is not None
    assert indices is not None
    if dy is None or not wanted[0]:
        return [None, None]
    axis = normalise_axis(op.attributes.get("axis", 0), table.ndim)
    local, held = _local_rows(indices, table.shape[axis], place)
    mask = held.reshape(held.shape + (1,) * (table.ndim - axis - 1))
    mine = np.where(mask, dy, np.zeros((), dtype=dy.dtype))
    return [gather_gradient(mine, np.where(held, local, 0), axis, table.shape), None]
    yield  # a generator that never communicates


def _local_rows(indices: Array, rows: int, place: ShardContext) -> tuple[Array, Array]:
    """Indices relative to this rank's rows, and whether they fall among them."""
    whole = rows * place.shards.get("v", 1)
    local = np.where(indices < 0, indices + whole, indices) - place.offset.get("v", 0)
    return local, np.asarray((local >= 0) & (local < rows))


kernel(["Gather"], _gather_forward, _gather_backward)
