"""What kernels read, write and compute, whatever the strategy: operators' parts add up to what is fused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from planner.cost_models import load_profile
from planner.cost_models.kernels import Kernel
from planner.frontends import import_bytes
from planner.ir import DeviceMesh, Graph
from planner.pricing import Machine, Settings, active_tensors, bind_rules, price
from planner.work.fusion import Part, fuse
from planner.work.operators import Operator, kernels
from planner.work.units import bucket_shares, units_of
from tests.unit.evaluate_graphs import gpt
from tests.unit.one_module_models import MODELS

ROWS, COLUMNS = 64, 32
SIZE = ROWS * COLUMNS * 2.0  # bytes of an activation


class Cut:
    """Everything is cut into so many pieces."""

    def __init__(self, pieces: float) -> None:
        self.parallelism = pieces

    def operand(self, slot: int) -> float:
        return self.parallelism

    result = operand

    def factor(self, name: str) -> float:
        return 1.0


def model(*nodes: onnx.NodeProto, weights: Mapping[str, Any] | None = None) -> Graph:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, COLUMNS])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    held = [
        onnx.numpy_helper.from_array(np.asarray(value, dtype=np.float32), name)
        for name, value in (weights or {}).items()
    ]
    made = helper.make_graph(nodes, "chain", [x], [y], held)
    file = helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return import_bytes(onnx.shape_inference.infer_shapes(file).SerializeToString(), name="chain")


def work(graph: Graph, pieces: float = 1.0, **how: bool) -> tuple[dict[str, Part], list[Kernel], list[Kernel]]:
    """Parts by operator type, and all kernels forward and backward."""
    rules, _ = bind_rules(graph)
    fusion = fuse(graph, rules, active_tensors(graph, rules), **how)
    ways: tuple[list[Kernel], list[Kernel]] = ([], [])
    for op in graph.ops:
        read, written = ([2.0 * graph.tensors[t].elements for t in names] for names in (op.inputs, op.outputs))
        found = kernels(Operator(rules[op.name], fusion.parts[op.name], read, written, 2.0), Cut(pieces))
        for way, more in zip(ways, found, strict=True):
            way += more
    return {op.type: fusion.parts[op.name] for op in graph.ops}, *ways


CHAIN = (
    helper.make_node("Mul", ["x", "g"], ["a"]),
    helper.make_node("Relu", ["a"], ["b"]),
    helper.make_node("Tanh", ["b"], ["y"]),
)


@pytest.mark.parametrize("pieces", [1.0, 4.0])
def test_a_chain_reads_what_enters_and_writes_what_leaves_once(pieces: float) -> None:
    graph = model(*CHAIN, weights={"g": np.ones((ROWS, COLUMNS))})
    _, forward, backward = work(graph, pieces)
    assert sum(k.bytes for k in forward) == 3 * SIZE / pieces  # x, g and y
    assert sum(k.launches for k in forward) == sum(k.launches for k in backward) == 1
    _, apart, _ = work(graph, pieces, chains=False)
    assert sum(k.bytes for k in apart) == (3 + 2 + 2) * SIZE / pieces
    assert sum(k.launches for k in apart) == 3
    assert sum(k.flops for k in forward) == sum(k.flops for k in apart)


def test_results_inside_a_kernel_never_reach_memory() -> None:
    parts, _, _ = work(model(*CHAIN, weights={"g": np.ones((ROWS, COLUMNS))}))
    assert (parts["Mul"].inside, parts["Relu"].inside, parts["Tanh"].inside) == ((0,), (0,), ())
    assert (parts["Mul"].writes, parts["Tanh"].writes) == ((), (0,))


def test_a_product_between_two_chains_keeps_them_apart() -> None:
    graph = model(
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Tanh", ["b"], ["c"]),
        helper.make_node("Add", ["c", "a"], ["y"]),  # of a later level than what it reads directly
        weights={"w": np.ones((COLUMNS, COLUMNS))},
    )
    parts, forward, backward = work(graph)
    assert (parts["Relu"].inside, parts["Tanh"].inside) == ((), (0,))
    assert sum(k.launches for k in forward) == 3
    product = next(k for k in forward if k.kind == "product")
    assert (product.batch, product.rows, product.columns, product.depth) == (1, ROWS, COLUMNS, COLUMNS)
    gradients = [k for k in backward if k.kind == "product"]
    assert [k.of_weights for k in gradients] == [True]  # x carries no gradient


def test_views_cost_nothing_and_copies_do() -> None:
    graph = model(helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0]))
    _, joined, _ = work(graph)
    _, apart, _ = work(graph, copies=True)
    assert joined == work(graph, chains=False)[1] == []
    assert sum(k.bytes for k in apart) == 2 * SIZE


def test_a_graph_of_views_alone_costs_nothing_to_compute() -> None:
    graph = model(helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0]))
    rules, _ = bind_rules(graph)
    machine = Machine(load_profile("a100-80"), DeviceMesh.of(2), Settings(training=False))
    (table,) = price(graph, machine, rules, frozenset(), None).tables.values()
    assert not table.work.total.any()
    assert table.launches == (0, 0)


def test_attention_written_out_is_one_kernel_that_keeps_no_scores() -> None:
    graph = gpt(1)
    rules, _ = bind_rules(graph)
    active = active_tensors(graph, rules)
    joined, apart = (fuse(graph, rules, active, attention=x) for x in (True, False))
    scores, mixing = (next(n for n, p in joined.parts.items() if p.role == role) for role in ("scores", "mixing"))
    assert joined.parts[scores].causal
    assert joined.parts[scores].inside == (0,)
    assert joined.parts[mixing].begins is False
    assert {apart.parts[n].role for n in (scores, mixing)} == {"heavy"}
    softmax = next(op.name for op in graph.ops if op.type == "Softmax")
    assert (joined.parts[softmax].role, apart.parts[softmax].role) == ("idle", "fused")


@pytest.mark.parametrize("attention", [True, False])
def test_the_core_of_attention_is_the_same_whether_or_not_chains_are_joined(attention: bool) -> None:
    graph = gpt(2)
    rules, _ = bind_rules(graph)
    active = active_tensors(graph, rules)
    joined, apart = (fuse(graph, rules, active, chains=x, attention=attention) for x in (True, False))
    assert len(apart.cores) == 2
    assert apart.cores == joined.cores
    assert "Softmax" in {op.type for op in apart.cores[0].between}
    if attention:
        assert all(apart.parts[c.scores] == joined.parts[c.scores] for c in apart.cores)
        assert all(apart.parts[op.name].role == "idle" for c in apart.cores for op in c.between)


def test_amounts_of_many_strategies_are_those_of_each() -> None:
    graph = model(*CHAIN, weights={"g": np.ones((ROWS, COLUMNS))})
    together = work(graph, np.array([1.0, 2.0, 8.0]))[1]  # type: ignore[arg-type]  # arrays are amounts as well
    for i, pieces in enumerate((1.0, 2.0, 8.0)):
        alone = work(graph, pieces)[1]
        for many, one in zip(together, alone, strict=True):
            assert (np.broadcast_to(many.bytes, 3)[i], np.broadcast_to(many.flops, 3)[i]) == (one.bytes, one.flops)


def test_shares_of_a_units_bucket_add_up() -> None:
    graph = gpt(3)
    units, shares = units_of(graph), bucket_shares(graph)
    assert sum(units.repeated) == 3
    together: dict[int, float] = {}
    for name, share in shares.items():
        unit = min(units.of[op.name] for op, _ in graph.consumers[name])
        together[unit] = together.get(unit, 0.0) + share
    assert list(together.values()) == pytest.approx([1.0] * len(together))


@pytest.mark.parametrize(
    ("kind", "anew"), [("planner::DeformConv3D", True), ("planner::SwiGLUMatMul", True), ("MatMul", False)]
)
def test_both_gradients_of_a_product_take_what_its_rule_states_of_the_backward(kind: str, anew: bool) -> None:
    """Products, or what was sampled, may be made anew."""
    graph = import_bytes(MODELS["planner::SwiGLUMatMul" if kind == "MatMul" else kind]().SerializeToString())
    (op, *_) = (o for o in graph.ops if o.type == kind)
    rule = bind_rules(graph)[0][op.name]
    sizes = ([4.0 * graph.tensors[t].elements for t in names] for names in (op.inputs, op.outputs))
    forward, backward = kernels(Operator(rule, Part("heavy", gradients=(0, 1), trained=True), *sizes, 4.0), Cut(2.0))
    assert [sum(k.flops for k in way) for way in (forward, backward)] == [
        rule.cost.flops / 2,
        rule.cost.backward_flops / 2,
    ]
    assert (rule.cost.backward_flops > 2 * rule.cost.flops) == anew


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "aligned"),
    [(7, 64, 32, 16), (7, 64, 33, 1), (7, 63, 32, 1), (7, 64, 34, 2), (7, 68, 40, 4), (7, 64, 1, 16), (1, 64, 33, 16)],
)
def test_a_product_and_its_gradients_are_as_aligned_as_depth_and_columns(
    rows: int, depth: int, columns: int, aligned: int
) -> None:
    """Its rows lie innermost in none of the three matrices: 7 of them matter nowhere.  Vectors are contiguous."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, depth])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, columns])
    held = [onnx.numpy_helper.from_array(np.ones((depth, columns), dtype=np.float32), "w")]
    made = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", [x], [y], held)
    file = helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    graph = import_bytes(file.SerializeToString(), name="product")
    (op,) = graph.ops
    part = Part("heavy", (0, 1), (0,), gradients=(0, 1), trained=True)
    sizes = ([4.0 * graph.tensors[t].elements for t in names] for names in (op.inputs, op.outputs))
    forward, backward = kernels(Operator(bind_rules(graph)[0][op.name], part, *sizes, 4.0), Cut(1.0))
    assert [float(k.aligned) for k in (*forward, *backward)] == [aligned] * 3


def test_search_prices_strategies_by_the_alignment_of_their_shards() -> None:
    """Of 4098 columns in two pieces each has 2049, which is odd; 4112 stay aligned in two."""

    def cost(columns: int, machine: str) -> dict[int, int]:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4096, 1024])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4096, columns])
        held = [onnx.numpy_helper.from_array(np.ones((1024, columns), dtype=np.float32), "w")]
        made = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", [x], [y], held)
        file = helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        graph = import_bytes(file.SerializeToString(), name="product")
        rules, _ = bind_rules(graph)
        two = Machine(load_profile(machine), DeviceMesh.of(2), Settings(training=False))
        (table,) = price(graph, two, rules, frozenset(), None).tables.values()
        (n,) = (f for f, size in table.rule.factors.items() if size == columns)
        return {int(s): int(c) for s, c in zip(table.choices.factor_shards(n), table.work.total, strict=True)}

    odd, even = cost(4098, "h200"), cost(4112, "h200")
    assert odd[2] / even[2] > odd[1] / even[1] > 1.5
    odd, even = cost(4098, "a100-80"), cost(4112, "a100-80")
    assert max(odd[2] / even[2], odd[1] / even[1]) < 1.001
