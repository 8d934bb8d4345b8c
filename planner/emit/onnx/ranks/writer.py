"""Nodes of one rank's graph, written one after the other; every value is known by name, element type and shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from planner.errors import InputError
from planner.frontends.file.dtypes import ELEM_TYPE, dtype_name
from planner.verify.data import numpy_dtype

__all__ = ["Array", "Value", "Writer"]

Array = NDArray[Any]
Shape = tuple[int, ...]

_SHAPES_BY_OPERAND: Final = 5  # operator sets in which attributes became operands
_SLICES_BY_OPERAND: Final = 10
_SUMS_BY_OPERAND: Final = 13
_REDUCTIONS_BY_OPERAND: Final = 18
_FILLS: Final = 9  # ConstantOfShape
_CONCATENATIONS: Final = 4  # which ONNX Runtime runs
_LEAST: Final = 11  # element-wise selection and look-ups, as they are used here


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the rank's graph; `shape` is None where it depends on data."""

    name: str
    dtype: str
    shape: Shape | None

    @property
    def dims(self) -> Shape:
        """The shape, where it is known.  InputError elsewhere."""
        if self.shape is None:
            raise InputError(f"tensor {self.name}: its shape depends on data, and what reads it needs to know it")
        return self.shape

    @property
    def rank(self) -> int:
        return len(self.dims)


