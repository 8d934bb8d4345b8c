"""Where the gradients of a program's parameters end up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.cli.main import main
from planner.planning import read_plan

BATCH, WIDTH, CODES, CLASSES = 8, 16, 32, 4


def quantised(path: Path) -> Path:
    """Every row is replaced by the nearest of some vectors: those are read first where no gradient passes."""
    rng = np.random.default_rng(0)
    stored = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("codes", (CODES, WIDTH)), ("head", (WIDTH, CLASSES)))
    ]
    stored.append(numpy_helper.from_array(np.array([1]), "one"))
    nodes = [
        helper.make_node("Unsqueeze", ["x", "one"], ["rows"]),
        helper.make_node("Sub", ["rows", "codes"], ["apart"]),
        helper.make_node("ReduceL2", ["apart"], ["distances"], axes=[2], keepdims=0),
        helper.make_node("ArgMin", ["distances"], ["nearest"], axis=1, keepdims=0),
        helper.make_node("Gather", ["codes", "nearest"], ["found"], axis=0),
        helper.make_node("MatMul", ["found", "head"], ["scores"]),
        helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss"]),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [BATCH, WIDTH]),
             helper.make_tensor_value_info("labels", TensorProto.INT64, [BATCH])]  # fmt: skip
    graph = helper.make_graph(
        nodes, "quantised", given, [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], stored
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp", None])
def test_a_weight_that_is_first_read_without_a_gradient_gets_its_gradient(strategy: str | None, tmp_path: Path) -> None:
    model, out = quantised(tmp_path / "quantised.onnx"), tmp_path / "plan"
    more = [] if strategy is None else ["--strategy", strategy]
    assert main(["search", str(model), "--devices", "4", "--no-cache", "--out", str(out), *more]) == 0
    assert read_plan(out / "plan.json").schedule.mode == "training"
    assert main(["verify", str(out / "plan.json"), str(model)]) == 0
