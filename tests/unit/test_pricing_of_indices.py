"""What no gradient passes costs nothing backward, also inside of a kernel that has gradients."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.cli.main import main


def _routed() -> onnx.ModelProto:
    """Indices of the largest elements are read by a table, and as numbers by a product that has a gradient."""
    table = numpy_helper.from_array(np.zeros((16, 8), np.float32), "table")
    weight = numpy_helper.from_array(np.zeros((8, 16), np.float32), "weight")
    constants = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in (("two", [2]), ("flat", [-1]))]
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["scores"]),
        helper.make_node("TopK", ["scores", "two"], ["values", "indices"]),
        helper.make_node("Reshape", ["indices", "flat"], ["rows"]),
        helper.make_node("Reshape", ["values", "flat"], ["weights"]),
        helper.make_node("Cast", ["rows"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["weights", "numbers"], ["scaled"]),
        helper.make_node("Gather", ["table", "rows"], ["looked_up"]),
        helper.make_node("ReduceMean", ["scaled"], ["one"], keepdims=0),
        helper.make_node("ReduceMean", ["looked_up"], ["other"], keepdims=0),
        helper.make_node("Add", ["one", "other"], ["loss"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 8])
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "routed", [x], [loss], [table, weight, *constants])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def test_a_plan_costs_what_was_bounded_where_a_kernel_passes_on_indices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "routed.onnx"
    onnx.save(_routed(), model)
    arguments = ["--devices", "2", "--mode", "training", "--space", "operators", "--no-cache"]
    assert main(["search", str(model), *arguments, "--out", str(tmp_path / "plan"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["objective_lower_bound_s"] == found["objective_s"]
    assert main(["verify", str(tmp_path / "plan"), str(model)]) == 0
