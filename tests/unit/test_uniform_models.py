"""Uniform configurations of models whose blocks are not what they seem: weights in common, unlike runs, bound sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.cli.main import main
from planner.clock import predict
from planner.cost_models import load_profile
from planner.evaluate import program_of_configuration, traced_as
from planner.frontends import import_bytes
from planner.frontends.resized.rebind import batch_axes, rebind
from planner.planning.schemes import parse_strategy
from planner.uniform import Sample, Space, best_of

A100 = load_profile("a100-80")
HIDDEN = 64
STRATEGIES = ("dp=4,micro_batch=4,zero=0", "tp=4,micro_batch=16,zero=0", "pp=4,micro_batch=4,zero=0")


def perceptron(batch: int | str, widths: list[int], weight: Callable[[int], int] = lambda i: i) -> onnx.ModelProto:
    """Residual blocks of two products; block i has the weights of block `weight(i)`."""
    nodes, weights, at = [], {}, "x"
    for i, wide in enumerate(widths):
        up, down = f"w{weight(i)}.up", f"w{weight(i)}.down"
        weights |= {up: (HIDDEN, wide), down: (wide, HIDDEN)}
        path = f"/layers.{i}"
        nodes += [
            helper.make_node("MatMul", [at, up], [f"{i}.a"], name=f"{path}/up"),
            helper.make_node("Relu", [f"{i}.a"], [f"{i}.r"], name=f"{path}/relu"),
            helper.make_node("MatMul", [f"{i}.r", down], [f"{i}.b"], name=f"{path}/down"),
            helper.make_node("Add", [f"{i}.b", at], [f"{i}.s"], name=f"{path}/add"),
        ]
        at = f"{i}.s"
    weights["head"] = (HIDDEN, 10)
    nodes += [
        helper.make_node("MatMul", [at, "head"], ["logits"], name="/head"),
        helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"], name="/loss"),
    ]
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, HIDDEN]),
            helper.make_tensor_value_info("labels", TensorProto.INT64, [batch]),
        ],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "weight", [lambda i: i // 2, lambda i: min(i, 7 - i), lambda i: max(0, i - 2), lambda i: 0, lambda i: i % 7]
)
def test_a_sample_stands_for_blocks_with_weights_in_common(weight: Callable[[int], int], strategy: str) -> None:
    """Law: step and memory are those of the whole model, laid out at once."""
    model = import_bytes(perceptron(16, [256] * 8, weight).SerializeToString(), name="m")
    sample = Sample(model, A100)
    c = parse_strategy(f"megatron:{strategy},gradient_bytes=2", devices=4, batch=16)
    graph = rebind(model, batch_axes(model, c.micro_batch * c.dp))
    whole = predict(traced_as(c, program_of_configuration(graph, c, A100)), c, A100)
    found = predict(sample.workload(c), c, A100)
    assert found.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    assert found.allocated_bytes == pytest.approx(whole.allocated_bytes, rel=1e-9)


def test_the_first_rank_holds_its_own_blocks() -> None:
    """Blocks of an encoder keep less than a decoder's: the first rank has many micro-batches of these alone."""
    model = import_bytes(perceptron(4096, [256] * 6 + [4096] * 6).SerializeToString(), name="m")
    sample = Sample(model, A100)
    space = Space(2, 4096, sample.layers, stages=2, micro_batches=8, recompute="none", experts=False)
    (free,) = best_of(sample, space, None).best
    limit = round(free.prediction.allocated_bytes * 1.05)
    (found,) = best_of(sample, space, limit).best
    assert found.prediction.step_time_s == free.prediction.step_time_s


def test_a_batch_that_is_bound_is_not_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--bind` gives the batch its size for all micro-batches: none is searched that could not be read."""
    path = tmp_path / "m.onnx"
    onnx.save(perceptron("N", [512] * 6), path)
    asked = ["search", str(path), "--devices", "4", "--bind", "N=16384", "--no-cache", "--json", "--out", str(tmp_path)]
    status = main([*asked, "--space", "whole", "--memory-limit", "90MB"])
    output = capsys.readouterr()
    assert "give the batch by --batch" not in output.err.splitlines()[-1]
    if status == 0:
        assert json.loads(output.out)["peak_memory_bytes"] <= 90e6


def test_a_search_goes_on_where_its_fastest_makes_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(perceptron("N", [512] * 6), path)
    asked = ["search", str(path), "--devices", "4", "--bind", "N=16384", "--no-cache", "--json", "--out", str(tmp_path)]
    assert main([*asked, "--space", "whole"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] > 0
