"""Models written down node by node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["Model"]


class Model:
    """One of them; weights have no values but for those that are given."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []

    def weight(self, *shape: int, dtype: type = np.float32) -> str:
        """One that the file leaves out, as it does with large ones."""
        kind = TensorProto.FLOAT if dtype is np.float32 else TensorProto.INT8
        stored = TensorProto(name=f"w{len(self.stored)}", dims=shape, data_type=kind)
        stored.data_location = TensorProto.EXTERNAL
        stored.external_data.add(key="location", value="weights.bin")
        self.stored.append(stored)
        return str(stored.name)

    def constant(self, values: Any, dtype: type = np.int64) -> str:
        name = f"c{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def add(self, kind: str, *inputs: str, results: int = 1, **attributes: Any) -> str:
        names = [f"{kind.lower()}{len(self.nodes)}{'' if j == 0 else f'_{j}'}" for j in range(results)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0]

    def bytes(self, inputs: dict[str, Sequence[int]], *outputs: str, opset: int = 20, indices: str = "") -> bytes:
        """The file; the inputs hold floats, but for the one that holds indices."""
        kinds = {n: TensorProto.INT64 if n == indices else TensorProto.FLOAT for n in inputs}
        fed = [helper.make_tensor_value_info(n, kinds[n], s) for n, s in inputs.items()]
        given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
        graph = helper.make_graph(self.nodes, "small", fed, given, self.stored)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model).SerializeToString()
