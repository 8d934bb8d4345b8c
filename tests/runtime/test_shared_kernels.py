"""Kernels that are written once, on gloo processes: autograd goes through their sums over ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.frontends import load_model
from planner.verify.check import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error
from planner.verify.data import random_tensors
from planner.verify.reference import gradients, run_ops

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from planner.runtime.session import Session  # noqa: E402  they import torch
from planner.runtime.workers import Workers  # noqa: E402
from tests.runtime.test_programs import plan  # noqa: E402

# Operator, its parameters by their length and its constants by their values, its attributes, and the factor that two
# ranks split.  Ranks compute parts of its result (their gradients of a sum add up) or all of it alike (it is known to
# all).
Operands = Sequence["int | tuple[int, ...]"]
CASES: tuple[tuple[str, Operands, dict[str, Any], str], ...] = (
    ("RMSNormalization", (16,), {}, "d2"),
    ("LayerNormalization", (16, 16), {}, "d2"),
    ("LogSoftmax", (), {}, "d2"),
    ("Softmax", (), {}, "d2"),
    ("InstanceNormalization", (8, 8), {}, "x0"),
    ("LpNormalization", (), {"axis": -1, "p": 2}, "d2"),
    ("ReduceL2", (), {"keepdims": 1}, "d2"),
    ("ReduceLogSumExp", (), {"keepdims": 0}, "d1"),
    ("GlobalLpPool", (), {"p": 2}, "x0"),
    ("Tile", ((1, 2, 1),), {}, "k1"),
    ("Trilu", (), {}, "r"),
    ("Trilu", (), {"upper": 0}, "c"),
    ("Slice", ((2,), (14,), (2,)), {}, "s2"),
    ("Pad", ((0, 0, 2, 0, 0, 6),), {"mode": "reflect"}, "s2"),
    ("Pad", ((0, 24, 0, 0, 0, 0),), {}, "s1"),
    ("CenterCropPad", ((4, 12, 8),), {}, "s2"),
    ("CumSum", ((2,),), {}, "d2"),
    ("CumSum", ((2,),), {"exclusive": 1, "reverse": 1}, "d2"),
    ("ReduceMax", ((2,),), {"keepdims": 1}, "^d2"),
    ("ReduceProd", ((2,),), {"keepdims": 0}, "d2"),
)


def learned(
    kind: str,
    attributes: dict[str, Any],
    shape: tuple[int, ...],
    stored: dict[str, np.ndarray],
    reduced: str,
    opset: int = 21,
) -> onnx.ModelProto:
    """A product with the weight `w` before the operator, and the squares of the distance to a label behind it, reduced
    by an operator of this type; the operator reads what else is stored."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node(kind, ["h", *(n for n in stored if n != "w")], ["y"], name="it", **attributes),
        helper.make_node("Sub", ["y", "labels"], ["moved"]),
        helper.make_node("Mul", ["moved", "moved"], ["square"]),
        helper.make_node(reduced, ["square"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "learned",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("labels", TensorProto.FLOAT, (1,)),
        ],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(v, n) for n, v in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)


def model(kind: str, operands: Operands, attributes: dict[str, Any]) -> onnx.ModelProto:
    """Operators of a tensor [4, 8, 16]."""
    # Since which the operator is, and of which ONNX Runtime has all.
    opset = {"RMSNormalization": 23, "CumProd": 26}.get(kind, 21)
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32) / 2

    others = {f"p{i}": drawn(n) if isinstance(n, int) else np.array(n) for i, n in enumerate(operands)}
    return learned(kind, attributes, (4, 8, 16), {"w": drawn(16, 16), **others}, "ReduceMean", opset)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2) as started:
        yield started


_RNG = np.random.default_rng(1)
LABELS = _RNG.integers(0, 16, 32)
WEIGHTS = _RNG.uniform(0.5, 2, 16).astype(np.float32)
ALONG = _RNG.integers(-16, 16, (32, 5))
FEWER = _RNG.integers(-32, 32, (7, 9))
PLACES = np.stack([_RNG.integers(-32, 32, (3, 4)), _RNG.integers(-16, 16, (3, 4))], axis=-1)

