"""Sums, means and extrema over dimensions, and running sums.

Where a dimension is split the local result is the rank's term of a pending reduction, scaled by the strategy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from planner.runtime.registry import Call, operator

__all__: list[str] = []


def _axes(c: Call) -> tuple[int, ...]:
    """None of them where nothing is reduced."""
    given = c.integers(1, "axes")
    if given:
        return tuple(dict.fromkeys(a % c.x.ndim for a in given))
    return () if c.attr("noop_with_empty_axes", 0) else tuple(range(c.x.ndim))


@operator("ReduceMean", "ReduceSum", "com.microsoft::ReduceSumTraining")
def _reduce(c: Call) -> Tensor | None:
    axes, keep = _axes(c), bool(c.attr("keepdims", 1))
    if not axes:
        return c.x
    if c.op.type != "ReduceMean":
        return c.x.sum(axes, keepdim=keep, dtype=c.x.dtype)
    return c.x.mean(axes, keepdim=keep) if c.x.is_floating_point() else None


@operator("ReduceMax", "ReduceMin")
def _extremum(c: Call) -> Tensor:
    """Elements that tie share the gradient."""
    axes, largest, keep = _axes(c), c.op.type == "ReduceMax", bool(c.attr("keepdims", 1))
    if not axes:
        return c.x
    if any(c.x.shape[a] == 0 for a in axes):  # the least of what the type holds, or the most
        none = torch.zeros(1, dtype=c.x.dtype, device=c.x.device).fill_(_bound(c.x.dtype, least=largest))
        kept = [1 if i in axes else n for i, n in enumerate(c.x.shape)]
        return none.expand(kept if keep else [n for i, n in enumerate(c.x.shape) if i not in axes]).contiguous()
    return (torch.amax if largest else torch.amin)(c.x, axes, keepdim=keep)


def _bound(dtype: torch.dtype, *, least: bool) -> float | bool:
    if dtype == torch.bool:
        return not least
    if dtype.is_floating_point:
        return -math.inf if least else math.inf
    return torch.iinfo(dtype).min if least else torch.iinfo(dtype).max


@operator("ReduceProd")
def _product(c: Call) -> Tensor:
    y, keep = c.x, bool(c.attr("keepdims", 1))
    for axis in sorted(_axes(c), reverse=True):
        y = y.prod(axis, keepdim=keep, dtype=c.x.dtype)
    return y


def _powers(c: Call, x: Tensor) -> Tensor:
    return x.sum(_axes(c), keepdim=bool(c.attr("keepdims", 1)))


@operator("ReduceL1", "ReduceSumSquare")
def _of_powers(c: Call) -> Tensor | None:
    """Pending sums, where a dimension is split."""
    if not _axes(c):
        return None
    return _powers(c, c.x.abs() if c.op.type == "ReduceL1" else torch.square(c.x))


@operator("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
def _of_sums(c: Call) -> Tensor | None:
    """A function of a sum over whole dimensions; of a split one, the kernel that is written once reduces it."""
    if not _axes(c) or any(c.place.splits(f) for f in c.place.inside()) or not c.x.is_floating_point():
        return None
    if c.op.type == "ReduceLogSumExp":
        return torch.logsumexp(c.x, _axes(c), keepdim=bool(c.attr("keepdims", 1)))
    if c.op.type == "ReduceLogSum":
        return torch.log(_powers(c, c.x))
    return torch.linalg.vector_norm(c.x, dim=_axes(c), keepdim=bool(c.attr("keepdims", 1)))


@operator("CumSum")
def _running_sum(c: Call) -> Tensor | None:
    given = c.integers(1)
    if given is None:
        return None
    axis, reverse = given[0] % c.x.ndim, bool(c.attr("reverse", 0))
    x = c.x.flip(axis) if reverse else c.x
    y = torch.cumsum(x, axis, dtype=x.dtype)
    if c.attr("exclusive", 0):
        y = torch.cat([torch.zeros_like(y.narrow(axis, 0, 1)), y.narrow(axis, 0, y.shape[axis] - 1)], axis)
    return y.flip(axis) if reverse else y


@operator("ArgMax", "ArgMin")
def _arg(c: Call) -> Tensor | None:
    """The first of equals, or the last on request."""
    axis, keep = c.axis(0), bool(c.attr("keepdims", 1))
    choose = torch.argmax if c.op.type == "ArgMax" else torch.argmin
    if not c.attr("select_last_index", 0):
        return choose(c.x, axis, keepdim=keep)
    return c.x.shape[axis] - 1 - choose(c.x.flip(axis), axis, keepdim=keep)
