"""Look-ups."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from planner.errors import InputError
from planner.torch.capture.dimensionless import as_vectors
from planner.torch.capture.registry import aten
from planner.torch.capture.writer import Value, Writer

__all__ = ["addresses", "leading", "restored"]


@aten("embedding.default")
def _embedding(
    w: Writer, table: Value, indices: Value, padding_idx: int = -1, scale: bool = False, sparse: bool = False
) -> Value:
    if scale or sparse:
        raise InputError(
            f"{w.path or 'the module'}: an embedding with scale_grad_by_freq or sparse changes its gradient in ways "
            "that no plan says; leave these out"
        )
    found = w.op("Gather", table, indices, shape=(*indices.shape, *table.shape[1:]), axis=0)
    if padding_idx < 0:
        return found
    # The row of padding is read as it is, and gets no gradient.
    padding = w.op("Equal", indices, w.scalar(padding_idx, indices.dtype), shape=indices.shape, dtype=torch.bool)
    column = w.op("Unsqueeze", padding, w.integers([-1]), shape=(*indices.shape, 1))
    still = w.op("Detach", found, shape=found.shape, domain="planner")
    return w.op("Where", column, still, found, shape=found.shape, dtype=found.dtype)


def _select(w: Writer, x: Value, dim: int, indices: Value) -> Value:
    at = x.dim(dim)
    return w.op("Gather", x, indices, shape=(*x.shape[:at], *indices.shape, *x.shape[at + 1 :]), axis=at)


aten("index_select.default")(as_vectors(_select))


@aten("gather.default")
@as_vectors
def _gather(w: Writer, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    at = x.dim(dim)
    for d, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)):
        if d != at and m < n:  # ONNX's operands are alike but for this dimension
            ends = [w.integers(v) for v in ([0], [m], [d])]
            x = w.op("Slice", x, *ends, shape=(*x.shape[:d], m, *x.shape[d + 1 :]))
    return w.op("GatherElements", x, index, shape=index.shape, dtype=x.dtype, axis=at)


@aten("index.Tensor")
def _index(w: Writer, x: Value, indices: Sequence[Value | None]) -> Value:
    """Indices of one dimension are a Gather; those of several a GatherND, in front of which these come first; those
    that count are no indices."""
    given = [d for d, i in enumerate(indices) if i is not None]
    if any(i is not None and i.dtype == torch.bool for i in indices):
        raise InputError(
            f"{w.path or 'the module'}: indexing by a mask gives a tensor whose shape depends on values; "
            "use torch.where"
        )
    if len(given) == 1:
        index = indices[given[0]]
        assert index is not None
        return _select(w, x, given[0], index)
    shape = torch.broadcast_shapes(*(i.shape for i in indices if i is not None))
    turn, each = restored(given, len(shape), x.rank), _counted(x, indices, shape)
    order = leading(x.rank, [*sorted(each, key=each.__getitem__), *(d for d in given if d not in each)])
    if order != sorted(order):
        x = w.op("Transpose", x, shape=[x.shape[d] for d in order], perm=order)
    rest, result = [i for d in order if d < len(indices) and d not in each and (i := indices[d])], x.shape[len(given) :]
    if not rest:
        ones = [a for a in range(len(shape)) if a not in each.values()]
        found = w.op("Unsqueeze", x, w.integers(ones), shape=(*shape, *result)) if ones else x
    else:
        at = addresses(w, rest, shape)
        found = w.op("GatherND", x, at, shape=(*shape, *result), dtype=x.dtype, batch_dims=len(each))
    if turn == sorted(turn):
        return found
    return w.op("Transpose", found, shape=[found.shape[d] for d in turn], perm=turn)


def _counted(x: Value, indices: Sequence[Value | None], shape: Sequence[int]) -> dict[int, int]:
    """Dimensions whose index counts through all of them (`x[torch.arange(len(x)), last]`), each with the dimension of
    the indices that it becomes: all that are indexed, or as many as come first among both.

    So the graph says that each sample is read by itself, and holds for other batches.
    """
    alike: dict[int, int] = {}
    for d, i in enumerate(indices):
        if i is None or i.held is None:
            continue
        wide = (*(1 for _ in range(len(shape) - i.rank)), *i.shape)
        along = [a for a, n in enumerate(wide) if n != 1] or ([d] if x.shape[d] == 1 and d < len(shape) else [])
        if len(along) != 1 or along[0] in alike.values() or wide[along[0]] != x.shape[d]:
            continue
        if torch.equal(i.whole().flatten().long(), torch.arange(x.shape[d])):
            alike[d] = along[0]
    if len(alike) == sum(i is not None for i in indices):
        return alike
    first = next(d for d in range(len(indices)) if alike.get(d) != d)
    return {d: d for d in range(first)}


def leading(rank: int, given: Sequence[int]) -> list[int]:
    """An order of dimensions in which those that are indexed come first."""
    return [*given, *(d for d in range(rank) if d not in given)]


def restored(given: Sequence[int], indexed: int, rank: int) -> list[int]:
    """The order of what comes of indices first, as torch has it: in the place of the indexed dimensions where these are
    neighbours."""
    apart = list(given) != list(range(given[0], given[0] + len(given)))
    before = 0 if apart else given[0]
    rest = [indexed + d for d in range(rank - len(given))]
    return [*rest[:before], *range(indexed), *rest[before:]]


def addresses(w: Writer, indices: Sequence[Value], shape: Sequence[int]) -> Value:
    """The indices of several dimensions side by side, as GatherND and ScatterND read them."""
    columns = []
    for i in indices:
        wide = w.cast(i, torch.int64)
        wide = wide if wide.shape == tuple(shape) else w.op("Expand", wide, w.integers(shape), shape=shape)
        columns.append(w.op("Unsqueeze", wide, w.integers([len(shape)]), shape=(*shape, 1)))
    if len(columns) == 1:
        return columns[0]
    return w.op("Concat", *columns, shape=(*shape, len(columns)), axis=len(shape))


@aten("diagonal.default")
def _diagonal(w: Writer, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    given = [x.dim(dim1), x.dim(dim2)]
    rest = [d for d in range(x.rank) if d not in given]
    order = [*given, *rest]
    if order != sorted(order):
        x = w.op("Transpose", x, shape=[x.shape[d] for d in order], perm=order)
    count = w.result_shape()[-1]
    start = torch.arange(count)
    at = torch.stack([start - min(offset, 0), start + max(offset, 0)], -1)
    known = Value(w.constant(at), (count, 2), torch.int64, at)
    found = w.op("GatherND", x, known, shape=(count, *x.shape[2:]), dtype=x.dtype)
    if not rest:
        return found
    back = [*range(1, found.rank), 0]
    return w.op("Transpose", found, shape=[found.shape[d] for d in back], perm=back)


@aten("unfold.default")
def _windows(w: Writer, x: Value, dim: int, size: int, step: int) -> Value:
    """Windows along a dimension, whose elements come last."""
    at = x.dim(dim)
    places = torch.arange(0, x.shape[at] - size + 1, step)[:, None] + torch.arange(size)
    found = _select(w, x, at, Value(w.constant(places), tuple(places.shape), torch.int64, places))
    order = [*(d for d in range(found.rank) if d != at + 1), at + 1]
    if order == sorted(order):
        return found
    return w.op("Transpose", found, shape=[found.shape[d] for d in order], perm=order)


@aten("_embedding_bag.default", "_embedding_bag_forward_only.default")
def _embedding_bag(
    w: Writer, table: Value, indices: Value, offsets: Value, scale: bool = False, mode: int = 0, sparse: bool = False,
    weights: Value | None = None, last: bool = False, padding_idx: int = -1,
) -> tuple[Value | None, ...]:  # fmt: skip
    """Bags of one size, as indices of two dimensions make them."""
    bags = w.result_shape()[0]
    size = indices.elements // bags
    even = torch.arange(0, bags * size, size)
    alike = offsets.held is not None and bool((offsets.whole()[:bags] == even).all())
    if scale or sparse or padding_idx >= 0 or not alike or bags * size != indices.elements:
        raise InputError(
            f"{w.path or 'the module'}: an embedding bag with scale_grad_by_freq, sparse, padding_idx, or bags of "
            "several sizes has no translation; give indices of two dimensions, and leave the others out"
        )
    at = w.op("Reshape", indices, w.integers([bags, size]), shape=[bags, size])
    rows = w.op("Gather", table, at, shape=(bags, size, *table.shape[1:]), axis=0)
    if weights is not None:
        each = w.op("Reshape", weights, w.integers([bags, size, 1]), shape=[bags, size, 1])
        rows = w.op("Mul", rows, each, shape=rows.shape)
    type_ = ("ReduceSum", "ReduceMean", "ReduceMax")[mode]
    return w.op(type_, rows, w.integers([1]), shape=w.result_shape(), keepdims=0), None, None, None


@aten("one_hot.default")
def _one_hot(w: Writer, x: Value, classes: int = -1) -> Value:
    ends = w.constant(torch.tensor([0, 1]))
    return w.op("OneHot", x, w.scalar(classes, torch.int64), ends, shape=(*x.shape, classes), dtype=torch.int64)