# Operators of scores [32, 16]: type, attributes, the operands behind the scores, and the factor that is split.
STEERED: tuple[tuple[str, dict[str, Any], Sequence[np.ndarray], str], ...] = (
    ("SoftmaxCrossEntropyLoss", {"reduction": "mean", "ignore_index": 3}, (LABELS, WEIGHTS), "c"),
    ("SoftmaxCrossEntropyLoss", {"reduction": "mean", "ignore_index": 3}, (LABELS, WEIGHTS), "n"),
    ("SoftmaxCrossEntropyLoss", {"reduction": "mean"}, (LABELS,), "c"),
    ("SoftmaxCrossEntropyLoss", {"reduction": "sum"}, (LABELS,), "c"),
    ("SoftmaxCrossEntropyLoss", {"reduction": "none", "ignore_index": 3}, (LABELS,), "c"),
    ("NegativeLogLikelihoodLoss", {"reduction": "mean"}, (LABELS, WEIGHTS), "c"),
    ("NegativeLogLikelihoodLoss", {"reduction": "mean"}, (LABELS,), "n"),
    ("NegativeLogLikelihoodLoss", {"reduction": "sum"}, (LABELS,), "c"),
    ("GatherElements", {"axis": 1}, (ALONG,), "v"),
    ("GatherElements", {"axis": 0}, (FEWER,), "v"),
    ("GatherElements", {"axis": 0}, (FEWER,), "w1"),
    ("GatherND", {}, (PLACES,), "v0"),
    ("GatherND", {}, (PLACES,), "v1"),
    ("GatherND", {}, (PLACES[..., :1],), "v0"),
)


def steered_model(kind: str, attributes: dict[str, Any], operands: Sequence[np.ndarray]) -> onnx.ModelProto:
    """Operators of scores [32, 16], of whose results the squares are summed."""
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    others = {f"p{i}": v for i, v in enumerate(operands)}
    return learned(kind, attributes, (32, 16), {"w": weight, **others}, "ReduceSum")


@pytest.mark.parametrize(("kind", "operands", "attributes", "factor"), CASES, ids=[c[0] for c in CASES])
def test_gradients_through_sums_over_ranks_are_those_of_the_whole_model(
    workers: Workers, tmp_path: Path, kind: str, operands: Operands, attributes: dict[str, Any], factor: str
) -> None:
    compare(workers, tmp_path, model(kind, operands, attributes), kind, factor)


@pytest.mark.parametrize(("kind", "attributes", "operands", "factor"), STEERED)
def test_gradients_of_losses_and_look_ups_are_those_of_the_whole_model(
    workers: Workers,
    tmp_path: Path,
    kind: str,
    attributes: dict[str, Any],
    operands: Sequence[np.ndarray],
    factor: str,
) -> None:
    compare(workers, tmp_path, steered_model(kind, attributes, operands), kind, factor)


def compare(workers: Workers, folder: Path, made: onnx.ModelProto, kind: str, factor: str) -> None:
    path = folder / "model.onnx"
    onnx.save(made, path)
    graph = load_model(path)
    values = random_tensors(graph, 0)
    whole = run_ops(graph, values)
    truth = gradients(graph, values, whole, [p.name for p in graph.parameters])
    assert truth
    session = Session(workers, path, plan(graph, (f"type={kind} {factor}=2",), 2))
    found = session.results()
    session.close()
    assert kind not in found.fallbacks
    for name in graph.outputs:
        assert relative_error(found.outputs[name], whole[name]) < FORWARD_TOLERANCE, name
    floor = 1e-3 * float(np.median([np.abs(g).max() for g in truth.values()]))
    for name, gradient in truth.items():
        assert relative_error(found.gradients[name], gradient, floor) < GRADIENT_TOLERANCE, name


