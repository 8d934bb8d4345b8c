"""Arrays that write the nodes of a rank's graph: kernels that are written once run on them (`planner.kernels.shared`).

As much of the Python array API standard as these kernels use.  An element type is its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from types import EllipsisType
from typing import Any

import numpy as np
from onnx import numpy_helper

from planner.emit.onnx.ranks.local import Local, all_gather, all_reduce, all_to_all_v, refusal
from planner.emit.onnx.ranks.writer import Value, Writer
from planner.frontends.file.nodes import node_of
from planner.frontends.steps.infer import infer_op
from planner.ir import Op, Role, Tensor
from planner.kernels.session import NoKernelError
from planner.kernels.shared import Call
from planner.kernels.spmd import AllGather, AllReduce, Coroutine, Exchange, Sizes
from planner.verify.data import numpy_dtype

__all__ = ["GraphArray", "GraphNamespace", "write_shared"]

Axis = int | Sequence[int] | None


@dataclass(frozen=True, slots=True, eq=False)
class GraphArray:
    """A value of the graph that is written."""

    writer: Writer
    value: Value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.dims

    @property
    def ndim(self) -> int:
        return self.value.rank

    @property
    def dtype(self) -> str:
        return self.value.dtype

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __getitem__(self, key: int | slice | tuple[int | slice | EllipsisType, ...]) -> GraphArray:
        """Elements and consecutive parts; dimensions that are not named, and those of an ellipsis, stay whole."""
        keys = _keys(key if isinstance(key, tuple) else (key,), self.ndim)
        value = self.value
        for dim, k in enumerate(keys):
            part = slice(k, k + 1 or None) if isinstance(k, int) else k
            start, stop, step = part.indices(value.dims[dim])
            assert step == 1, "a flip or a look-up says the others"
            value = self.writer.slice(value, dim, start, max(start, stop))
        dropped = [dim for dim, k in enumerate(keys) if isinstance(k, int)]
        return GraphArray(self.writer, self.writer.reshape(value, _without(value.dims, dropped)))

    @property
    def device(self) -> str:
        """All of a graph's values are on one."""
        return ""

    def __array_namespace__(self, api_version: str | None = None) -> GraphNamespace:
        return GraphNamespace(self.writer)

    def _join(self, kind: str, other: Any, dtype: str = "", *, turned: bool = False) -> GraphArray:
        b = other.value if isinstance(other, GraphArray) else self.writer.number(other, self.value)
        pair = (b, self.value) if turned else (self.value, b)
        return GraphArray(self.writer, self.writer.join(kind, *pair, dtype))

    def __add__(self, other: Any) -> GraphArray:
        return self._join("Add", other)

    def __radd__(self, other: Any) -> GraphArray:
        return self._join("Add", other, turned=True)

    def __sub__(self, other: Any) -> GraphArray:
        return self._join("Sub", other)

    def __rsub__(self, other: Any) -> GraphArray:
        return self._join("Sub", other, turned=True)

    def __mul__(self, other: Any) -> GraphArray:
        return self._join("Mul", other)

    def __rmul__(self, other: Any) -> GraphArray:
        return self._join("Mul", other, turned=True)

    def __truediv__(self, other: Any) -> GraphArray:
        return self._join("Div", other)

    def __rtruediv__(self, other: Any) -> GraphArray:
        if not isinstance(other, GraphArray) and other == 1:
            return GraphArray(self.writer, self.writer.each("Reciprocal", self.value))
        return self._join("Div", other, turned=True)

    def __floordiv__(self, other: Any) -> GraphArray:
        """Of integers that are not negative."""
        return self._join("Div", other)

    def __matmul__(self, other: GraphArray) -> GraphArray:
        """Of matrices."""
        lead = np.broadcast_shapes(self.shape[:-2], other.shape[:-2])
        shape = (*lead, self.shape[-2], other.shape[-1])
        return GraphArray(self.writer, self.writer.op("MatMul", [self.value, other.value], self.dtype, shape))

    def __mod__(self, other: Any) -> GraphArray:
        """Of integers that are not negative."""
        return self._join("Mod", other)

    def __pow__(self, other: Any) -> GraphArray:
        return self._join("Pow", other)

    def __neg__(self) -> GraphArray:
        return GraphArray(self.writer, self.writer.each("Neg", self.value))

    def __and__(self, other: Any) -> GraphArray:
        return self._join("And", other, "bool")

    def __invert__(self) -> GraphArray:
        return GraphArray(self.writer, self.writer.each("Not", self.value))

    def __lt__(self, other: Any) -> GraphArray:
        return self._join("Less", other, "bool")

    def __gt__(self, other: Any) -> GraphArray:
        return self._join("Greater", other, "bool")

    def __ge__(self, other: Any) -> GraphArray:
        return ~self._join("Less", other, "bool")

    def __eq__(self, other: object) -> GraphArray:  # type: ignore[override]  # elementwise, as the standard has it
        return self._join("Equal", other, "bool")

    def __ne__(self, other: object) -> GraphArray:  # type: ignore[override]
        return ~self._join("Equal", other, "bool")


