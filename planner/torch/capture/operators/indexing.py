"""Look-ups."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from planner.errors import InputError
from planner.torch.capture.registry import aten
from planner.torch.capture.writer import Value, Writer

__all__: list[str] = []


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


@aten("index_select.default")
def _select(w: Writer, x: Value, dim: int, indices: Value) -> Value:
    at = x.dim(dim)
    return w.op("Gather", x, indices, shape=(*x.shape[:at], *indices.shape, *x.shape[at + 1 :]), axis=at)


@aten("gather.default")
def _gather(w: Writer, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    at = x.dim(dim)
    for d, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)):
        if d != at and m < n:  # ONNX's operands are alike but for this dimension
            ends = [w.integers(v) for v in ([0], [m], [d])]
            x = w.op("Slice", x, *ends, shape=(*x.shape[:d], m, *x.shape[d + 1 :]))
    return w.op("GatherElements", x, index, shape=index.shape, dtype=x.dtype, axis=at)


@aten("index.Tensor")
def _index(w: Writer, x: Value, indices: Sequence[Value | None]) -> Value:
    """Indices of one dimension are a Gather; those of several neighbours, from the first on, a GatherND."""
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
    if given != list(range(len(given))):
        raise InputError(f"{w.path or 'the module'}: indexing dimensions {given} at once has no translation")
    shape = torch.broadcast_shapes(*(i.shape for i in indices if i is not None))
    columns = []
    for i in indices:
        assert i is not None
        wide = w.cast(i, torch.int64)
        wide = wide if wide.shape == tuple(shape) else w.op("Expand", wide, w.integers(shape), shape=shape)
        columns.append(w.op("Unsqueeze", wide, w.integers([len(shape)]), shape=(*shape, 1)))
    at = w.op("Concat", *columns, shape=(*shape, len(columns)), axis=len(shape))
    return w.op("GatherND", x, at, shape=(*shape, *x.shape[len(given) :]), dtype=x.dtype)


@aten("one_hot.default")
def _one_hot(w: Writer, x: Value, classes: int = -1) -> Value:
    ends = w.constant(torch.tensor([0, 1]))
    return w.op("OneHot", x, w.scalar(classes, torch.int64), ends, shape=(*x.shape, classes), dtype=torch.int64)


@aten("scatter.src", "scatter.value", "scatter_add.default")
def _scatter(w: Writer, x: Value, dim: int, index: Value, source: Value | float) -> Value:
    if not isinstance(source, Value):
        source = Value("", index.shape, x.dtype, torch.full((1,) * index.rank, source, dtype=x.dtype))
    elif source.shape != index.shape:
        raise InputError(f"{w.path or 'the module'}: a scatter of more than it has indices for has no translation")
    how = {"reduction": "add"} if "add" in w.operator else {}
    return w.op("ScatterElements", x, index, source, shape=x.shape, axis=x.dim(dim), **how)
