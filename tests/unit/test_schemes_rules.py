"""What an axis of each kind does to operators: laws of the rules, whatever the model."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from planner.errors import UsageError
from planner.evaluate import Configuration
from planner.frontends import import_bytes, load_model
from planner.ir import DeviceMesh, Graph, Layout
from planner.planning.schemes.arrival import KindOfAxis
from planner.planning.schemes.context import BY_RING
from planner.planning.schemes.expert import EXPERT
from planner.planning.schemes.layout import Along, lay_out
from planner.planning.schemes.model import model_of
from planner.planning.schemes.pins import constraints_of_configuration
from planner.planning.schemes.stored import ranks_that_divide
from planner.planning.schemes.tensor import TENSOR
from planner.planning.schemes.ways import divided, ways_along
from planner.rules.strategy import REPLICATE, AxisRole
from planner.work.units import units_of
from tests.unit.evaluate_graphs import gpt, graph, llama

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
TRANSFORMERS = ("gpt_tiny", "llama_tiny", "bert_tiny", "vit_tiny", "moe_tiny", "gpt2_small")
MODELS = (*TRANSFORMERS, "resnet18_tiny", "resnet50", "mlp")
ROWS, COLUMNS = Layout((("x",), ())), Layout(((), ("x",)))


def along(g: Graph, kind: KindOfAxis, size: int, *, sequence_parallel: bool = False) -> Along:
    """Of one axis alone."""
    outside: dict[str, tuple[AxisRole, ...]] = {op.name: () for op in g.ops}
    return lay_out(g, model_of(g), DeviceMesh.of(size), outside, kind, sequence_parallel=sequence_parallel)


def sample(name: str) -> Graph:
    return load_model(SAMPLES / f"{name}.onnx", batch=4)


def graph_of(nodes: list[onnx.NodeProto], weights: dict[str, list[int]], **inputs: list[int]) -> Graph:
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in {**inputs, **weights}.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    made = helper.make_graph(nodes, "g", given, [result], initializer=[_zeros(n, s) for n, s in weights.items()])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return import_bytes(model.SerializeToString(), name="g")


def _zeros(name: str, shape: list[int]) -> onnx.TensorProto:
    size = 4
    for n in shape:
        size *= n
    return helper.make_tensor(name, TensorProto.FLOAT, shape, bytes(size), raw=True)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_column_product_is_followed_by_a_row_product(name: str, sequence_parallel: bool) -> None:
    """Law: where an operand of a product with a weight is read divided, and the weight is divided, too, it is along
    the contraction: the result is a sum, or the weight has the dimension for each expert or channel by itself."""
    g = sample(name)
    m, layout = model_of(g), along(g, TENSOR, 2, sequence_parallel=sequence_parallel)
    columns = rows = 0
    for op in g.ops:
        if m.rules[op.name].cost.kind not in ("matmul", "conv") or op.inputs[1] not in m.weights:
            continue
        way = layout.ways[op.name]
        if not divided(way.operands[1]):
            continue
        result = way.results[0]
        assert result is not None
        if divided(way.operands[0]):
            assert way.operands[0] == layout.rest[op.inputs[0]]
            assert result.partial or divided(result)
            rows += bool(result.partial)
        else:
            assert divided(result)
            columns += 1
    assert columns
    assert rows


@pytest.mark.parametrize("name", [n for n in TRANSFORMERS if n != "moe_tiny"])
def test_without_sequence_parallelism_activations_between_blocks_are_whole(name: str) -> None:
    g = sample(name)
    units, layout = units_of(g), along(g, TENSOR, 2)
    between = [
        t
        for op in g.ops
        for t in op.inputs
        if t in g.producers and t not in model_of(g).weights and op.name in layout.ways
        if units.of[g.producers[t].name] != units.of[op.name]
    ]
    assert between
    assert all(layout.rest[t].is_replicated for t in between if t in layout.rest)


@pytest.mark.parametrize("g", [gpt(2), llama(2)], ids=["gpt", "llama"])
def test_with_sequence_parallelism_activations_between_blocks_are_divided_along_the_sequence(g: Graph) -> None:
    units, layout = units_of(g), along(g, TENSOR, 4, sequence_parallel=True)
    between = {
        t
        for op in g.ops
        for t in op.inputs
        if t in g.producers and t in layout.rest and units.repeated[units.of[op.name]]
        if units.of[g.producers[t].name] != units.of[op.name] and g.tensors[t].is_float and g.tensors[t].rank == 3
    }
    assert between
    assert {str(layout.rest[t]) for t in between} == {"[_,x,_]"}


@pytest.mark.parametrize(("left", "right", "followed"), [([8, 64], [64, 1], "left"), ([8, 1], [64, 8], "right")])
def test_ties_are_decided_by_bytes(left: list[int], right: list[int], followed: str) -> None:
    """Law: of operands that arrive divided along different dimensions, the larger one stays as it is."""
    nodes = [
        helper.make_node("Transpose", ["b"], ["bt"], perm=[1, 0]),
        helper.make_node("Add", ["a", "bt"], ["y"]),
    ]
    g = graph_of(nodes, {}, a=left, b=right)
    layout = along(g, EXPERT, 4)
    assert layout.rest["a"] == ROWS
    assert layout.rest["bt"] == COLUMNS
    assert layout.rest["y"] == (ROWS if followed == "left" else COLUMNS)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", [TENSOR, BY_RING])
def test_no_product_is_repeated_that_could_be_divided_as_an_operand_arrives(name: str, kind: KindOfAxis) -> None:
    g = sample(name)
    m, layout = model_of(g), along(g, kind, 2)
    mesh = DeviceMesh.of(2)
    for op in g.ops:
        rule = m.rules[op.name]
        if rule.cost.kind.fuses or op.name not in layout.ways or layout.ways[op.name].splits:
            continue
        weights = [i for i, t in enumerate(op.inputs) if t in m.weights]
        for way in ways_along(rule, mesh, ()):
            arrive = [i for i, t in enumerate(op.inputs) if i not in weights and divided(layout.rest.get(t))]
            keeps = any(way.operands[i] == layout.rest[op.inputs[i]] for i in arrive)
            assert not keeps or way.divides(weights), op.name


def test_an_output_layer_multiplies_by_the_table_as_inputs_look_it_up() -> None:
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["h"]),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "turned"], ["z"]),
        helper.make_node("Softmax", ["z"], ["y"], axis=-1),
    ]
    for rows, laid in ((96, "[x,_]"), (99, "[_,_]")):
        given = [helper.make_tensor_value_info("tokens", TensorProto.INT64, [2, 16])]
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        made = helper.make_graph(nodes, "g", given, [result], initializer=[_zeros("table", [rows, 32])])
        model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        layout = along(import_bytes(model.SerializeToString(), name="g"), TENSOR, 2)
        assert str(layout.rest["table"]) == laid
        assert str(layout.rest["turned"]) == ("[_,x]" if rows == 96 else "[_,_]")
        assert str(layout.rest["z"]) == ("[_,_,x]" if rows == 96 else "[_,_,_]")


@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny", "llama_tiny"])
def test_context_parallelism_repeats_no_output_layer(name: str) -> None:
    """Law: a table that inputs look up is a weight where the output layer multiplies by it, too: its product keeps the
    sequence divided."""
    g = sample(name)
    m, layout = model_of(g), along(g, BY_RING, 2)
    products = [op for op in g.ops if m.rules[op.name].cost.kind == "matmul" and op.inputs[1] in m.weights]
    assert all(layout.ways[op.name].splits for op in products)


def test_queries_keys_and_values_behind_each_other_are_divided_each_by_itself() -> None:
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["qkv"]),
        helper.make_node("Split", ["qkv"], ["q", "k", "v"], axis=2, num_outputs=3),
        helper.make_node("Sum", ["q", "k", "v"], ["y"]),
    ]
    layout = along(graph_of(nodes, {"w": [32, 96]}, a=[2, 16, 32]), TENSOR, 4)
    assert str(layout.rest["w"]) == "[_,x:3]"
    assert str(layout.rest["qkv"]) == "[_,_,x:3]"
    assert {str(layout.rest[t]) for t in ("q", "k", "v", "y")} == {"[_,_,x]"}


def test_an_axis_is_laid_out_within_what_those_outside_it_leave() -> None:
    """Law: roles of all axes go together, and an operator that the outer axes split is still split by the inner."""
    g = graph("gpt", layers=2, batch=4, seq=64, hidden=64, heads=8, vocab=256)
    c = Configuration(dp=4, cp=2, tp=2, zero=1)
    pins = constraints_of_configuration(g, c, "S")
    (sizes,) = pins.meshes
    assert sizes == (4, 2, 2)
    products = [op.name for op in g.ops if model_of(g).rules[op.name].cost.kind == "matmul"]
    roles = {p.match[0]: dict(p.strategy.roles) for p in pins.operators}
    for name in products:
        assert all(role != REPLICATE for role in roles[name].values()), name


@pytest.mark.parametrize(("ranks", "divisor"), [(8, 8), (12, 4), (6, 2), (7, 7)])
def test_weights_are_cut_over_the_divisor_of_the_ranks_that_leaves_the_smallest_shards(
    ranks: int, divisor: int
) -> None:
    assert ranks_that_divide(gpt(1), ranks) == divisor  # whose sizes are powers of two, and thrice them


@pytest.mark.parametrize("name", ["bert_tiny", "resnet18_tiny", "vit_tiny", "gpt_tiny"])
def test_a_model_without_experts_has_nothing_for_expert_parallelism(name: str) -> None:
    with pytest.raises(UsageError, match="no weights of experts"):
        constraints_of_configuration(sample(name), Configuration(dp=4, ep=2), "S")