class Writer:
    """`opset`: version of ONNX's own operators; `taken`: names that the graph has already."""

    def __init__(self, opset: int, taken: Iterable[str]) -> None:
        self.opset = opset
        self.scope = ""  # what helper values are named after
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.values: dict[str, Value] = {}
        self._taken = set(taken)
        self._known: dict[tuple[str, Shape, bytes], Value] = {}

    # Names and nodes

    def fresh(self, wanted: str) -> str:
        """`wanted`, or with a number behind it where that is taken."""
        name, n = wanted, 1
        while name in self._taken:
            n += 1
            name = f"{wanted}#{n}"
        self._taken.add(name)
        return name

    def declare(self, name: str, dtype: str, shape: Shape | None) -> Value:
        self.values[name] = Value(name, dtype, shape)
        return self.values[name]

    def raw(self, node: onnx.NodeProto) -> None:
        self.nodes.append(node)

    def op(
        self,
        kind: str,
        inputs: Sequence[Value | None],
        dtype: str,
        shape: Shape | None,
        *,
        domain: str = "",
        name: str = "",
        **attributes: Any,
    ) -> Value:
        """A node with one result, and that result.  `name` is one that `fresh` gave, or a tensor of the model."""
        out = self.declare(name or self.fresh(f"{self.scope}/{kind.lower()}"), dtype, shape)
        operands = [x.name if x is not None else "" for x in inputs]
        self.raw(helper.make_node(kind, operands, [out.name], domain=domain, **attributes))
        return out

    def several(
        self,
        kind: str,
        inputs: Sequence[Value | None],
        outputs: Sequence[Value],
        *,
        domain: str = "",
        **attributes: Any,
    ) -> None:
        """A node with results that are declared already."""
        operands = [x.name if x is not None else "" for x in inputs]
        self.raw(helper.make_node(kind, operands, [y.name for y in outputs], domain=domain, **attributes))

    def named(self, value: Value, name: str, since: int) -> Value:
        """`value` under another name: that of the result of a node written at or after position `since`, or a copy."""
        made = next((n for n in self.nodes[since:] if value.name in n.output), None)
        if made is None:
            return self.op("Identity", [value], value.dtype, value.shape, name=name)
        for node in self.nodes[since:]:
            for names in (node.input, node.output):
                for i, n in enumerate(names):
                    if n == value.name:
                        names[i] = name
        del self.values[value.name]
        return self.declare(name, value.dtype, value.shape)

    def constant(self, value: Array, wanted: str = "") -> Value:
        """An initializer; equal ones are one."""
        value = np.array(value, order="C")
        key = (value.dtype.name, value.shape, value.tobytes())
        if key not in self._known:
            name = self.fresh(wanted or "constant")
            self.constants[name] = numpy_helper.from_array(value, name)
            self._known[key] = self.declare(name, _dtype(self.constants[name]), value.shape)
        return self._known[key]

    def store(self, name: str, value: Array) -> None:
        """An initializer of a name of its own."""
        self.constants[name] = numpy_helper.from_array(np.array(value, order="C"), name)

    def number(self, value: float, like: Value) -> Value:
        """A scalar of the element type of another value.  InputError where that is not known."""
        if not like.dtype:
            raise InputError(
                f"tensor {like.name}: its element type is not known to the model's operator set, and what is computed "
                "with it needs to know it; export the model again with a newer opset"
            )
        return self.constant(np.array(value, dtype=numpy_dtype(like.dtype)))

    def need(self, version: int = _LEAST) -> None:
        if self.opset < version:
            raise InputError(
                f"operator {self.scope}: what it does across ranks is written in operators of ONNX {version}, and the "
                f"model has operator set {self.opset}; convert it with onnx.version_converter"
            )

    # Arithmetic

    def join(self, kind: str, a: Value, b: Value, dtype: str = "") -> Value:
        """An element-wise operator of two operands, which broadcast."""
        self.need()
        return self.op(kind, [a, b], dtype or a.dtype, np.broadcast_shapes(a.dims, b.dims))

    def each(self, kind: str, x: Value) -> Value:
        return self.op(kind, [x], x.dtype, x.shape)

    def cast(self, x: Value, dtype: str) -> Value:
        return x if x.dtype == dtype else self.op("Cast", [x], dtype, x.shape, to=ELEM_TYPE[dtype])

    def where(self, condition: Value, a: Value, b: Value) -> Value:
        self.need()
        shape = np.broadcast_shapes(condition.dims, a.dims, b.dims)
        return self.op("Where", [condition, a, b], a.dtype, shape)

    def reduce(self, kind: str, x: Value, axes: Sequence[int]) -> Value:
        """ReduceSum, ReduceMax, …; the dimensions stay, with one element."""
        self.need()
        shape = tuple(1 if d in axes else n for d, n in enumerate(x.dims))
        since = _SUMS_BY_OPERAND if kind == "ReduceSum" else _REDUCTIONS_BY_OPERAND
        if not axes:
            return x
        if self.opset >= since:
            return self.op(kind, [x, self.constant(np.array(axes, dtype=np.int64))], x.dtype, shape, keepdims=1)
        return self.op(kind, [x], x.dtype, shape, axes=list(axes), keepdims=1)

    # Shapes and places

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        if x.shape == tuple(shape):
            return x
        if self.opset < _SHAPES_BY_OPERAND:
            out = self.declare(self.fresh(f"{self.scope}/reshape"), x.dtype, tuple(shape))
            self.raw(helper.make_node("Reshape", [x.name], [out.name], shape=list(shape)))
            return out
        target = self.constant(np.array(shape, dtype=np.int64))
        return self.op("Reshape", [x, target], x.dtype, tuple(shape))

    def expand(self, x: Value, dim: int) -> Value:
        """With a dimension of one element before `dim`."""
        return self.reshape(x, (*x.dims[:dim], 1, *x.dims[dim:]))

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        if len(parts) == 1:
            return parts[0]
        self.need(_CONCATENATIONS)
        sizes = [p.dims[axis] for p in parts]
        first = parts[0]
        shape = (*first.dims[:axis], sum(sizes), *first.dims[axis + 1 :])
        return self.op("Concat", parts, first.dtype, shape, axis=axis)

    def gather(self, x: Value, indices: Value, axis: int) -> Value:
        self.need()
        shape = (*x.dims[:axis], *indices.dims, *x.dims[axis + 1 :])
        return self.op("Gather", [x, indices], x.dtype, shape, axis=axis)

    def take(self, x: Value, places: Array, axis: int) -> Value:
        """Elements at known places."""
        if len(places) == x.dims[axis] and np.array_equal(places, np.arange(len(places))):
            return x
        if len(places) and np.array_equal(places, np.arange(places[0], places[0] + len(places))):
            return self.slice(x, axis, int(places[0]), int(places[-1]) + 1)
        return self.gather(x, self.constant(np.asarray(places, dtype=np.int64)), axis)

    def slice(self, x: Value, dim: int, start: int, stop: int) -> Value:
        size = x.dims[dim]
        shape = (*x.dims[:dim], stop - start, *x.dims[dim + 1 :])
        if (start, stop) == (0, size):
            return x
        if self.opset < _SLICES_BY_OPERAND:
            return self.op("Slice", [x], x.dtype, shape, axes=[dim], starts=[start], ends=[stop])
        bounds = [self.constant(np.array([v], dtype=np.int64)) for v in (start, stop, dim)]
        return self.op("Slice", [x, *bounds], x.dtype, shape)

    def parts(self, x: Value, dim: int, sizes: Sequence[int]) -> list[Value]:
        """Consecutive parts along a dimension."""
        ends = np.cumsum(sizes)
        return [self.slice(x, dim, int(end) - size, int(end)) for size, end in zip(sizes, ends, strict=True)]

    def filled(self, shape: Shape, dtype: str, value: float = 0) -> Value:
        """A tensor of one value, which takes no place in the file."""
        self.need(_FILLS)
        fill = numpy_helper.from_array(np.array([value], dtype=numpy_dtype(dtype)))
        return self.op("ConstantOfShape", [self.constant(np.array(shape, dtype=np.int64))], dtype, shape, value=fill)


def _dtype(t: onnx.TensorProto) -> str:
    found = dtype_name(t.data_type)
    assert found is not None, "made from an array of a type that ONNX has"
    return found