class _ElementTypes:
    """Apart from the namespace, in whose body the name `bool` would no longer be the type."""

    bool = "bool"
    float32 = "float32"
    int64 = "int64"


class GraphNamespace(_ElementTypes):
    """Functions of the standard, each of which writes its nodes."""

    __name__ = "planner.emit.onnx.ranks.arrays"  # namespaces are told apart by it

    def __init__(self, writer: Writer) -> None:
        self._w = writer

    def _new(self, value: Value) -> GraphArray:
        return GraphArray(self._w, value)

    def _each(self, kind: str, x: GraphArray) -> GraphArray:
        return self._new(self._w.each(kind, x.value))

    # Elementwise

    def exp(self, x: GraphArray) -> GraphArray:
        return self._each("Exp", x)

    def log(self, x: GraphArray) -> GraphArray:
        return self._each("Log", x)

    def sqrt(self, x: GraphArray) -> GraphArray:
        return self._each("Sqrt", x)

    def abs(self, x: GraphArray) -> GraphArray:
        return self._each("Abs", x)

    def sign(self, x: GraphArray) -> GraphArray:
        return self._each("Sign", x)

    def tanh(self, x: GraphArray) -> GraphArray:
        return self._each("Tanh", x)

    def square(self, x: GraphArray) -> GraphArray:
        return x * x

    def isfinite(self, x: GraphArray) -> GraphArray:
        """Of what is no NaN."""
        return ~self._new(self._w.op("IsInf", [x.value], "bool", x.shape))

    def where(self, condition: GraphArray, a: Any, b: Any) -> GraphArray:
        like = a if isinstance(a, GraphArray) else b
        x, y = (v.value if isinstance(v, GraphArray) else self._w.number(v, like.value) for v in (a, b))
        return self._new(self._w.where(condition.value, x, y))

    def astype(self, x: GraphArray, dtype: str, *, copy: bool = True) -> GraphArray:
        return self._new(self._w.cast(x.value, dtype))

    # Reductions

    def _reduce(self, kind: str, x: GraphArray, axis: Axis, keepdims: bool) -> GraphArray:
        axes = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
        axes = tuple(a % max(x.ndim, 1) for a in axes)
        found = self._w.reduce(kind, x.value, axes)
        return self._new(found if keepdims else self._w.reshape(found, _without(found.dims, axes)))

    def sum(self, x: GraphArray, *, axis: Axis = None, dtype: str | None = None, keepdims: bool = False) -> GraphArray:
        return self._reduce("ReduceSum", x, axis, keepdims)

    def prod(self, x: GraphArray, *, axis: Axis = None, dtype: str | None = None, keepdims: bool = False) -> GraphArray:
        return self._reduce("ReduceProd", x, axis, keepdims)

    def max(self, x: GraphArray, *, axis: Axis = None, keepdims: bool = False) -> GraphArray:
        return self._reduce("ReduceMax", x, axis, keepdims)

    def min(self, x: GraphArray, *, axis: Axis = None, keepdims: bool = False) -> GraphArray:
        return self._reduce("ReduceMin", x, axis, keepdims)

    def argmax(self, x: GraphArray, *, axis: int, keepdims: bool = False) -> GraphArray:
        return self._place("ArgMax", x, axis, keepdims)

    def argmin(self, x: GraphArray, *, axis: int, keepdims: bool = False) -> GraphArray:
        return self._place("ArgMin", x, axis, keepdims)

    def _place(self, kind: str, x: GraphArray, axis: int, keepdims: bool) -> GraphArray:
        self._w.need()
        axis %= x.ndim
        one_shape = tuple(1 if d == axis else n for d, n in enumerate(x.shape))
        found = self._w.op(kind, [x.value], "int64", one_shape, axis=axis, keepdims=1)
        return self._new(found if keepdims else self._w.reshape(found, _without(one_shape, (axis,))))

    # Shapes and places

    def zeros(self, shape: tuple[int, ...], *, dtype: str, device: str | None = None) -> GraphArray:
        return self._new(self._w.filled(shape, dtype))

    def reshape(self, x: GraphArray, shape: Sequence[int]) -> GraphArray:
        return self._new(self._w.reshape(x.value, tuple(int(n) for n in shape)))

    def permute_dims(self, x: GraphArray, axes: Sequence[int]) -> GraphArray:
        shape = tuple(x.shape[a] for a in axes)
        return self._new(self._w.op("Transpose", [x.value], x.dtype, shape, perm=list(axes)))

    def matrix_transpose(self, x: GraphArray) -> GraphArray:
        return self.permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))

    def broadcast_to(self, x: GraphArray, shape: Sequence[int]) -> GraphArray:
        self._w.need()
        target = self._w.constant(np.array(shape, dtype=np.int64))
        return self._new(self._w.op("Expand", [x.value, target], x.dtype, tuple(shape)))

    def squeeze(self, x: GraphArray, axis: Axis) -> GraphArray:
        axes = (axis,) if isinstance(axis, int) else tuple(axis or ())
        return self.reshape(x, _without(x.shape, tuple(a % x.ndim for a in axes)))

    def expand_dims(self, x: GraphArray, *, axis: int = 0) -> GraphArray:
        return self._new(self._w.expand(x.value, axis % (x.ndim + 1)))

    def concat(self, arrays: Sequence[GraphArray], *, axis: int = 0) -> GraphArray:
        return self._new(self._w.concat([x.value for x in arrays], axis % arrays[0].ndim))

    def stack(self, arrays: Sequence[GraphArray], *, axis: int = 0) -> GraphArray:
        return self.concat([self.expand_dims(x, axis=axis) for x in arrays], axis=axis)

    def flip(self, x: GraphArray, *, axis: int) -> GraphArray:
        return self._new(self._w.take(x.value, np.arange(x.shape[axis])[::-1], axis % x.ndim))

    def tile(self, x: GraphArray, repetitions: Sequence[int]) -> GraphArray:
        shape = tuple(n * r for n, r in zip(x.shape, repetitions, strict=True))
        counts = self._w.constant(np.array(repetitions, dtype=np.int64))
        return self._new(self._w.op("Tile", [x.value, counts], x.dtype, shape))

    def triu(self, x: GraphArray, *, k: int = 0) -> GraphArray:
        return self._triangle(x, k, upper=1)

    def tril(self, x: GraphArray, *, k: int = 0) -> GraphArray:
        return self._triangle(x, k, upper=0)

    def _triangle(self, x: GraphArray, k: int, upper: int) -> GraphArray:
        diagonal = self._w.constant(np.array(k, dtype=np.int64))
        return self._new(self._w.op("Trilu", [x.value, diagonal], x.dtype, x.shape, upper=upper))

    def take(self, x: GraphArray, indices: GraphArray, *, axis: int) -> GraphArray:
        """Of indices in any shape, as numpy has it."""
        return self._new(self._w.gather(x.value, indices.value, axis % x.ndim))

    def take_along_axis(self, x: GraphArray, indices: GraphArray, *, axis: int) -> GraphArray:
        self._w.need()
        found = self._w.op("GatherElements", [x.value, indices.value], x.dtype, indices.shape, axis=axis % x.ndim)
        return self._new(found)

    def arange(self, stop: int, *, device: str | None = None) -> GraphArray:
        limits = [self._w.constant(np.array(v, dtype=np.int64)) for v in (0, stop, 1)]
        self._w.need()
        return self._new(self._w.op("Range", limits, "int64", (stop,)))

    def ones_like(self, x: GraphArray) -> GraphArray:
        return self._new(self._w.filled(x.shape, x.dtype, 1))

    def full(self, shape: Sequence[int], value: float, *, dtype: str, device: str | None = None) -> GraphArray:
        return self._new(self._w.filled(tuple(shape), dtype, value))

    def asarray(self, value: Any, *, dtype: str, device: str | None = None) -> GraphArray:
        """A constant of the graph."""
        return self._new(self._w.constant(np.asarray(value, dtype=numpy_dtype(dtype))))


