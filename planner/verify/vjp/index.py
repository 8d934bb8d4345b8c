"""Reads and writes at places that data decides."""

from __future__ import annotations

import math

import numpy as np

from planner.verify.vjp.attributes import Array, normalise_axis, string
from planner.verify.vjp.registry import Call, NoVjpError, register

__all__ = ["gather_gradient"]

Gradients = list["Array | None"]


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


def _along(indices: Array, axis: int, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Index arrays that address, for each element of `indices`, its place along `axis`."""
    axis = normalise_axis(axis, len(shape))
    grid: list[Array] = list(np.indices(indices.shape, sparse=True))
    grid[axis] = np.where(indices < 0, indices + shape[axis], indices)
    return tuple(grid)


@register("GatherElements")
def _gather_elements(c: Call) -> Gradients:
    dx = np.zeros_like(c.x)
    np.add.at(dx, _along(c.operand(1), c.attr("axis", 0), c.x.shape), c.dy)
    return [dx]


def _nd_index(indices: Array, batch: int) -> tuple[Array, ...]:
    """Index arrays for GatherND and ScatterND: the last dimension of `indices` holds coordinates."""
    lead = [np.arange(s).reshape((-1,) + (1,) * (indices.ndim - 2 - i)) for i, s in enumerate(indices.shape[:batch])]
    return (*lead, *(indices[..., k] for k in range(indices.shape[-1])))


@register("GatherND")
def _gather_nd(c: Call) -> Gradients:
    dx = np.zeros_like(c.x)
    np.add.at(dx, _nd_index(c.operand(1), c.attr("batch_dims", 0)), c.dy)
    return [dx]


@register("ScatterND")
def _scatter_nd(c: Call) -> Gradients:
    return _scatter(c, _nd_index(c.operand(1), 0))


@register("ScatterElements", "Scatter")
def _scatter_elements(c: Call) -> Gradients:
    return _scatter(c, _along(c.operand(1), c.attr("axis", 0), c.x.shape))


def _scatter(c: Call, where: tuple[Array, ...]) -> Gradients:
    reduction = string(c.attr("reduction"), "none")
    if reduction not in ("none", "add"):
        raise NoVjpError(f"operator {c.op.name} ({c.op.type}): reduction {reduction} has no vector-Jacobian product")
    dx = c.dy
    if reduction == "none" and c.wants(0):
        dx = c.dy.copy()
        dx[where] = 0
    return [dx, None, c.dy[where] if c.wants(2) else None]
