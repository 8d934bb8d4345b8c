"""A small model around each operator that stands in one module, with a loss at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["MODELS"]


def _model(
    nodes: Sequence[onnx.NodeProto], fed: Mapping[str, tuple[int, ...]], weights: Mapping[str, tuple[int, ...]]
) -> onnx.ModelProto:
    """The loss is the mean square of the distance from the tensor `last` to the labels that are fed, which come last.
    What is fed as `segments` are integers."""
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        [
            *nodes,
            helper.make_node("Sub", ["last", "labels"], ["distance"]),
            helper.make_node("Mul", ["distance", "distance"], ["square"]),
            helper.make_node("ReduceMean", ["square"], ["loss"], keepdims=0),
        ],
        "one_module",
        [
            helper.make_tensor_value_info(n, TensorProto.INT64 if n == "segments" else TensorProto.FLOAT, s)
            for n, s in fed.items()
        ],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32) / 4, n) for n, s in weights.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("planner", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def deformed() -> onnx.ModelProto:
    """Offsets and mask are convolutions of the same volume."""
    nodes = [
        helper.make_node("Conv", ["x", "w_offset"], ["offset"], kernel_shape=(1, 2, 2)),
        helper.make_node("Conv", ["x", "w_mask"], ["scores"], kernel_shape=(1, 2, 2)),
        helper.make_node("Sigmoid", ["scores"], ["mask"]),
        helper.make_node("DeformConv3D", ["x", "w", "offset", "b", "mask"], ["y"], domain="planner"),
        helper.make_node("Relu", ["y"], ["last"]),
    ]
    weights = {"w_offset": (12, 4, 1, 2, 2), "w_mask": (4, 4, 1, 2, 2), "w": (8, 4, 1, 2, 2), "b": (8,)}
    return _model(nodes, {"x": (8, 4, 4, 5, 5), "labels": (8, 8, 4, 4, 4)}, weights)


def gated() -> onnx.ModelProto:
    """A feed-forward layer behind a product."""
    nodes = [
        helper.make_node("MatMul", ["x", "w_in"], ["h"]),
        helper.make_node("SwiGLUMatMul", ["h", "w_gate", "w_up"], ["g"], domain="planner"),
        helper.make_node("MatMul", ["g", "w_down"], ["last"]),
    ]
    weights = {"w_in": (16, 32), "w_gate": (32, 64), "w_up": (32, 64), "w_down": (64, 16)}
    return _model(nodes, {"x": (8, 4, 16), "labels": (8, 4, 16)}, weights)


def segmented() -> onnx.ModelProto:
    """Messages of a graph network, added up at their receivers."""
    nodes = [
        helper.make_node("MatMul", ["x", "w_message"], ["m"]),
        helper.make_node("SegmentSum", ["m", "segments"], ["s"], domain="planner", num_segments=8),
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("MatMul", ["r", "w_node"], ["last"]),
    ]
    fed = {"x": (32, 16), "segments": (32,), "labels": (8, 16)}
    return _model(nodes, fed, {"w_message": (16, 32), "w_node": (32, 16)})


MODELS = {"planner::DeformConv3D": deformed, "planner::SwiGLUMatMul": gated, "planner::SegmentSum": segmented}
