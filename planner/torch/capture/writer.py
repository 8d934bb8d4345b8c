"""ONNX nodes of a captured step, written one by one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor

from planner.errors import InputError

__all__ = ["OPSET", "Value", "Writer"]

OPSET = 23  # the first that knows Attention and RMSNormalization
_IR_VERSION = 10

_TYPES: dict[torch.dtype, int] = {
    torch.float64: TensorProto.DOUBLE, torch.float32: TensorProto.FLOAT, torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16, torch.int64: TensorProto.INT64, torch.int32: TensorProto.INT32,
    torch.int16: TensorProto.INT16, torch.int8: TensorProto.INT8, torch.uint8: TensorProto.UINT8,
    torch.bool: TensorProto.BOOL,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph that is written.

    `held`: what is known of it, where nothing that is fed or trained enters it.  It may be smaller than `shape`: where
    it repeats along a dimension, it has that once.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    held: Tensor | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    def whole(self) -> Tensor:
        """What is known of it, repeated as far as its shape goes."""
        assert self.held is not None
        return self.held.expand(self.shape)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def dim(self, index: int) -> int:
        """A dimension counted from the front."""
        return index % max(self.rank, 1)


@dataclass
class Writer:
    """Nodes, and what they read that no node computes.

    For whom is written: `path` is the module, `base` the name of the operator in it, `operator` its ATen name and
    `results` what torch.export knows of what it returns.  `counted`: running variance → what it was computed from.
    """

    name: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    stored: list[onnx.TensorProto] = field(default_factory=list)
    shapes: list[onnx.ValueInfoProto] = field(default_factory=list)
    constants: dict[str, Tensor] = field(default_factory=dict)
    counted: dict[str, str] = field(default_factory=dict)
    path: str = ""
    base: str = ""
    operator: str = ""
    results: tuple[Tensor, ...] = ()
    _names: Counter[str] = field(default_factory=Counter)
    _known: dict[Any, str] = field(default_factory=dict)

    # Sources

    def fed(self, name: str, like: Tensor) -> Value:
        """An input of the step."""
        self.inputs.append(helper.make_tensor_value_info(self._own(name), self.type(like.dtype, name), like.shape))
        return Value(name, tuple(like.shape), like.dtype)

    def parameter(self, name: str, like: Tensor) -> Value:
        """A weight or a buffer that changes; its numbers are not written."""
        t = TensorProto(name=self._own(name), data_type=self.type(like.dtype, name), dims=list(like.shape))
        t.data_location = TensorProto.EXTERNAL
        t.external_data.add(key="location", value="weights-left-out")
        self.stored.append(t)
        return Value(name, tuple(like.shape), like.dtype)

    def constant(self, value: Tensor, name: str = "") -> str:
        """The name under which the numbers are stored."""
        # As one of its own: a view of one element may have any stride, and passes for contiguous.
        value = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        raw = value if value.dtype != torch.bfloat16 else value.view(torch.int16)
        content = raw.numpy().tobytes()
        # What every layer computes alike, such as rotary tables, is stored once.
        key = (name, value.dtype, tuple(value.shape), sha256(content).digest())
        if key in self._known:
            return self._known[key]
        given = self._own(self.unique(name or f"{self.base}.constant"))
        t = TensorProto(name=given, data_type=self.type(value.dtype, given), dims=list(value.shape))
        t.raw_data = content
        self.stored.append(t)
        self.constants[given] = value
        self._known[key] = given
        return given

    def integers(self, values: Sequence[int]) -> str:
        """A vector of whole numbers, as operators read their axes and shapes."""
        return self.constant(torch.tensor(list(values), dtype=torch.int64))

    def scalar(self, value: float, dtype: torch.dtype) -> Value:
        t = torch.tensor(value, dtype=dtype)
        return Value(self.constant(t), (), dtype, t)

    # Nodes

    def result_shape(self) -> tuple[int, ...]:
        """The shape of what is translated returns."""
        return tuple(self.results[0].shape)

    def result_shapes(self) -> list[tuple[int, ...]]:
        return [tuple(r.shape) for r in self.results]

    def op(
        self, type_: str, *operands: Value | str | None, shape: Sequence[int], dtype: torch.dtype | None = None,
        domain: str = "", **attributes: Any,
    ) -> Value:  # fmt: skip
        """A node with one result, of a shape, and of its first operand's type where no other is given."""
        if dtype is None:
            first = operands[0]
            assert isinstance(first, Value)
            dtype = first.dtype
        (found,) = self.ops(type_, operands, [(tuple(shape), dtype)], domain=domain, **attributes)
        return found

    def ops(
        self,
        type_: str,
        operands: Sequence[Value | str | None],
        results: Sequence[tuple[Sequence[int], torch.dtype] | None],
        *,
        domain: str = "",
        **attributes: Any,
    ) -> tuple[Value, ...]:
        """A node with several results, None where one is left out; those that there are."""
        reads = ["" if x is None else x if isinstance(x, str) else self.read(x) for x in operands]
        while reads and not reads[-1]:
            reads.pop()
        names = ["" if r is None else self._own(self.unique(f"{self.base}.{type_.lower()}")) for r in results]
        node = helper.make_node(type_, reads, names, name=names[0], domain=domain, **attributes)
        node.metadata_props.add(key="namespace", value=f"{self.path}: module/{names[0]}: aten")
        self.nodes.append(node)
        found = []
        for name, r in zip(names, results, strict=True):
            if r is not None:
                self.shapes.append(helper.make_tensor_value_info(name, self.type(r[1], name), list(r[0])))
                found.append(Value(name, tuple(r[0]), r[1]))
        return tuple(found)

    def read(self, x: Value, *, broadcast: bool = False) -> str:
        """The name by which an operator reads it; of a known value that is repeated, by one that `broadcast`s, what is
        repeated."""
        if x.held is None or x.name:
            return x.name
        name = self.constant(x.held)
        if broadcast or tuple(x.held.shape) == x.shape:
            return name
        whole = Value(name, tuple(x.held.shape), x.dtype)
        return self.op("Expand", whole, self.integers(x.shape), shape=x.shape).name

    def broadcast(self, x: Value) -> Value:
        """As an operator reads it that repeats its operands where that is needed."""
        if x.held is None or x.name:
            return x
        return Value(self.read(x, broadcast=True), tuple(x.held.shape), x.dtype)

    def cast(self, x: Value, dtype: torch.dtype) -> Value:
        if x.dtype == dtype:
            return x
        if x.held is not None:
            return Value("", x.shape, dtype, x.held.to(dtype))
        return self.op("Cast", x, shape=x.shape, dtype=dtype, to=self.type(dtype, x.name))

    def expanded_from(self, x: Value) -> Value | None:
        """What an Expand repeated to make this tensor; None where none did."""
        for node in reversed(self.nodes):
            if node.output[0] == x.name:
                if node.op_type != "Expand":
                    return None
                known = {v.name: v for v in (*self.shapes, *self.inputs)}.get(node.input[0])
                if known is None:
                    return None
                return Value(known.name, tuple(d.dim_value for d in known.type.tensor_type.shape.dim), x.dtype)
        return None

    # The whole

    def model(self, outputs: Sequence[Value], facts: dict[str, str]) -> bytes:
        """The serialised ModelProto; `facts` are its metadata."""
        results = [helper.make_tensor_value_info(v.name, self.type(v.dtype, v.name), v.shape) for v in outputs]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, results, self.stored, value_info=self.shapes)
        domains = sorted({n.domain for n in self.nodes} - {""})
        opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(d, 1) for d in domains)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="planner.torch")
        for key, value in facts.items():
            model.metadata_props.add(key=key, value=value)
        return bytes(model.SerializeToString(deterministic=True))

    def type(self, dtype: torch.dtype, what: str) -> int:
        if dtype not in _TYPES:
            raise InputError(f"{what}: tensors of {dtype} cannot be planned for; expected floats, integers or booleans")
        return _TYPES[dtype]

    def unique(self, name: str) -> str:
        self._names[name] += 1
        count = self._names[name]
        return name if count == 1 else self.unique(f"{name}_{count - 1}")

    def _own(self, name: str) -> str:
        self._names[name] = max(1, self._names[name])
        return name


def as_array(value: Tensor) -> np.ndarray[Any, Any]:
    """Numbers as the planner's kernels read them."""
    import ml_dtypes

    value = value.detach().cpu()
    if value.dtype == torch.bfloat16:
        found: np.ndarray[Any, Any] = value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return found
    return np.asarray(value.numpy())
