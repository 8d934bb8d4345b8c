"""Lookups, updates and orders of elements."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from planner.runtime.registry import Call, operator

__all__ = ["added_up"]


def _wrapped(indices: Tensor, size: int) -> Tensor:
    """Indices counted from the front, as 64-bit integers."""
    indices = indices.long()
    return torch.where(indices < 0, indices + size, indices)


@operator("Gather")
def _gather(c: Call) -> Tensor:
    axis, indices, known = c.axis(0), c.operand(1), c.value(1)
    if indices.ndim == 0 and known is not None:
        return c.x.select(axis, int(known))
    # Not `embedding`: the backward of a selection adds rows up where they belong, that of an embedding on a CPU looks
    # for them row by row of the table.
    found = c.x.index_select(axis, indices.reshape(-1) % c.x.shape[axis])
    return found.reshape(*c.x.shape[:axis], *indices.shape, *c.x.shape[axis + 1 :])


@operator("GatherElements")
def _gather_elements(c: Call) -> Tensor:
    axis = c.axis(0)
    return torch.gather(c.x, axis, _wrapped(c.operand(1), c.x.shape[axis]))


def _coordinates(c: Call, batch: int = 0) -> tuple[Tensor, ...]:
    return _addresses(c.operand(1), batch, c.x.shape)


def added_up(indices: Tensor, batch: int, shape: Sequence[int], values: Tensor) -> Tensor:
    """Values summed into a tensor of zeros, at coordinates."""
    return values.new_zeros(shape).index_put(_addresses(indices, batch, shape), values, accumulate=True)


def _addresses(indices: Tensor, batch: int, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Addresses of GatherND and ScatterND: the last dimension of the indices holds coordinates."""
    shape = indices.shape[:batch]
    lead = [
        torch.arange(n, device=indices.device).reshape((-1,) + (1,) * (indices.ndim - 2 - i))
        for i, n in enumerate(shape)
    ]
    at = [_wrapped(indices[..., k], sizes[batch + k]) for k in range(indices.shape[-1])]
    return (*lead, *at)


@operator("GatherND")
def _gather_nd(c: Call) -> Tensor:
    return c.x[_coordinates(c, int(c.attr("batch_dims", 0)))]


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@operator("ScatterElements", "Scatter")
def _scatter_elements(c: Call) -> Tensor | None:
    reduction, axis = c.attr("reduction", "none"), c.axis(0)
    at, updates = _wrapped(c.operand(1), c.x.shape[axis]), c.operand(2)
    if reduction == "none":
        return torch.scatter(c.x, axis, at, updates)
    return torch.scatter_reduce(c.x, axis, at, updates, _REDUCTIONS[reduction], include_self=True)


@operator("ScatterND")
def _scatter_nd(c: Call) -> Tensor | None:
    """Blocks that are overwritten, or to which others are added; other reductions element by element."""
    reduction, at, updates = c.attr("reduction", "none"), _coordinates(c), c.operand(2)
    if not at:
        return None
    if reduction in ("none", "add"):
        return c.x.index_put(at, updates, accumulate=reduction == "add")
    shape, depth = c.x.shape, len(at)
    row = at[0]
    for k in range(1, depth):
        row = row * shape[k] + at[k]
    rows = c.x.reshape(-1, max(1, shape[depth:].numel()))
    blocks = updates.reshape(row.numel(), rows.shape[1])
    places = row.reshape(-1, 1).expand_as(blocks)
    return torch.scatter_reduce(rows, 0, places, blocks, _REDUCTIONS[reduction], include_self=True).reshape(shape)


@operator("OneHot")
def _one_hot(c: Call) -> Tensor | None:
    depth = c.integers(1)
    if depth is None:
        return None
    axis = c.axis(-1, c.x.ndim + 1)
    classes = torch.arange(depth[0], device=c.x.device).reshape((-1,) + (1,) * (c.x.ndim - axis))
    values = c.operand(2)
    return torch.where(_wrapped(c.x, depth[0]).unsqueeze(axis) == classes, values[1], values[0])


@operator("TopK")
def _top_k(c: Call) -> Sequence[Tensor] | None:
    """Of equal elements those with the lowest indices, as ONNX has it: a stable order of all of them."""
    count = c.integers(1, "k")
    if count is None:
        return None
    axis, largest = c.axis(-1), bool(c.attr("largest", 1))
    values, places = torch.sort(c.x, dim=axis, descending=largest, stable=True)
    return [values.narrow(axis, 0, count[0]), places.narrow(axis, 0, count[0])]


@operator("NonZero")
def _non_zero(c: Call) -> Tensor:
    return torch.nonzero(c.x).t().contiguous()


@operator("Compress")
def _compress(c: Call) -> Tensor:
    chosen, given = torch.nonzero(c.operand(1)).reshape(-1), c.attr("axis")
    return c.x.reshape(-1)[chosen] if given is None else c.x.index_select(c.axis(0), chosen)


@operator("com.microsoft::GatherGrad", aware=True)
def _gather_gradient(c: Call) -> Tensor | None:
    """(shape, indices, dY): the gradient of each row of a table adds up; of split rows, of those that are here."""
    shape, indices, dy = c.integers(0), c.operand(1), c.operand(2)
    if shape is None:
        return None
    axis = c.axis(0, len(shape))
    rows = dy.reshape(*shape[:axis], indices.numel(), *shape[axis + 1 :])
    at = _wrapped(indices.reshape(-1), shape[axis] * c.place.shards.get("v", 1)) - c.place.offset.get("v", 0)
    if c.place.splits("v"):
        held = (at >= 0) & (at < shape[axis])
        at = torch.where(held, at, 0)
        rows = rows * held.reshape(-1, *(1,) * (rows.ndim - axis - 1))
    return dy.new_zeros(shape).index_add(axis, at, rows)


