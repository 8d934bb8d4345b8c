"""Sums, means, extremes, and what is counted or ordered along a dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from planner.torch.capture.dimensionless import as_vectors
from planner.torch.capture.operators.elementwise import binary
from planner.torch.capture.registry import aten
from planner.torch.capture.writer import Value, Writer

__all__ = ["reduced"]

Dims = int | Sequence[int] | None


def reduced(w: Writer, type_: str, x: Value, dims: Dims, keep: bool) -> Value:
    """A reduction over dimensions; all of them where none are named."""
    given = range(x.rank) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
    axes = sorted(map(x.dim, given)) if x.rank else []
    if not axes:
        return x
    shape = [1 if d in axes else n for d, n in enumerate(x.shape) if keep or d not in axes]
    return w.op(type_, x, w.integers(axes), shape=shape, keepdims=int(keep))


@aten("sum.dim_IntList", "sum.default")
def _sum(w: Writer, x: Value, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    whole = torch.int64 if not x.dtype.is_floating_point else x.dtype
    return reduced(w, "ReduceSum", w.cast(x, dtype or whole), dim, keepdim)


@aten("mean.dim", "mean.default")
def _mean(w: Writer, x: Value, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    return reduced(w, "ReduceMean", w.cast(x, dtype or x.dtype), dim, keepdim)


@aten("amax.default", "amin.default")
def _extreme(w: Writer, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return reduced(w, "ReduceMax" if "amax" in w.operator else "ReduceMin", x, dim, keepdim)


@aten("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def _of_truth(w: Writer, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    whole = w.cast(w.cast(x, torch.bool), torch.int32)
    found = reduced(w, "ReduceMax" if "any" in w.operator else "ReduceMin", whole, dim, keepdim)
    return w.cast(found, torch.bool)


@aten("max.default", "min.default")
def _extreme_of_all(w: Writer, x: Value) -> Value:
    return reduced(w, "ReduceMax" if "max" in w.operator else "ReduceMin", x, None, False)


@aten("max.dim", "min.dim")
@as_vectors
def _extreme_and_place(w: Writer, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """Of equal elements the first one gets the whole gradient, which a reduction would share among them."""
    at, type_ = x.dim(dim), "ArgMax" if "max" in w.operator else "ArgMin"
    kept = [1 if d == at else n for d, n in enumerate(x.shape)]
    place = w.op(type_, x, shape=kept, dtype=torch.int64, axis=at, keepdims=1)
    return _at_place(w, x, place, at, keepdim)


@aten("kthvalue.default")
@as_vectors
def _of_rank(w: Writer, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    at = x.dim(dim)
    shape = [k if d == at else n for d, n in enumerate(x.shape)]
    kept = [1 if d == at else n for d, n in enumerate(x.shape)]
    results: list[Any] = [(shape, x.dtype), (shape, torch.int64)]
    _, places = w.ops("TopK", [x, w.integers([k])], results, axis=at, largest=0, sorted=1)
    ends = [w.integers([v]) for v in (k - 1, k, at)]
    return _at_place(w, x, w.op("Slice", places, *ends, shape=kept), at, keepdim)


@aten("median.dim")
@as_vectors
def _median(w: Writer, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The lower one of two in the middle."""
    return _of_rank(w, x, (x.shape[x.dim(dim)] + 1) // 2, dim, keepdim)


@aten("median.default")
def _median_of_all(w: Writer, x: Value) -> Value:
    return _median(w, w.op("Reshape", x, w.integers([-1]), shape=[x.elements]), 0)[0]


def _at_place(w: Writer, x: Value, place: Value, at: int, keepdim: bool) -> tuple[Value, Value]:
    """The elements at one place along a dimension, and the place."""
    found = w.op("GatherElements", x, place, shape=place.shape, axis=at)
    if keepdim:
        return found, place
    shape = [n for d, n in enumerate(place.shape) if d != at]
    gone = w.integers([at])
    return w.op("Squeeze", found, gone, shape=shape), w.op("Squeeze", place, gone, shape=shape)


@aten("prod.default", "prod.dim_int")
def _product(w: Writer, x: Value, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    whole = torch.int64 if not x.dtype.is_floating_point else x.dtype
    return reduced(w, "ReduceProd", w.cast(x, dtype or whole), dim, keepdim)


@aten("var.correction", "var.dim", "std.correction", "std.dim")
def _variance(
    w: Writer, x: Value, dim: Dims = None, unbiased: bool = True, keepdim: bool = False, correction: float | None = None
) -> Value:
    given = list(range(x.rank)) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    count = 1
    for d in given:
        count *= x.shape[x.dim(d)]
    less = float(unbiased) if correction is None else correction
    centred = binary(w, "Sub", x, reduced(w, "ReduceMean", x, given, True))
    y = reduced(w, "ReduceMean", binary(w, "Mul", centred, centred), given, keepdim)
    y = y if not less else binary(w, "Mul", y, count / (count - less))
    return w.op("Sqrt", y, shape=y.shape) if w.operator.startswith("std") else y


@aten("var_mean.default", "var_mean.dim", "var_mean.correction", "std_mean.default", "std_mean.dim",
      "std_mean.correction")  # fmt: skip
def _variance_and_mean(
    w: Writer, x: Value, dim: Dims = None, unbiased: bool = True, keepdim: bool = False, correction: float | None = None
) -> tuple[Value, Value]:
    return _variance(w, x, dim, unbiased, keepdim, correction), reduced(w, "ReduceMean", x, dim, keepdim)


@aten("argmax.default", "argmin.default")
def _place(w: Writer, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    type_ = "ArgMax" if "argmax" in w.operator else "ArgMin"
    if dim is None or not x.rank:
        flat = w.op("Reshape", x, w.integers([-1]), shape=[x.elements])
        found, shape = w.op(type_, flat, shape=[], dtype=torch.int64, axis=0, keepdims=0), w.result_shape()
        return w.op("Reshape", found, w.integers(shape), shape=shape) if shape else found
    return w.op(type_, x, shape=w.result_shape(), dtype=torch.int64, axis=x.dim(dim), keepdims=int(keepdim))


@aten("cumsum.default")
@as_vectors
def _cumulated(w: Writer, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    x = w.cast(x, dtype or (torch.int64 if not x.dtype.is_floating_point else x.dtype))
    return w.op("CumSum", x, w.scalar(x.dim(dim), torch.int64), shape=x.shape)


@aten("cumprod.default")
def _cumulated_product(w: Writer, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    """Sums of logarithms would lose signs and zeros, and their gradients."""
    x = w.cast(x, dtype or (torch.int64 if not x.dtype.is_floating_point else x.dtype))
    return _cumulated_by(w, x, dim, lambda a, b: binary(w, "Mul", a, b))


@aten("logcumsumexp.default")
def _cumulated_log_sum(w: Writer, x: Value, dim: int) -> Value:
    """Sums of pairs keep their own greatest term apart: one of a whole row would leave nothing of small ones."""

    def added(a: Value, b: Value) -> Value:
        most = binary(w, "Max", a, b)
        least = binary(w, "Min", a, b)
        apart = binary(w, "Sub", least, most)
        share = binary(w, "Add", w.op("Exp", apart, shape=apart.shape), 1.0)
        return binary(w, "Add", most, w.op("Log", share, shape=share.shape))

    return _cumulated_by(w, x, dim, added)


def _cumulated_by(w: Writer, x: Value, dim: int, combined: Callable[[Value, Value], Value]) -> Value:
    """In rounds, of which each doubles how many elements every result is of."""
    if not x.rank:
        return x
    at = x.dim(dim)
    n, reach = x.shape[at], 1

    def part(of: Value, first: int, last: int) -> Value:
        shape = (*x.shape[:at], last - first, *x.shape[at + 1 :])
        return w.op("Slice", of, *(w.integers([k]) for k in (first, last, at)), shape=shape)

    while reach < n:
        product = combined(part(x, reach, n), part(x, 0, n - reach))
        x = w.op("Concat", part(x, 0, reach), product, shape=x.shape, axis=at)
        reach *= 2
    return x


@aten("topk.default")
@as_vectors
def _topk(w: Writer, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Value, ...]:
    at = x.dim(dim)
    shape = (*x.shape[:at], k, *x.shape[at + 1 :])
    results: list[Any] = [(shape, x.dtype), (shape, torch.int64)]
    return w.ops("TopK", [x, w.integers([k])], results, axis=at, largest=int(largest), sorted=int(sorted))


@aten("sort.default")
@as_vectors
def _sort(w: Writer, x: Value, dim: int = -1, descending: bool = False) -> tuple[Value, ...]:
    return _topk(w, x, x.shape[x.dim(dim)], dim, descending)
