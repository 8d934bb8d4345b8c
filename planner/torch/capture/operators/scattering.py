"""Elements and rows that are put, or added, where indices say."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from planner.errors import InputError
from planner.torch.capture.dimensionless import as_vectors
from planner.torch.capture.operators.elementwise import binary, choice
from planner.torch.capture.operators.indexing import addresses, leading, restored
from planner.torch.capture.operators.reductions import reduced
from planner.torch.capture.registry import aten
from planner.torch.capture.writer import Value, Writer

__all__: list[str] = []

_REDUCTIONS = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}


def _scattered(w: Writer, x: Value, at: int, index: Value, source: Value, reduction: str = "none") -> Value:
    how = {} if reduction == "none" else {"reduction": reduction}
    return w.op("ScatterElements", x, index, source, shape=x.shape, dtype=x.dtype, axis=at, **how)


def _filled(w: Writer, shape: Sequence[int], value: float, dtype: torch.dtype) -> Value:
    return Value("", tuple(shape), dtype, torch.full((1,) * len(shape), value, dtype=dtype))


def _beside(w: Writer, source: Value | float, index: Value, dtype: torch.dtype) -> Value:
    """What of the source there are indices for."""
    if not isinstance(source, Value):
        return _filled(w, index.shape, source, dtype)
    source = w.cast(source, dtype)
    if source.shape == index.shape:
        return source
    axes = [d for d in range(source.rank) if source.shape[d] != index.shape[d]]
    ends = [w.integers(v) for v in ([0] * len(axes), [index.shape[d] for d in axes], axes)]
    return w.op("Slice", source, *ends, shape=index.shape)


@aten("scatter.src", "scatter.value", "scatter_add.default")
@as_vectors
def _scatter(w: Writer, x: Value, dim: int, index: Value, source: Value | float) -> Value:
    reduction = "add" if "add" in w.operator else "none"
    return _scattered(w, x, x.dim(dim), index, _beside(w, source, index, x.dtype), reduction)


@aten("scatter.reduce", "scatter.value_reduce")
@as_vectors
def _scatter_with(w: Writer, x: Value, dim: int, index: Value, source: Value | float, *, reduce: str) -> Value:
    how = {"add": "add", "multiply": "mul"}[reduce]
    return _scattered(w, x, x.dim(dim), index, _beside(w, source, index, x.dtype), how)


@aten("scatter_reduce.two")
@as_vectors
def _scatter_reduce(
    w: Writer, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Value:
    at, how = x.dim(dim), _REDUCTIONS[reduce]
    source = _beside(w, source, index, x.dtype)
    ones = _filled(w, index.shape, 1.0, x.dtype)
    if not include_self:  # where something is put, what was there counts for nothing
        none = _scattered(w, _filled(w, x.shape, 0.0, x.dtype), at, index, ones)
        put = binary(w, "Greater", none, 0.0, dtype=torch.bool)
        limits = torch.finfo(x.dtype) if x.dtype.is_floating_point else torch.iinfo(x.dtype)
        least = {"add": 0, "mul": 1, "max": limits.min, "min": limits.max}[how]
        x = choice(w, put, w.scalar(least, x.dtype), x)
    y = _scattered(w, x, at, index, source, how)
    if reduce != "mean":
        return y
    if not x.dtype.is_floating_point:
        raise InputError(f"{w.path or 'the module'}: a scattered mean of {x.dtype} has no translation; expected floats")
    own = _filled(w, x.shape, 1.0 if include_self else 0.0, x.dtype)
    count = _scattered(w, own, at, index, ones, "add")
    return binary(w, "Div", y, w.op("Max", count, w.scalar(1.0, x.dtype), shape=x.shape))


@aten("index_fill.int_Scalar", "index_fill.int_Tensor")
@as_vectors
def _index_fill(w: Writer, x: Value, dim: int, index: Value, value: Value | float) -> Value:
    """Chosen by a mask, so that a row that is named twice counts once in the gradient of the value."""
    at = x.dim(dim)
    named = _filled(w, index.shape, True, torch.bool)
    mask = _scattered(w, _filled(w, [x.shape[at]], False, torch.bool), 0, index, named)
    shape = [-1, *[1] * (x.rank - at - 1)]
    if len(shape) > 1:
        mask = w.op("Reshape", mask, w.integers(shape), shape=[x.shape[at], *shape[1:]])
    return choice(w, mask, w.cast(value, x.dtype) if isinstance(value, Value) else w.scalar(value, x.dtype), x)


@aten("diagonal_scatter.default")
def _diagonal_put(w: Writer, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """Chosen by a mask of two dimensions: the element of a column on the diagonal stands in all rows of what is put."""
    a, b = x.dim(dim1), x.dim(dim2)
    sizes = x.shape[a], x.shape[b]
    length = source.shape[-1]
    before = max(offset, 0)
    pads = [*[0] * (source.rank - 1), before, *[0] * (source.rank - 1), sizes[1] - before - length]
    columns = source
    if any(pads):
        columns = w.op("Pad", source, w.integers(pads), w.scalar(0, x.dtype), shape=(*source.shape[:-1], sizes[1]))
    rest = [d for d in range(x.rank) if d not in (a, b)]
    order = [[*rest, b].index(d) for d in range(x.rank) if d != a]
    if order != sorted(order):
        columns = w.op("Transpose", columns, shape=[columns.shape[d] for d in order], perm=order)
    columns = w.op("Unsqueeze", columns, w.integers([a]), shape=[1 if d == a else n for d, n in enumerate(x.shape)])
    chosen = torch.ones(sizes, dtype=torch.bool).triu(offset).tril(offset)
    mask = (chosen if a < b else chosen.T).reshape([n if d in (a, b) else 1 for d, n in enumerate(x.shape)])
    return choice(w, Value(w.constant(mask), tuple(mask.shape), torch.bool, mask), w.cast(columns, x.dtype), x)


@aten("index_put.default")
def _index_put(w: Writer, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    """A mask chooses elements; whole numbers name rows, of which one that is named twice gets what is put last."""
    values = w.cast(values, x.dtype)
    given = [d for d, i in enumerate(indices) if i is not None]
    first = indices[given[0]]
    assert first is not None
    if any(i is not None and i.dtype == torch.bool for i in indices):
        return _masked_put(w, x, given[0], len(given), first, values, accumulate)
    order = leading(x.rank, given)
    shape = torch.broadcast_shapes(*(i.shape for i in indices if i is not None))
    moved = x if order == list(range(x.rank)) else w.op(
        "Transpose", x, shape=[x.shape[d] for d in order], perm=order)  # fmt: skip
    # Values stand as what an index would give: turned as the table is.
    turn = restored(given, len(shape), x.rank)
    wanted = (*shape, *moved.shape[len(given) :])
    seen = [0] * len(wanted)
    for place, d in enumerate(turn):
        seen[place] = wanted[d]
    if values.shape != tuple(seen):
        values = w.op("Expand", values, w.integers(seen), shape=seen)
    if turn != list(range(len(turn))):
        back = [turn.index(d) for d in range(len(turn))]
        values = w.op("Transpose", values, shape=wanted, perm=back)
    at = addresses(w, [i for i in indices if i is not None], shape)
    how = {"reduction": "add"} if accumulate else {}
    y = w.op("ScatterND", moved, at, values, shape=moved.shape, dtype=x.dtype, **how)
    if moved is x:
        return y
    return w.op("Transpose", y, shape=x.shape, perm=[order.index(d) for d in range(x.rank)])


def _masked_put(
    w: Writer, x: Value, at: int, count: int, mask: Value, values: Value, accumulate: bool
) -> Value:  # fmt: skip
    behind = x.rank - at - mask.rank
    if count != 1 or values.rank > behind:
        raise InputError(
            f"{w.path or 'the module'}: values of which each goes to another element of a mask have no translation; "
            "use torch.where"
        )
    if behind:
        shape = (*mask.shape, *[1] * behind)
        mask = w.op("Reshape", mask, w.integers(shape), shape=shape)
    return choice(w, mask, binary(w, "Add", x, values) if accumulate else values, x)


@aten("bucketize.Tensor", "searchsorted.Tensor")
def _bucket(w: Writer, a: Value, b: Value, *, out_int32: bool = False, right: bool = False, **_: object) -> Value:
    """How many boundaries lie below."""
    x, bounds = (a, b) if "bucketize" in w.operator else (b, a)
    if bounds.rank != 1:
        raise InputError(f"{w.path or 'the module'}: searchsorted in {bounds.rank} dimensions has no translation")
    column = w.op("Unsqueeze", x, w.integers([-1]), shape=(*x.shape, 1))
    below = binary(w, "LessOrEqual" if right else "Less", bounds, column, dtype=torch.bool)
    kind = torch.int32 if out_int32 else torch.int64
    return reduced(w, "ReduceSum", w.cast(below, kind), -1, False)


@aten("masked_scatter.default")
def _masked_scatter(w: Writer, x: Value, mask: Value, source: Value) -> Value:
    """Elements of the source, in their order, where the mask holds.  A mask of whole rows, as one of the tokens that
    images stand for, is counted by rows: by elements there would be thousands of times as many numbers."""
    x, source = _as_wide(w, x, w.result_shape()), w.cast(source, x.dtype)
    rows = w.expanded_from(mask) or mask
    width = x.shape[-1] if x.rank else 1
    if rows.rank != x.rank or rows.shape != (*x.shape[:-1], 1) or source.shape[-1:] != (width,):
        rows, width = _as_wide(w, mask, x.shape), 1
    count = x.elements // max(width, 1)
    flat = w.op("Reshape", w.cast(rows, torch.int64), w.integers([-1]), shape=[count])
    order = binary(w, "Sub", w.op("CumSum", flat, w.scalar(0, torch.int64), shape=flat.shape), 1)
    order = w.op("Max", order, w.scalar(0, torch.int64), shape=order.shape)
    given = w.op("Reshape", source, w.integers([-1, width]), shape=[source.elements // max(width, 1), width])
    found = w.op("Gather", given, order, shape=[count, width], axis=0)
    found = w.op("Reshape", found, w.integers(x.shape), shape=x.shape)
    return w.op("Where", rows, found, x, shape=x.shape, dtype=x.dtype)


def _as_wide(w: Writer, x: Value, shape: tuple[int, ...]) -> Value:
    return x if x.shape == shape else w.op("Expand", x, w.integers(shape), shape=shape)
