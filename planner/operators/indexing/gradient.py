"""Reads and writes at places that data decides."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from planner.kernels.attributes import Array, normalise_axis, string
from planner.kernels.gradients import Call, register

__all__ = [
    "Coordinates",
    "coordinates_along",
    "coordinates_nd",
    "gather_gradient",
    "reduced_gradients",
    "tensor_scatter_coordinates",
]

Gradients = list["Array | None"]
Coordinates = tuple[Array, ...]  # one array for each of the leading dimensions; they broadcast against each other


def gather_gradient(dy: Array, indices: Array, axis: int, shape: tuple[int, ...]) -> Array:
    """dy summed into a value of `shape` at `indices` along `axis`.

    Rows are sorted by index and summed in runs: many times faster than numpy's unbuffered add.
    """
    axis = normalise_axis(axis, len(shape))
    at = np.where(indices < 0, indices + shape[axis], indices).reshape(-1)
    inner = shape[:axis] + shape[axis + 1 :]
    rows = np.moveaxis(dy.reshape(*shape[:axis], at.size, *shape[axis + 1 :]), axis, 0).reshape(at.size, -1)
    out = np.zeros((shape[axis], math.prod(inner)), dtype=dy.dtype)
    if at.size:
        order = np.argsort(at, kind="stable")
        ordered = at[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        out[ordered[starts]] = np.add.reduceat(rows[order], starts, axis=0)
    return np.moveaxis(out.reshape(shape[axis], *inner), 0, axis)


@register("Gather")
def _gather(c: Call) -> Gradients:
    return [gather_gradient(c.dy, c.operand(1), c.attr("axis", 0), c.x.shape)]


def coordinates_along(indices: Array, axis: int, shape: Sequence[int]) -> Coordinates:
    """Addresses, for each element of `indices`, its place along `axis` of a value of `shape`."""
    axis = normalise_axis(axis, len(shape))
    grid: list[Array] = list(np.indices(indices.shape, sparse=True))
    grid[axis] = np.where(indices < 0, indices + shape[axis], indices)
    return tuple(grid)


@register("GatherElements")
def _gather_elements(c: Call) -> Gradients:
    dx = np.zeros_like(c.x)
    np.add.at(dx, coordinates_along(c.operand(1), c.attr("axis", 0), c.x.shape), c.dy)
    return [dx]


def coordinates_nd(indices: Array, batch: int, shape: Sequence[int]) -> Coordinates:
    """Addresses of GatherND and ScatterND: the last dimension of `indices` holds coordinates."""
    lead = [np.arange(s).reshape((-1,) + (1,) * (indices.ndim - 2 - i)) for i, s in enumerate(indices.shape[:batch])]
    at = [indices[..., k] for k in range(indices.shape[-1])]
    return (*lead, *(np.where(a < 0, a + shape[batch + k], a) for k, a in enumerate(at)))


@register("GatherND")
def _gather_nd(c: Call) -> Gradients:
    dx = np.zeros_like(c.x)
    np.add.at(dx, coordinates_nd(c.operand(1), c.attr("batch_dims", 0), c.x.shape), c.dy)
    return [dx]


@register("ScatterND")
def _scatter_nd(c: Call) -> Gradients:
    return _scatter(c, coordinates_nd(c.operand(1), 0, c.x.shape))


@register("ScatterElements", "Scatter")
def _scatter_elements(c: Call) -> Gradients:
    return _scatter(c, coordinates_along(c.operand(1), c.attr("axis", 0), c.x.shape))


def _scatter(c: Call, where: Coordinates) -> Gradients:
    reduction = string(c.attr("reduction"), "none")
    dx, du = reduced_gradients(reduction, c.x, where, c.operand(2), c.y if reduction in ("max", "min") else None, c.dy)
    return [dx, None, du]


def reduced_gradients(
    reduction: str, data: Array, where: Coordinates, updates: Array, result: Array | None, dy: Array
) -> tuple[Array, Array]:
    """Gradients of data and updates of a scatter.

    A product passes on all its other factors; an extreme is shared evenly among those that attain it.
    """
    mine = dy[where]
    if reduction == "none":
        dx = dy.copy()
        dx[where] = 0
        return dx, mine
    if reduction == "add":
        return dy, mine
    if reduction == "mul":
        product, zeros = np.where(data == 0, 1, data), (data == 0).astype(np.int64)
        np.multiply.at(product, where, np.where(updates == 0, 1, updates))
        np.add.at(zeros, where, (updates == 0).astype(np.int64))
        return dy * _others(product, zeros, data), mine * _others(product[where], zeros[where], updates)
    assert result is not None
    attained = (data == result).astype(dy.dtype)
    also = (updates == result[where]).astype(dy.dtype)
    count = attained.copy()
    np.add.at(count, where, also)
    share = dy / np.maximum(count, 1)
    return share * attained, share[where] * also


def _others(product: Array, zeros: Array, factor: Array) -> Array:
    """The product of all factors but one; `product` is that of those that are not zero, of which there are `zeros`."""
    is_zero = factor == 0
    unaffected = zeros - is_zero == 0
    return np.asarray(np.where(unaffected, product / np.where(is_zero, 1, factor), 0))


def tensor_scatter_coordinates(
    cache: Sequence[int], update: Sequence[int], axis: int, starts: Array | None, *, circular: bool
) -> Coordinates:
    """Where each element of the update lies in a cache; batch element b begins at `starts[b]` along the axis."""
    axis = normalise_axis(axis, len(cache))
    grid: list[Array] = list(np.indices(tuple(update), sparse=True))
    if starts is not None:
        grid[axis] = grid[axis] + starts.reshape((-1,) + (1,) * (len(cache) - 1))
    if circular:
        grid[axis] = grid[axis] % cache[axis]
    return tuple(grid)


@register("TensorScatter")
def _tensor_scatter(c: Call) -> Gradients:
    circular = string(c.attr("mode"), "linear") == "circular"
    update = c.operand(1)
    where = tensor_scatter_coordinates(c.x.shape, update.shape, c.attr("axis", -2), c.maybe(2), circular=circular)
    return list(reduced_gradients("none", c.x, where, update, None, c.dy))
