"""`GraphBuilder`: nodes and weights named by the module they belong to, in ONNX without the weights' values.

Weights are initializers whose data is declared to lie in a file beside the model that need not exist: planning never
reads it, and 175 billion parameters take a megabyte or two.  Every node carries its module path the way torch's
exporter writes it (`namespace`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["FLOAT", "INT64", "PRODUCER", "GraphBuilder"]

PRODUCER = "graph-planner"  # who made the model, as its file says

FLOAT = int(TensorProto.FLOAT)
INT64 = int(TensorProto.INT64)
ITEM_BYTES = {FLOAT: 4, INT64: 8}

# Operator set 20 has Gelu and LayerNormalization, and every runtime in use reads it; IR 10 brought node metadata.
OPSET = 20
IR_VERSION = 10

# Operators of later sets raise the set, and the IR version that came with it, of the models that have them.
LATER = {"Attention": (23, 11)}


class GraphBuilder:
    """Adds nodes one by one; values are the names of tensors.

    Inside `with g.scope("attn"):` parameters and results are named `….attn.<name>`.  A result is called after its
    operator, numbered where a module has several of a kind, so names depend on nothing but the module itself.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._scopes: list[tuple[str, str]] = []  # (dotted path, class)
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._taken: set[str] = set()
        self._offset = 0  # in the file of weights, in bytes
        self._versions = (OPSET, IR_VERSION)

    @contextmanager
    def scope(self, path: str, kind: str = "Module") -> Iterator[None]:
        """Everything added inside belongs to the module `path` (relative to the scope around it) of class `kind`."""
        self._scopes.append((self._qualified(path), kind))
        try:
            yield
        finally:
            self._scopes.pop()

    def input(self, name: str, shape: Sequence[int], dtype: int = FLOAT) -> str:
        """A tensor that the graph is fed."""
        self._inputs.append(helper.make_tensor_value_info(self._claim(name), dtype, list(shape)))
        return name

    def output(self, value: str, name: str, shape: Sequence[int], dtype: int = FLOAT) -> None:
        """Makes `value` a result of the graph under `name`; its shape is stated for readers that infer nothing."""
        self._nodes.append(self._node("Identity", [value], [self._claim(name)], {}))
        self._outputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))

    def parameter(self, name: str, *shape: int) -> str:
        """A float32 weight, declared but not stored."""
        path = self._claim(self._qualified(name))
        length = math.prod(shape) * ITEM_BYTES[FLOAT]
        stub = TensorProto(name=path, data_type=TensorProto.FLOAT, dims=list(shape), data_location=TensorProto.EXTERNAL)
        for key, value in (("location", f"{self.name}.weights"), ("offset", self._offset), ("length", length)):
            stub.external_data.add(key=key, value=str(value))
        self._offset += length
        self._initializers[path] = stub
        return path

    def constant(self, value: object, dtype: type[np.generic] = np.int64) -> str:
        """A small value stored in the file; equal ones are stored once."""
        array = np.asarray(value, dtype=dtype)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            name = self._claim(f"constant_{len(self._constants)}")
            self._constants[key] = name
            self._initializers[name] = numpy_helper.from_array(array, name)
        return self._constants[key]

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Adds an operator and returns its only result; an empty string is an optional operand left out."""
        return self.add_many(op_type, 1, *inputs, **attributes)[0]

    def add_many(self, op_type: str, count: int, *inputs: str, **attributes: Any) -> tuple[str, ...]:
        """Adds an operator with `count` results and returns them."""
        self._versions = max(self._versions, LATER.get(op_type, self._versions))
        outputs = [self._fresh(op_type.lower()) for _ in range(count)]
        self._nodes.append(self._node(op_type, inputs, outputs, attributes))
        return tuple(outputs)

    def model(self, metadata: Mapping[str, str] | None = None) -> onnx.ModelProto:
        """The finished model; equal calls give equal bytes."""
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, list(self._initializers.values())
        )
        opset, ir_version = self._versions
        imports = [helper.make_opsetid("", opset)]
        model = helper.make_model(graph, opset_imports=imports, producer_name=PRODUCER, ir_version=ir_version)
        for key, value in (metadata or {}).items():
            model.metadata_props.add(key=key, value=value)
        return model

    def _node(
        self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Mapping[str, Any]
    ) -> onnx.NodeProto:
        node = helper.make_node(op_type, list(inputs), list(outputs), name=f"node.{outputs[0]}", **attributes)
        links = [f"{path}: {kind}" for path, kind in self._scopes]
        node.metadata_props.add(key="namespace", value="/".join([*links, f"{outputs[0]}: {op_type}"]))
        return node

    def _qualified(self, name: str) -> str:
        return f"{self._scopes[-1][0]}.{name}" if self._scopes else name

    def _fresh(self, stem: str) -> str:
        name = base = self._qualified(stem)
        number = 0
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        return self._claim(name)

    def _claim(self, name: str) -> str:
        if name in self._taken:
            raise ValueError(f"the graph has a tensor named {name} already; names are given once")
        self._taken.add(name)
        return name
