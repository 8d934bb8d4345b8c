"""Kernels of operators that communicate, or must know their place, while a factor is split.

Factor names are those of the rules: a cross-entropy over scores [n, c, d0, d1, …] whose mean is taken over all
of n and d; a gather whose indexed axis is `v`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from planner.ir import Op
from planner.verify.kernels.spmd import AllReduce, Coroutine, ShardContext, SpmdBackward, SpmdForward
from planner.verify.vjp.attributes import Array, normalise_axis, string
from planner.verify.vjp.index import gather_gradient
from planner.verify.vjp.loss import cross_entropy_gradient, label_weights, picked
from planner.verify.vjp.norm import log_softmax

__all__ = ["spmd_backward", "spmd_forward"]

Operands = Sequence["Array | None"]


@dataclass(frozen=True, slots=True)
class _Kernel:
    """`applies` says whether this operator needs the kernel while a factor is split."""

    applies: Callable[[Op, str], bool]
    forward: SpmdForward
    backward: SpmdBackward


def spmd_forward(op: Op, split: Collection[str]) -> SpmdForward | None:
    """The forward that must run instead of the local operator while the factors `split` are split, if any."""
    kernel = _chosen(op, split)
    return None if kernel is None else kernel.forward


def spmd_backward(op: Op, split: Collection[str]) -> SpmdBackward | None:
    """The backward that must run instead of the local vector-Jacobian product, if any."""
    kernel = _chosen(op, split)
    return None if kernel is None else kernel.backward


def _chosen(op: Op, split: Collection[str]) -> _Kernel | None:
    kernel = _KERNELS.get(op.type)
    return kernel if kernel is not None and any(kernel.applies(op, f) for f in split) else None


def _cross_entropy_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """Mean loss over all shards, the same on every rank, and the local log-probabilities."""
    scores, labels, weights = _three(inputs)
    log_p = log_softmax(scores, 1)
    each = label_weights(op, labels, weights, scores.dtype)
    sums = np.array([-np.sum(each * picked(log_p, labels, each != 0)), np.sum(each)], dtype=np.float64)
    for factor in place.shards:
        sums = yield AllReduce(sums, "sum", factor)
    loss = np.asarray(sums[0] / sums[1], dtype=scores.dtype)
    results: list[Array | None] = [loss, log_p]
    return results[: len(op.outputs)]


def _cross_entropy_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """The gradient divides by the total weight of all shards."""
    scores, labels, weights = _three(inputs)
    log_p = outputs[1] if len(outputs) > 1 and outputs[1] is not None else log_softmax(scores, 1)
    each = label_weights(op, labels, weights, scores.dtype)
    total: Array = np.asarray(np.sum(each, dtype=np.float64))
    for factor in place.shards:
        total = yield AllReduce(total, "sum", factor)
    dx = np.zeros_like(scores)
    if gradients[0] is not None:
        factor_of_each = each * np.asarray(gradients[0] / total, dtype=scores.dtype)
        dx = cross_entropy_gradient(log_p, labels, factor_of_each)
    further = gradients[1] if len(gradients) > 1 else None
    if further is not None:
        dx = dx + further - np.exp(log_p) * further.sum(axis=1, keepdims=True)
    return [dx if wanted[0] else None, *[None] * (len(inputs) - 1)]


def _three(inputs: Operands) -> tuple[Array, Array, Array | None]:
    scores, labels, weights = (*inputs, None)[:3]
    if scores is None or labels is None:
        raise ValueError("a cross-entropy needs scores and labels")
    return scores, labels, weights


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


def _is_mean(op: Op, factor: str) -> bool:
    return factor != "c" and string(op.attributes.get("reduction"), "mean") == "mean"


_KERNELS = {
    "Gather": _Kernel(lambda op, factor: factor == "v", _gather_forward, _gather_backward),
    "SoftmaxCrossEntropyLoss": _Kernel(_is_mean, _cross_entropy_forward, _cross_entropy_backward),
}
