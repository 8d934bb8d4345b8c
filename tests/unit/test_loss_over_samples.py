"""Whether a loss of samples is a mean or a sum, by its operators."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.cli.main import main
from planner.frontends import import_bytes
from planner.frontends.resized.samples import loss_over_samples
from planner.lowering import Seed
from planner.planning import read_plan
from planner.planning.programs import program_of
from planner.verify.pipelined import pipeline_of
from planner.verify.reference import run_ops

BATCH, WIDTH, CLASSES = 4, 6, 3
Nodes = Sequence[tuple[str, Sequence[str], str, dict[str, Any]]]
SQUARES = ("Mul", ["apart", "apart"], "squares", {})


def model_of(nodes: Nodes) -> bytes:
    """`apart` is [batch, classes]; the last node makes the loss."""
    rng = np.random.default_rng(0)
    stored = [numpy_helper.from_array(rng.standard_normal((WIDTH, CLASSES)).astype(np.float32), "w")]
    stored += [numpy_helper.from_array(np.array(v, t), n) for n, v, t in (
        ("four", 4.0, np.float32), ("axis", [1], np.int64), ("first", 0, np.int64), ("first_axis", [0], np.int64),
    )]  # fmt: skip
    before: Nodes = [("MatMul", ["x", "w"], "scores", {}), ("Sub", ["scores", "target"], "apart", {})]
    listed = [helper.make_node(t, list(i), [o], **a) for t, i, o, a in (*before, *nodes)]
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [BATCH, k]) for n, k in (("x", WIDTH), ("target", 3))]
    given.append(helper.make_tensor_value_info("labels", TensorProto.INT64, [BATCH]))
    read = {name for _, inputs, _, _ in nodes for name in inputs}
    given = [g for g in given if g.name != "labels" or "labels" in read]
    loss = [helper.make_tensor_value_info(listed[-1].output[0], TensorProto.FLOAT, None)]
    graph = helper.make_graph(listed, "loss", given, loss, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString()


MEANS: dict[str, Nodes] = {
    "mean": [SQUARES, ("ReduceMean", ["squares"], "loss", {"keepdims": 0})],
    "cross-entropy": [("SoftmaxCrossEntropyLoss", ["apart", "labels"], "loss", {})],
    "mean of sums": [
        SQUARES, ("ReduceSum", ["squares", "axis"], "rows", {"keepdims": 0}),
        ("ReduceMean", ["rows"], "loss", {"keepdims": 0}),
    ],
    "sum of means": [
        SQUARES, ("ReduceMean", ["squares", "first_axis"], "columns", {"keepdims": 0}),
        ("ReduceSum", ["columns"], "loss", {"keepdims": 0}),
    ],
    "mean of all and a weight's norm": [
        SQUARES, ("ReduceMean", ["squares"], "mean", {"keepdims": 0}), ("Mul", ["w", "w"], "norms", {}),
        ("ReduceSum", ["norms"], "norm", {"keepdims": 0}), ("Add", ["mean", "norm"], "loss", {}),
    ],
}  # fmt: skip
SUMS: dict[str, Nodes] = {
    "sum": [SQUARES, ("ReduceSum", ["squares"], "loss", {"keepdims": 0})],
    "cross-entropy": [("SoftmaxCrossEntropyLoss", ["apart", "labels"], "loss", {"reduction": "sum"})],
    "sum over a number": [
        SQUARES, ("ReduceSum", ["squares"], "sum", {"keepdims": 0}), ("Div", ["sum", "four"], "loss", {})
    ],
    "two sums": [
        SQUARES, ("ReduceSum", ["squares"], "a", {"keepdims": 0}), ("Abs", ["apart"], "sizes", {}),
        ("ReduceSum", ["sizes"], "b", {"keepdims": 0}), ("Mul", ["b", "four"], "c", {}),
        ("Add", ["a", "c"], "loss", {}),
    ],
}  # fmt: skip
OTHERS: dict[str, Nodes] = {
    "a sum of shares": [
        SQUARES, ("ReduceSum", ["squares"], "whole", {"keepdims": 0}), ("Div", ["squares", "whole"], "shares", {}),
        ("Mul", ["shares", "apart"], "weighed", {}), ("ReduceSum", ["weighed"], "loss", {"keepdims": 0}),
    ],
    "a sum of weights over samples": [
        ("Softmax", ["apart"], "weights", {"axis": 0}), ("Mul", ["weights", "apart"], "weighed", {}),
        ("ReduceSum", ["weighed"], "loss", {"keepdims": 0}),
    ],
    "a sum of what is beside the mean": [
        SQUARES, ("ReduceMean", ["squares", "first_axis"], "middle", {"keepdims": 1}),
        ("Sub", ["squares", "middle"], "beside", {}), ("Abs", ["beside"], "sizes", {}),
        ("ReduceSum", ["sizes"], "loss", {"keepdims": 0}),
    ],
    "a sum over pairs": [
        ("Transpose", ["apart"], "turned", {"perm": [1, 0]}), ("MatMul", ["apart", "turned"], "pairs", {}),
        ("ReduceSum", ["pairs"], "loss", {"keepdims": 0}),
    ],
    "a product of means": [
        SQUARES, ("ReduceMean", ["squares"], "a", {"keepdims": 0}), ("Abs", ["apart"], "sizes", {}),
        ("ReduceMean", ["sizes"], "b", {"keepdims": 0}), ("Mul", ["a", "b"], "loss", {}),
    ],
    "a ratio of sums": [
        SQUARES, ("ReduceSum", ["squares"], "a", {"keepdims": 0}), ("Abs", ["apart"], "sizes", {}),
        ("ReduceSum", ["sizes"], "b", {"keepdims": 0}), ("Div", ["a", "b"], "loss", {}),
    ],
    "a cross-entropy with weights of classes": [
        ("ReduceSumSquare", ["w", "first_axis"], "of_classes", {"keepdims": 0}),
        ("SoftmaxCrossEntropyLoss", ["apart", "labels", "of_classes"], "loss", {}),
    ],
    "a sum and a weight's norm": [
        SQUARES, ("ReduceSum", ["squares"], "sum", {"keepdims": 0}), ("Mul", ["w", "w"], "norms", {}),
        ("ReduceSum", ["norms"], "norm", {"keepdims": 0}), ("Add", ["sum", "norm"], "loss", {}),
    ],
}  # fmt: skip
CASES = [
    (nodes, kind) for kind, found in (("mean", MEANS), ("sum", SUMS), ("other", OTHERS)) for nodes in found.values()
]


def graph_of(nodes: Nodes, batch: int = BATCH) -> Any:
    return import_bytes(model_of(nodes), name="loss", batch=batch)


@pytest.mark.parametrize(("nodes", "kind"), CASES, ids=[*MEANS, *(f"{n}, summed" for n in SUMS), *OTHERS])
def test_it_is_what_halves_of_a_batch_say(nodes: Nodes, kind: str) -> None:
    """The whole's loss is the mean of the halves' losses, their sum, or neither."""
    graph = graph_of(nodes)
    if graph.loss is None:
        pytest.fail("the graph ends in no loss")
    assert loss_over_samples(graph) == kind
    whole = graph_of(nodes, 2 * BATCH)
    rng = np.random.default_rng(1)
    drawn: dict[str, Any] = {"x": rng.standard_normal((2 * BATCH, WIDTH)), "labels": rng.integers(0, 3, 2 * BATCH)}
    drawn["target"] = rng.standard_normal((2 * BATCH, CLASSES))
    drawn = {n: v.astype(np.float32) if v.dtype.kind == "f" else v for n, v in drawn.items()}

    weight = rng.standard_normal((WIDTH, CLASSES)).astype(np.float32)

    def loss(of: Any, take: Callable[[Any], Any]) -> float:
        values = {n: t.value for n, t in of.tensors.items() if t.value is not None}
        values |= {n: take(drawn[n]) for n in of.inputs} | {"w": weight}
        return float(run_ops(of, values)[of.loss])

    halves = [loss(graph, lambda v, k=k: v[k * BATCH : (k + 1) * BATCH]) for k in range(2)]
    known = loss(whole, lambda v: v)
    assert (kind == "mean") == bool(np.isclose(known, np.mean(halves), rtol=1e-5))
    assert (kind == "sum") == bool(np.isclose(known, np.sum(halves), rtol=1e-5))


COUNTED: Nodes = [
    SQUARES, ("ReduceSum", ["squares"], "sum", {"keepdims": 0}), ("Shape", ["x"], "shape", {}),
    ("Gather", ["shape", "first"], "rows", {}), ("Cast", ["rows"], "count", {"to": TensorProto.FLOAT}),
    ("Div", ["sum", "count"], "loss", {}),
]  # fmt: skip


def test_a_number_that_may_follow_from_an_open_size_is_not_taken_for_one_of_the_file() -> None:
    model = onnx.load_from_string(model_of(COUNTED))
    for given in model.graph.input:
        given.type.tensor_type.shape.dim[0].dim_param = "batch"
    assert loss_over_samples(import_bytes(model.SerializeToString(), batch=2)) == "other"


@pytest.mark.parametrize("nodes", [MEANS["mean"], SUMS["sum"], SUMS["sum over a number"]], ids=["mean", "sum", "part"])
def test_micro_batches_enter_with_their_share_of_the_loss(nodes: Nodes, tmp_path: Path) -> None:
    model = tmp_path / "loss.onnx"
    model.write_bytes(model_of(nodes))
    options = ["--devices", "2", "--batch", "16", "--strategy", "ddp:micro_batch=2", "--no-cache"]
    assert main(["search", str(model), *options, "--out", str(tmp_path / "plan")]) == 0
    plan = tmp_path / "plan" / "plan.json"
    assert json.loads(plan.read_text())["schedule"]["micro_batches"] == 4
    document, graph = read_plan(plan), import_bytes(model.read_bytes(), batch=4)
    staged = pipeline_of(document, program_of(document, graph), 4)
    listed = [i for chunk in staged.chunks for run in chunk.runs.values() for i in run]
    assert [i.weight for i in listed if isinstance(i, Seed)] == [0.25 if nodes is MEANS["mean"] else 1.0]
    assert main(["verify", str(plan), str(model)]) == 0