def test_operators_that_are_whole_compute_what_they_are(workers: Workers, tmp_path: Path) -> None:
    """A kernel that is written once is of operators that are split; where it runs others, it must be right of them."""
    opsets = [helper.make_opsetid("", 21)]
    none = numpy_helper.from_array(np.zeros(0, dtype=np.int64), "none")
    nodes = [
        helper.make_node("ReduceMean", ["x", "none"], ["mean"], name="mean", noop_with_empty_axes=1),
        helper.make_node("Hardmax", ["x"], ["hot"], name="hot"),
        helper.make_node("ArgMax", ["x"], ["best"], name="best", axis=1),
        helper.make_node("ReduceMax", ["x", "none"], ["most"], name="most", noop_with_empty_axes=1),
    ]
    graph = helper.make_graph(
        nodes,
        "whole",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (8, 6))],
        [
            helper.make_tensor_value_info("mean", TensorProto.FLOAT, (8, 6)),
            helper.make_tensor_value_info("hot", TensorProto.FLOAT, (8, 6)),
            helper.make_tensor_value_info("best", TensorProto.INT64, (8, 1)),
            helper.make_tensor_value_info("most", TensorProto.FLOAT, (8, 6)),
        ],
        [none],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=11), path)
    loaded = load_model(path)
    whole = run_ops(loaded, random_tensors(loaded, 0))
    pins = tuple(f"{name} replicated" for name in ("mean", "hot", "best", "most"))
    session = Session(workers, path, plan(loaded, pins, 2, training=False))
    found = session.results()
    session.close()
    for name in loaded.outputs:
        assert np.array_equal(found.outputs[name], whole[name]), name


ATTENTION = (
    ({}, "h"),
    ({"is_causal": 1}, "s"),
    ({"is_causal": 1}, "t"),
    ({"is_causal": 1}, "s&t"),
    ({"softcap": 2.0}, "s&t"),
)


@pytest.mark.parametrize(("attributes", "factor"), ATTENTION)
def test_attention_trains_while_queries_or_keys_are_split(
    workers: Workers, tmp_path: Path, attributes: dict[str, Any], factor: str
) -> None:
    """Flash-decoding, ring attention, and queries that know their places: gradients pass through what travels."""
    compare(workers, tmp_path, _attention_model(attributes), "Attention", factor)


def _attention_model(attributes: dict[str, Any]) -> onnx.ModelProto:
    """Queries, keys and values of one operand [2, 8, 32], grouped: four heads read two."""
    rng = np.random.default_rng(0)
    shapes = {"wq": (32, 32), "wk": (32, 16), "wv": (32, 16)}
    stored = {n: rng.standard_normal(shape).astype(np.float32) / 4 for n, shape in shapes.items()}
    nodes = [helper.make_node("MatMul", ["x", w], [w[1]]) for w in stored]
    nodes += [
        helper.make_node("Attention", ["q", "k", "v"], ["y"], name="it", q_num_heads=4, kv_num_heads=2, **attributes),
        helper.make_node("Sub", ["y", "labels"], ["moved"]),
        helper.make_node("Mul", ["moved", "moved"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["loss"], keepdims=0),
    ]
    inputs = [("x", (2, 8, 32)), ("labels", (1,))]
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in inputs],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(v, n) for n, v in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


@pytest.mark.parametrize("factor", ["e", "t0", "t0&e", "k", "n"])
def test_experts_train_while_they_or_their_tokens_are_split(workers: Workers, tmp_path: Path, factor: str) -> None:
    """Rows that travel to the ranks of their experts, and back; what a rank lacks is a term of a pending sum."""
    rng = np.random.default_rng(0)
    stored = {
        "w": rng.standard_normal((16, 8)).astype(np.float32) / 4,
        "experts": rng.standard_normal((4, 8, 6)).astype(np.float32) / 2,
        "chosen": rng.integers(0, 4, 12),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("ExpertMatMul", ["h", "experts", "chosen"], ["y"], name="it", domain="planner", transB=0),
        helper.make_node("Sub", ["y", "labels"], ["moved"]),
        helper.make_node("Mul", ["moved", "moved"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "experts",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", (12, 16)), ("labels", (1,)))],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(v, n) for n, v in stored.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("planner", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    compare(workers, tmp_path, made, "planner::ExpertMatMul", factor)