def _keys(keys: tuple[int | slice | EllipsisType, ...], rank: int) -> list[int | slice]:
    """A key for each dimension, up to the last that has one."""
    out: list[int | slice] = []
    for k in keys:
        out += [slice(None)] * (rank - len(keys) + 1) if isinstance(k, EllipsisType) else [k]
    return out


def _without(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for d, n in enumerate(shape) if d not in axes)


def write_shared(
    function: Callable[[Call], Coroutine], w: Writer, here: Local, operands: Sequence[Value | None]
) -> list[Value | None]:
    """Writes the nodes of a kernel, and those of the collectives that it yields."""

    def run(op: Op, inputs: Sequence[Any]) -> list[GraphArray | None]:
        """A node of the operator on local operands."""
        read = [None if x is None else x.value for x in inputs]
        tensors = {x.name: Tensor(x.name, x.dims, x.dtype, Role.ACTIVATION) for x in read if x is not None}
        values = {n: numpy_helper.to_array(w.constants[n]) for n in tensors if n in w.constants}
        names = tuple(x.name if x is not None else "" for x in read)
        outputs = tuple(w.fresh(f"{op.name}/local") if n else "" for n in op.outputs)
        node = replace(op, inputs=names, outputs=outputs)
        found = infer_op(node, tensors, values)
        w.raw(node_of(node))
        return [
            GraphArray(w, w.declare(n, dtype or "", shape)) if n else None
            for n, (dtype, shape) in zip(node.outputs, found, strict=True)
        ]

    inputs = [None if x is None else GraphArray(w, x) for x in operands]
    routine = function(Call(here.op, inputs, here.place, GraphNamespace(w), run, here.known))
    received: Any = None
    while True:
        try:
            collective: Any = routine.send(received)
        except StopIteration as stop:
            found: list[GraphArray | None] = stop.value
            return [None if r is None else r.value for r in found[: len(here.op.outputs)]]
        except NoKernelError as reason:
            raise refusal(here.op, here.place, str(reason)) from reason
        received = _meet(collective, w, here)


