"""Lookups, updates and orders of elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from planner.runtime.registry import Call, operator

__all__: list[str] = []


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


def _placed(data: Tensor, axis: int, at: Tensor, updates: Tensor, reduction: str) -> Tensor:
    """Updates element by element, at places along an axis; those that lie elsewhere are dropped."""
    size = data.shape[axis]
    held = (at >= 0) & (at < size)
    # One place more takes what is dropped.
    wide = functional.pad(data, [*(0, 0) * (data.ndim - 1 - axis), 0, 1])
    at = torch.where(held, at, size)
    if reduction == "none":
        found = torch.scatter(wide, axis, at, updates)
    else:
        found = torch.scatter_reduce(wide, axis, at, updates, _REDUCTIONS[reduction], include_self=True)
    return found.narrow(axis, 0, size)


def _beside(c: Call, x: Tensor, data: Sequence[int], axis: int) -> Tensor:
    """What refers to this rank's part of the data, in dimensions beside the axis that the data has more of."""
    for d in range(x.ndim):
        if d != axis and c.place.splits(f"w{d}"):
            first = c.place.offset[f"w{d}"]
            start, stop = (min(n, x.shape[d]) for n in (first, first + data[d]))
            x = x.narrow(d, start, stop - start)
    return x


@operator("ScatterElements", "Scatter", aware=True)
def _scatter_elements(c: Call) -> Tensor:
    axis, size = c.axis(0), c.x.shape[c.axis(0)]
    indices, updates = (_beside(c, c.operand(i), c.x.shape, axis) for i in (1, 2))
    at = _wrapped(indices, size * c.place.shards.get("v", 1)) - c.place.offset.get("v", 0)
    if c.place.splits("v"):
        return _placed(c.x, axis, at, updates, c.attr("reduction", "none"))
    if c.attr("reduction", "none") == "none":
        return torch.scatter(c.x, axis, at, updates)
    return torch.scatter_reduce(c.x, axis, at, updates, _REDUCTIONS[c.attr("reduction")], include_self=True)


def _rows(c: Call, indices: Tensor, batch: int, shape: Sequence[int]) -> Tensor:
    """Row of the flattened leading dimensions, of this rank's part, that coordinates refer to; one behind the last
    where that is another rank's."""
    row: Tensor | None = None
    inside: Tensor | None = None
    depth = indices.shape[-1]
    for k, at in enumerate(_addresses(indices, batch, [*shape[:batch], *_whole(c, shape, batch, depth)])):
        at = at - (c.place.offset.get(f"v{k - batch}", 0) if k >= batch else 0)
        held = (at >= 0) & (at < shape[k])
        inside = held if inside is None else inside & held
        row = at if row is None else row * shape[k] + at
    assert row is not None
    assert inside is not None
    return torch.where(inside, row, math.prod(shape[: batch + depth]))


def _whole(c: Call, shape: Sequence[int], batch: int, depth: int) -> list[int]:
    return [shape[batch + k] * c.place.shards.get(f"v{k}", 1) for k in range(depth)]


@operator("ScatterND", aware=True)
def _scatter_nd(c: Call) -> Tensor | None:
    """Blocks that are overwritten, or to which others are added, of those that lie in this rank's part."""
    reduction, indices, shape = c.attr("reduction", "none"), c.operand(1), c.x.shape
    depth = indices.shape[-1]
    if not depth:
        return None
    if reduction in ("none", "add") and not any(c.place.splits(f"v{k}") for k in range(depth)):
        return c.x.index_put(_coordinates(c), c.operand(2), accumulate=reduction == "add")
    row = _rows(c, indices, 0, shape)
    block = math.prod(shape[depth:])
    places = row.reshape(-1, 1).expand(-1, block)
    updates = c.operand(2).reshape(row.numel(), block)
    return _placed(c.x.reshape(-1, block), 0, places, updates, reduction).reshape(shape)


@operator("com.microsoft::GatherElementsGrad", aware=True)
def _gather_elements_gradient(c: Call) -> Tensor | None:
    """dY, shape of the table, indices."""
    shape = c.integers(1)
    if shape is None:
        return None
    axis = c.axis(0, len(shape))
    dy, indices = (_beside(c, c.operand(i), shape, axis) for i in (0, 2))
    at = _wrapped(indices, shape[axis] * c.place.shards.get("v", 1)) - c.place.offset.get("v", 0)
    return _placed(dy.new_zeros(shape), axis, at, dy, "add")


@operator("com.microsoft::GatherNDGrad", aware=True)
def _gather_nd_gradient(c: Call) -> Tensor | None:
    """Shape of the table, indices, dY."""
    shape, indices, dy, batch = c.integers(0), c.operand(1), c.operand(2), int(c.attr("batch_dims", 0))
    if shape is None:
        return None
    row = _rows(c, indices, batch, shape).expand(indices.shape[:-1])
    block = math.prod(shape[batch + indices.shape[-1] :])
    rows = dy.new_zeros((math.prod(shape[: batch + indices.shape[-1]]) + 1, block))
    return rows.index_add(0, row.reshape(-1), dy.reshape(-1, block))[:-1].reshape(shape)


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
