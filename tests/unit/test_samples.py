"""What data-parallel ranks divide: samples, wherever they enter."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.clock import Configuration
from planner.cost_models import load_profile
from planner.evaluate import program_of_configuration
from planner.frontends import import_bytes
from planner.ir import Graph
from planner.lowering import Program
from planner.verify.check import verify_program

H100 = load_profile("h100")
BATCH, HEADS, SEQUENCE, DEPTH = 4, 2, 6, 3


def biased() -> Graph:
    """Attention with a bias of positions, trained, beside a mask of every sample, as exporters write T5."""
    dice = np.random.default_rng(2)
    shape = (BATCH, HEADS, SEQUENCE, DEPTH)
    mask = np.tril(np.ones((SEQUENCE, SEQUENCE), bool))
    held = {
        "weight": dice.normal(size=(DEPTH, DEPTH)).astype(np.float32),
        "table": dice.normal(size=(2 * SEQUENCE, HEADS)).astype(np.float32),
        "distances": np.arange(SEQUENCE)[:, None] - np.arange(SEQUENCE) + SEQUENCE,
        "first": np.array([0]),
        "mask": np.broadcast_to(mask, (BATCH, 1, SEQUENCE, SEQUENCE)).copy(),
        "none": np.array(-1e4, np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["queries"]),
        helper.make_node("Transpose", ["x"], ["keys"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["queries", "keys"], ["scores"]),
        helper.make_node("Gather", ["table", "distances"], ["looked_up"]),
        helper.make_node("Transpose", ["looked_up"], ["turned"], perm=[2, 0, 1]),
        helper.make_node("Unsqueeze", ["turned", "first"], ["bias"]),
        helper.make_node("Where", ["mask", "bias", "none"], ["masked"]),
        helper.make_node("Identity", ["masked"], ["clone"]),
        helper.make_node("Add", ["scores", "clone"], ["sum"]),
        helper.make_node("Softmax", ["sum"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "x"], ["context"]),
        helper.make_node("ReduceMean", ["context"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "biased",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, ())],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return import_bytes(model.SerializeToString(), name="biased")


@pytest.fixture(scope="module", params=[0, 1], ids=["zero0", "zero1"])
def program(request: pytest.FixtureRequest) -> Program:
    return program_of_configuration(biased(), Configuration(dp=2, micro_batch=2, zero=request.param), H100)


@pytest.mark.parametrize("name", ["masked", "clone"])
def test_what_is_made_for_samples_of_weights_is_divided_as_samples_are(program: Program, name: str) -> None:
    result = program.strategies[name].results[0]
    assert result is not None
    assert result.dims[0]


def test_gradients_of_a_bias_are_summed_before_they_travel(program: Program) -> None:
    travels = [i for i in program.redistributions() if i.gradient and any("slice" not in str(s) for s in i.steps)]
    assert {i.tensor for i in travels} <= {"weight", "table", "looked_up", "turned", "bias"}
    assert verify_program(program).ok
