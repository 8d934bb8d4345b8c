"""A graph under construction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["OPSET", "GraphBuilder"]

OPSET = 20
# Weights are declared as stored in this file, which nobody writes: planning never reads them.
WEIGHTS_FILE = "weights.bin"


class GraphBuilder:
    """Adds nodes in order; names are unique and carry the module path of the scope they are made in."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._path: list[str] = []
        self._constants: dict[tuple[object, ...], str] = {}

    @contextmanager
    def scope(self, *names: object) -> Iterator[None]:
        """Module path for what is added inside."""
        self._path += [str(n) for n in names]
        yield
        del self._path[len(self._path) - len(names) :]

    def input(self, name: str, shape: Sequence[int], *, integer: bool = False) -> str:
        kind = TensorProto.INT64 if integer else TensorProto.FLOAT
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, shape: Sequence[int]) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def parameter(self, name: str, *shape: int) -> str:
        """A trained float tensor without values."""
        tensor = TensorProto()
        tensor.name = ".".join([*self._path, name])
        tensor.data_type = TensorProto.FLOAT
        tensor.dims.extend(shape)
        tensor.data_location = TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", WEIGHTS_FILE
        self.weights.append(tensor)
        return tensor.name

    def constant(self, value: Any, *, integer: bool = False) -> str:
        """A small fixed tensor; equal ones are shared."""
        array = np.asarray(value, dtype=np.int64 if integer else np.float32)
        key = (array.shape, array.dtype.str, array.tobytes())
        if key not in self._constants:
            self._constants[key] = f"constant_{len(self._constants)}"
            self.weights.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def node(self, op: str, *operands: str, results: int = 1, **attributes: Any) -> Any:
        """Adds an operator; its result's name, or a list of names where it has several."""
        names = [f"{op.lower()}_{len(self.nodes)}" + (f"_{i}" if results > 1 else "") for i in range(results)]
        node = helper.make_node(op, operands, names, name=f"node_{names[0]}", **attributes)
        if self._path:
            entry = node.metadata_props.add()
            entry.key, entry.value = "namespace", f"{'.'.join(self._path)}: module/{names[0]}: {op}"
        self.nodes.append(node)
        return names if results > 1 else names[0]

    # What every architecture is made of

    def linear(self, x: str, name: str, inner: int, outer: int, *, bias: bool = True) -> str:
        """x @ W + b over the last dimension; W is [inner, outer]."""
        with self.scope(name):
            y = self.node("MatMul", x, self.parameter("weight", inner, outer))
            return self.node("Add", y, self.parameter("bias", outer)) if bias else y

    def layer_norm(self, x: str, name: str, width: int) -> str:
        with self.scope(name):
            scale, shift = self.parameter("weight", width), self.parameter("bias", width)
            return self.node("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-5)

    def rms_norm(self, x: str, name: str, width: int) -> str:
        """Spelt out, as exporters below opset 23 do."""
        with self.scope(name):
            square = self.node("Pow", x, self.constant(2.0))
            mean = self.node("ReduceMean", square, self.constant([-1], integer=True), keepdims=1)
            root = self.node("Sqrt", self.node("Add", mean, self.constant(1e-6)))
            scaled = self.node("Mul", x, self.node("Reciprocal", root))
            return self.node("Mul", self.parameter("weight", width), scaled)

    def reshape(self, x: str, *shape: int) -> str:
        return self.node("Reshape", x, self.constant(shape, integer=True))

    def cross_entropy(self, logits: str, labels: str, rows: int, classes: int) -> None:
        """The loss over [rows, classes], as the graph's output `loss`."""
        scores = self.reshape(logits, rows, classes)
        flat = self.reshape(labels, rows)
        result = self.node("SoftmaxCrossEntropyLoss", scores, flat, reduction="mean", ignore_index=-100)
        self.nodes[-1].output[0] = "loss"
        assert result
        self.output("loss", [])

    def model(self) -> onnx.ModelProto:
        """The finished model."""
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        model.producer_name = "planner build"
        return model
