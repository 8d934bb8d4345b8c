"""Operations that a step counts: three passes of products that are trained, fewer where weights are frozen."""

from __future__ import annotations

import json

import pytest
from onnx import ModelProto, parser

from planner.cost_models import load_profile
from planner.frontends import import_bytes
from planner.requests.rates import utilisation

MACHINE = load_profile("a100-80")
PRODUCT = 2 * 8 * 16 * 16  # operations of one product of the model


def model(*trained: str, more: str = "") -> ModelProto:
    """Three layers, of whose weights the named ones are trained."""
    weights = ", ".join(f"float[16, 16] w{k} = {{{', '.join(['0.5'] * 256)}}}" for k in range(3))
    found = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
    step (float[8, 16] x) => (float loss) <{weights}>
    {{
        a = MatMul(x, w0)
        b = Relu(a)
        turned = Transpose<perm = [1, 0]>(w1)
        c = MatMul(b, turned)
        {more}
        d = MatMul(c, w2)
        loss = ReduceMean<keepdims = 0>(d)
    }}""")
    for key, value in (("planner.parameters", json.dumps(trained)), ("planner.loss", "loss")):
        found.metadata_props.add(key=key, value=value)
    return found


def counted(found: ModelProto, mode: str = "training", micro_batches: int = 1) -> float:
    """Products' passes: operations in units of one product."""
    graph = import_bytes(found.SerializeToString())
    rate, share = utilisation(graph, micro_batches, 1.0, 4, MACHINE, precision="fp32", mode=mode)
    assert rate is not None
    assert MACHINE.device is not None
    assert share == pytest.approx(rate / MACHINE.device.matmul_flops_per_s["fp32"])
    return rate * 4 / PRODUCT


def test_a_model_that_is_trained_whole_has_three_passes() -> None:
    assert counted(model("w0", "w1", "w2")) == 9
    assert counted(model("w0", "w1", "w2"), micro_batches=5) == 45


def test_a_frozen_weight_has_no_gradient() -> None:
    assert counted(model("w0", "w2")) == 3 + 2 + 3  # also where it is read transposed
    assert counted(model("w0")) == 3 + 2 + 2


def test_what_no_trained_weight_enters_has_no_backward_pass() -> None:
    assert counted(model("w2")) == 1 + 1 + 3
    assert counted(model("w1")) == 1 + 3 + 2


def test_inference_and_steps_without_gradients_of_weights_count_alike_for_all() -> None:
    assert counted(model("w2"), "inference") == 3
    assert counted(model("w0", "w1", "w2"), "frozen") == 6