def _meet(collective: Any, w: Writer, here: Local) -> Any:
    if isinstance(collective, AllReduce):
        value: Any = collective.value
        return GraphArray(w, all_reduce(w, value.value, here.groups[collective.factor], collective.reduction))
    if isinstance(collective, AllGather):
        mine: Any = collective.value
        ranks = here.groups[collective.factor]
        joined = all_gather(w, w.expand(mine.value, 0), ranks, 0)
        return tuple(GraphArray(w, w.reshape(part, mine.shape)) for part in w.parts(joined, 0, [1] * len(ranks)))
    if isinstance(collective, Exchange) and collective.sizes is not None:
        return _exchanged(collective.pieces, collective.sizes, w, here.groups[collective.factor])
    raise refusal(here.op, here.place, "its ranks hand pieces to each other, which is not among what is written so far")


def _exchanged(pieces: Sequence[Any], sizes: Sizes, w: Writer, ranks: Sequence[int]) -> tuple[GraphArray | None, ...]:
    """One all-to-all with parts of known sizes, laid out by receiver and by sender."""
    like: Any = sizes.like
    dim, arriving = sizes.dim, sizes.arriving
    sent = [p.value for p in pieces if p is not None] or [w.slice(like.value, dim, 0, 0)]
    lengths = [0 if p is None else p.shape[dim] for p in pieces]
    arrived = all_to_all_v(w, w.concat(sent, dim), ranks, dim, lengths, arriving)
    bounds = pairwise(accumulate(arriving, initial=0))
    return tuple(GraphArray(w, w.slice(arrived, dim, *b)) if n else None for n, b in zip(arriving, bounds, strict=True))
