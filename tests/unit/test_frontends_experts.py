"""Per-token experts: spellings that become one operator, lookalikes that stay, and what is written back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from planner.frontends import import_bytes
from planner.frontends.file.export import to_model
from planner.frontends.resized.rebind import rebind
from planner.frontends.steps.experts import EXPERT_MATMUL
from planner.ir import Graph, Role
from planner.verify.data import random_tensors
from planner.verify.reference import run_ops, run_whole
from planner.verify.uses import uses

from .frontends_models import INT64, constant, external, node, serialised, value

TOKENS, EXPERTS, IN, OUT = 12, 6, 4, 8
STORED = external("w", [EXPERTS, OUT, IN])
TURNED = external("w", [EXPERTS, IN, OUT])


def imported(
    nodes: Sequence[onnx.NodeProto],
    weights: onnx.TensorProto = STORED,
    *,
    outputs: Sequence[str] = ("y",),
    x: Sequence[int] = (TOKENS, IN),
    indices: Sequence[int] = (TOKENS,),
    opset: int = 20,
    more: Sequence[onnx.TensorProto] = (),
) -> Graph:
    fixed = [constant("first", [1]), constant("last", [2]), constant("end", [-1]), constant("zero", [0])]
    known = {t for n in nodes for t in n.input}
    given = [weights, *(t for t in fixed if t.name in known), *more]
    inputs = [value("x", x), value("i", indices, INT64)]
    return import_bytes(serialised(nodes, inputs, list(outputs), given, opset=opset))


COLUMN = [node("Unsqueeze", "x end", "column"), node("MatMul", "g column", "p"), node("Squeeze", "p last", "y")]
ROW = [node("Unsqueeze", "x first", "row"), node("MatMul", "row g", "p"), node("Squeeze", "p first", "y")]
LOOK_UP = [node("Gather", "w i", "g")]
LOOK_UP_ND = [node("Unsqueeze", "i end", "at"), node("GatherND", "w at", "g")]
# What torch's exporter leaves around an index, as in gpt-oss.
UNCHANGED = [
    node("Transpose", "w", "as_w", perm=(0, 1, 2)),
    node("Expand", "i tokens", "as_i"),
    node("Unsqueeze", "as_i end", "at"),
    node("Concat", "at", "as_at", axis=-1),
    node("GatherND", "as_w as_at", "found"),
    node("Transpose", "found", "g", perm=(0, 1, 2)),
]
ALL_TOKENS = constant("tokens", [TOKENS])
FLIP = [node("Transpose", "g0", "g", perm=(0, 2, 1))]
AGAIN = [node("Gather", "w i", "g0")]

SPELLINGS: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "GatherND and a column": ([*LOOK_UP_ND, *COLUMN], {}),
    "Gather and a column": ([*LOOK_UP, *COLUMN], {}),
    "a row": ([*LOOK_UP, *ROW], {"weights": TURNED}),
    "a row, looked up by GatherND": ([*LOOK_UP_ND, *ROW], {"weights": TURNED}),
    "transposed after the look-up, column": ([*AGAIN, *FLIP, *COLUMN], {"weights": TURNED}),
    "transposed after the look-up, row": ([*AGAIN, *FLIP, *ROW], {}),
    "Reshape on both sides": (
        [*LOOK_UP, node("Reshape", "x column_shape", "column"), COLUMN[1], node("Reshape", "p flat_shape", "y")],
        {"more": [constant("column_shape", [TOKENS, IN, 1]), constant("flat_shape", [TOKENS, OUT])]},
    ),
    "Einsum": ([*LOOK_UP, node("Einsum", "x g", "y", equation="ti,toi->to")], {}),
    "Einsum, weights first": ([*LOOK_UP, node("Einsum", "g x", "y", equation="tio, ti -> to")], {"weights": TURNED}),
    "Einsum, tokens repeated": (
        [*LOOK_UP, node("Einsum", "g x", "y", equation="beck,bk->bec")],
        {"indices": (TOKENS, 2)},
    ),
    "two token dimensions": (
        [*LOOK_UP, COLUMN[0], COLUMN[1], node("Squeeze", "p end", "y")],
        {"x": (3, 4, IN), "indices": (3, 4)},
    ),
    "axes as attributes": (
        [
            *LOOK_UP,
            node("Unsqueeze", "x", "c", axes=[2]),
            node("MatMul", "g c", "p"),
            node("Squeeze", "p", "y", axes=[2]),
        ],
        {"opset": 11},
    ),
    "operators that change nothing, row": ([*UNCHANGED, *ROW], {"weights": TURNED, "more": [ALL_TOKENS]}),
    "operators that change nothing, column": ([*UNCHANGED, *COLUMN], {"more": [ALL_TOKENS]}),
    "a column that no view made": (
        [*LOOK_UP, node("MatMul", "g x", "p"), node("Squeeze", "p last", "y")],
        {"x": (TOKENS, IN, 1)},
    ),
    "a result that stays a column": ([*LOOK_UP, *COLUMN[:2], node("Relu", "p", "y")], {}),
}  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spelling_becomes_one_operator(spelling: str) -> None:
    nodes, options = SPELLINGS[spelling]
    graph = imported(nodes, **options)
    types = [op.type for op in graph.ops]
    assert types.count(EXPERT_MATMUL) == 1
    assert not {"Gather", "GatherND", "MatMul", "Einsum"} & set(types)
    assert graph.tensors["w"].role is Role.PARAMETER


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_value_is_that_of_the_file(spelling: str) -> None:
    """ONNX Runtime on the file, on what is written back, and our own kernel agree."""
    nodes, options = SPELLINGS[spelling]
    graph = imported(nodes, **options)
    values = random_tensors(graph, 0)
    weights = options.get("weights", STORED)
    stored = [onnx.numpy_helper.from_array(values["w"], "w"), *options.get("more", ())]
    names = {t.name for t in stored}
    fixed = {"first": [1], "last": [2], "end": [-1], "zero": [0]}
    stored += [constant(k, v) for k, v in fixed.items() if any(k in n.input for n in nodes) and k not in names]
    inputs = [value("x", options.get("x", (TOKENS, IN))), value("i", options.get("indices", (TOKENS,)), INT64)]
    file = serialised(nodes, inputs, ["y"], stored, opset=options.get("opset", 20))
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    expected = session.run(["y"], {"x": values["x"], "i": values["i"]})[0]
    assert weights.dims[0] == EXPERTS
    np.testing.assert_allclose(run_whole(graph, values)["y"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run_ops(graph, values)["y"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_what_is_written_back_is_found_again(spelling: str) -> None:
    nodes, options = SPELLINGS[spelling]
    graph = imported(nodes, **options)
    again = import_bytes(to_model(graph).SerializeToString())
    assert [(op.type, op.outputs, op.attributes) for op in again.ops if op.type == EXPERT_MATMUL] == [
        (op.type, op.outputs, op.attributes) for op in graph.ops if op.type == EXPERT_MATMUL
    ]


def test_a_bias_looked_up_alike_joins() -> None:
    nodes = [
        *LOOK_UP_ND,
        *COLUMN[:2],
        node("Squeeze", "p last", "s"),
        node("Gather", "b i", "d"),
        node("Add", "d s", "y"),
    ]
    graph = imported(nodes, more=[external("b", [EXPERTS, OUT])])
    (op,) = [op for op in graph.ops if op.type == EXPERT_MATMUL]
    assert (op.name, op.inputs[1], op.inputs[3]) == ("y", "w", "b")
    assert {graph.tensors[t].role for t in "wb"} == {Role.PARAMETER}
    values = random_tensors(graph, 1)
    np.testing.assert_allclose(run_ops(graph, values)["y"], run_whole(graph, values)["y"], rtol=1e-5, atol=1e-6)


def test_a_bias_looked_up_beside_operators_that_change_nothing_joins() -> None:
    nodes = [
        *UNCHANGED,
        *COLUMN[:2],
        node("Squeeze", "p last", "s"),
        node("Transpose", "b", "as_b", perm=(0, 1)),
        node("Expand", "i tokens", "again_i"),
        node("Unsqueeze", "again_i end", "again_at"),
        node("GatherND", "as_b again_at", "found_b"),
        node("Transpose", "found_b", "d", perm=(0, 1)),
        node("Add", "s d", "y"),
    ]
    graph = imported(nodes, more=[external("b", [EXPERTS, OUT]), ALL_TOKENS])
    (op,) = [op for op in graph.ops if op.type == EXPERT_MATMUL]
    assert (op.name, op.inputs[1], op.inputs[3]) == ("y", "w", "b")
    values = random_tensors(graph, 1)
    np.testing.assert_allclose(run_ops(graph, values)["y"], run_whole(graph, values)["y"], rtol=1e-5, atol=1e-6)


def test_indices_that_are_repeated_are_other_indices() -> None:
    """The same numbers, expanded along another dimension, choose other experts."""
    nodes = [
        node("Unsqueeze", "i end", "column_i"),
        node("Expand", "column_i square", "ij"),
        node("Unsqueeze", "i zero", "row_i"),
        node("Expand", "row_i square", "ji"),
        node("Gather", "w ij", "g"),
        node("Einsum", "x g", "s", equation="bci,bcoi->bco"),
        node("Gather", "b ji", "d"),
        node("Add", "s d", "y"),
    ]
    more = [external("b", [EXPERTS, OUT]), constant("square", [4, 4])]
    graph = imported(nodes, x=(4, 4, IN), indices=(4,), more=more)
    assert [len(op.inputs) for op in graph.ops if op.type == EXPERT_MATMUL] == [3]


def test_a_bias_of_other_indices_stays_outside() -> None:
    nodes = [
        *LOOK_UP, *COLUMN[:2], node("Squeeze", "p last", "s"), node("Neg", "i", "j"), node("Gather", "b j", "d"),
        node("Add", "d s", "y"),
    ]  # fmt: skip
    graph = imported(nodes, more=[external("b", [EXPERTS, OUT])])
    assert [len(op.inputs) for op in graph.ops if op.type == EXPERT_MATMUL] == [3]
    assert any(op.type == "Add" for op in graph.ops)


LOOKALIKES: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "weights read twice": ([*LOOK_UP, *COLUMN, node("Relu", "g", "z")], {"outputs": ("y", "z")}),
    "weights are an output": ([*LOOK_UP, *COLUMN], {"outputs": ("y", "g")}),
    "indices of depth two": (
        [node("GatherND", "w i", "g"), node("MatMul", "g x", "y")],
        {"weights": external("w", [EXPERTS, 3, OUT, IN]), "indices": (TOKENS, 2), "x": (TOKENS, IN, 1)},
    ),
    "a batch dimension": (
        [node("GatherND", "w i", "g", batch_dims=1), node("MatMul", "g x", "y")],
        {"weights": external("w", [TOKENS, EXPERTS, IN]), "indices": (TOKENS, 1), "x": (IN, 1)},
    ),
    "another axis": (
        [node("Gather", "w i", "g", axis=1), node("MatMul", "g x", "y")],
        {"x": (EXPERTS, IN, 1)},
    ),
    "several rows per token": (
        [*LOOK_UP, node("MatMul", "g x", "y")],
        {"x": (TOKENS, IN, 3)},
    ),
    "one row for all tokens": ([*LOOK_UP, node("MatMul", "g x", "y")], {"x": (IN, 1)}),
    "more tokens than indices": (
        [*LOOK_UP, node("MatMul", "g x", "p"), node("Squeeze", "p last", "y")],
        {"x": (TOKENS, IN, 1), "indices": (1,)},
    ),
    "Einsum that keeps the contracted index": ([*LOOK_UP, node("Einsum", "x g", "y", equation="ti,toi->toi")], {}),
    "Einsum that adds up tokens": ([*LOOK_UP, node("Einsum", "x g", "y", equation="ti,toi->o")], {}),
    "Einsum over a diagonal": (
        [*LOOK_UP, node("Einsum", "x g", "y", equation="ti,tii->ti")],
        {"weights": external("w", [EXPERTS, IN, IN])},
    ),
    "a single index": ([*LOOK_UP, node("MatMul", "x g", "y")], {"weights": TURNED, "indices": ()}),
}  # fmt: skip


@pytest.mark.parametrize("lookalike", LOOKALIKES)
def test_lookalike_stays(lookalike: str) -> None:
    nodes, options = LOOKALIKES[lookalike]
    assert EXPERT_MATMUL not in {op.type for op in imported(nodes, **options).ops}


def router() -> Graph:
    """Tokens, a router that takes two of the experts for each, and two products."""
    nodes = [
        node("MatMul", "x gate", "scores"), node("TopK", "scores two", "best which"),
        node("Unsqueeze", "x first", "x1"), node("Expand", "x1 twice", "x2"), node("Reshape", "x2 rows", "x3"),
        node("Reshape", "which flat", "at"), node("Gather", "w at", "g"), node("Unsqueeze", "x3 end", "c"),
        node("MatMul", "g c", "p"), node("Squeeze", "p last", "h"), node("Relu", "h", "a"),
        node("Gather", "v at", "u"), node("Einsum", "a u", "z", equation="to,tio->ti"),
        node("Reshape", "z pairs", "z2"), node("ReduceSum", "z2 first", "y", keepdims=0),
    ]  # fmt: skip
    constants = [
        constant("two", [2]), constant("first", [1]), constant("end", [-1]), constant("last", [2]),
        constant("flat", [-1]), constant("twice", [TOKENS, 2, 64]), constant("rows", [2 * TOKENS, 64]),
        constant("pairs", [TOKENS, 2, 64]),
    ]  # fmt: skip
    weights = [external("gate", [64, 48]), external("w", [48, 32, 64]), external("v", [48, 64, 32])]
    return import_bytes(serialised(nodes, [value("x", [TOKENS, 64])], ["y"], [*weights, *constants]))


@pytest.mark.parametrize(
    ("place", "size", "expected"),
    [
        (("x", 0), 6, {"h": (12, 32), "y": (6, 64), "w": (48, 32, 64)}),
        (("w", 1), 16, {"h": (24, 16), "v": (48, 64, 16), "w": (48, 16, 64)}),
        (("w", 0), 12, {"gate": (64, 12), "v": (12, 64, 32), "which": (12, 2)}),
        (("gate", 1), 12, {"w": (12, 32, 64), "v": (12, 64, 32), "which": (12, 2)}),
        (("w", 2), 16, {"x": (12, 16), "gate": (16, 48), "y": (12, 64)}),
    ],
)
def test_other_sizes_are_carried(place: tuple[str, int], size: int, expected: dict[str, tuple[int, ...]]) -> None:
    """Tokens, hidden layers and the number of experts, which router and weights share."""
    smaller = rebind(router(), {place: size})
    assert {t: smaller.tensors[t].shape for t in expected} == expected
    values = random_tensors(smaller, 2)
    np.testing.assert_allclose(run_ops(smaller, values)["y"], run_whole(smaller, values)["y"], rtol=1e-4, atol=1e-5)


def test_indices_are_drawn_below_the_number_of_experts() -> None:
    nodes, options = SPELLINGS["GatherND and a column"]
    assert uses(imported(nodes, **options))["i"].below == (EXPERTS,)
