"""What changes of valid models have shown (`python -m tests.fault.inputs`): each ends in a plan or in an error that
names the place."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from planner.api.jobs.requests import search_options
from planner.emit import Given, emit
from planner.emit.onnx.ranks.writer import Writer
from planner.errors import InputError
from planner.frontends import Imported, import_bytes
from planner.frontends.steps.fold import fold
from planner.ir import Op
from planner.planning import PlanDocument
from planner.requests.cancel import Cancellation
from planner.requests.searcher import Searcher
from planner.requests.watch import Silent

from .parts import FLOAT, INT64, OPSETS, model, serialized


def split_of_integers_in_an_operator_set_without_it():
    x = helper.make_tensor_value_info("x", INT64, [6])
    return model([helper.make_node("Split", ["x"], ["y", "z"])], inputs=[x], opsets=[helper.make_opsetid("", 1)])


def cast_like_nothing():
    return model([helper.make_node("CastLike", ["x"], ["y"])], opsets=[helper.make_opsetid("", 11)])


def version_of_many_bits():
    return model([helper.make_node("Relu", ["x"], ["y"])], opsets=[helper.make_opsetid("", -(2**62))])


def version_of_a_domain_of_many_bits():
    opsets = [*OPSETS, helper.make_opsetid("com.microsoft", 2**40)]
    return model([helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")], opsets=opsets)


OF_13 = [helper.make_opsetid("", 13)]
REFUSED = (
    (split_of_integers_in_an_operator_set_without_it, "unsupported type|has unsupported|Split"),
    (cast_like_nothing, "CastLike '' has 1 operands; expected 2"),
    (version_of_many_bits, "version -4611686018427387904 of the operator set 'ai.onnx'; expected 1 to"),
    (version_of_a_domain_of_many_bits, "version 1099511627776 of the operator set 'com.microsoft'"),
)


@pytest.mark.parametrize(("make", "says"), REFUSED, ids=lambda v: getattr(v, "__name__", ""))
def test_refused_by_name(make, says):
    with pytest.raises(InputError, match=says):
        import_bytes(serialized(make()))


def planned(proto, **options):
    """The search of a small model, in this process."""
    content = serialized(proto)
    given = search_options({"devices": 2, **options})
    graph = import_bytes(content, name="m")
    return Searcher(given, None, None, Cancellation(), Silent(), graphs={None: Imported(graph, content)}).search(2)


def test_branches_that_give_sequences_are_read():
    """The checker of shapes cannot express what they give."""
    sequence = helper.make_tensor_sequence_value_info("s", FLOAT, [2])
    branches = [
        helper.make_graph([helper.make_node("SequenceConstruct", ["x"], ["s"])], name, [], [sequence])
        for name in ("then_branch", "else_branch")
    ]
    node = helper.make_node("If", ["c"], ["y"], **dict(zip(("then_branch", "else_branch"), branches, strict=True)))
    condition = helper.make_tensor("c", TensorProto.BOOL, [], [True])
    out = helper.make_tensor_sequence_value_info("y", FLOAT, [2])
    graph = import_bytes(serialized(model([node], outputs=[out], initializers=[condition], opsets=OF_13)))
    assert [op.type for op in graph.ops] == ["If"]


def test_flex_attention_that_changes_its_scores_is_planned():
    """Its attribute is a graph, and was taken for a type."""
    score, changed = (helper.make_tensor_value_info(n, FLOAT, None) for n in ("s", "t"))
    change = helper.make_graph([helper.make_node("Tanh", ["s"], ["t"])], "change", [score], [changed])
    node = helper.make_node("FlexAttention", ["q", "k", "v"], ["y"], domain="ai.onnx.preview", score_mod=change)
    inputs = [helper.make_tensor_value_info(n, FLOAT, [1, 2, 4, 8]) for n in "qkv"]
    opsets = [helper.make_opsetid("", 26), helper.make_opsetid("ai.onnx.preview", 1)]
    assert planned(model([node], inputs=inputs, opsets=opsets)).plans


def test_floats_of_every_width_are_planned():
    """`float8e8m0` and the floats of six bits had no size."""
    for kind in (TensorProto.FLOAT8E8M0, TensorProto.FLOAT6E2M3, TensorProto.FLOAT6E3M2):
        x = helper.make_tensor_value_info("x", kind, [4, 8])
        made = model(
            [helper.make_node("Cast", ["x"], ["y"], to=FLOAT)], inputs=[x], opsets=[helper.make_opsetid("", 28)]
        )
        assert planned(made).plans


def test_a_gradient_of_unknown_shape_is_moved_nowhere():
    """Behind an operator that nobody knows, a weight is added to what has no known shape."""
    b = helper.make_tensor("b", FLOAT, [4], [0.0] * 4)
    w = helper.make_tensor("w", FLOAT, [3, 4], [0.0] * 12)
    labels = helper.make_tensor_value_info("labels", INT64, [2])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Unheard", ["h"], ["u"]),
        helper.make_node("Add", ["u", "b"], ["a"]),
        helper.make_node("SoftmaxCrossEntropyLoss", ["a", "labels"], ["loss"]),
    ]
    x = helper.make_tensor_value_info("x", FLOAT, [2, 3])
    loss = helper.make_tensor_value_info("loss", FLOAT, [])
    answer = planned(model(nodes, inputs=[x, labels], outputs=[loss], initializers=[w, b]), mode="training")
    assert answer.plans


def test_positions_are_split_in_a_model_without_parameters():
    x = helper.make_tensor_value_info("x", INT64, [4, 8])
    nodes = [helper.make_node("Cast", ["x"], ["h"], to=FLOAT), helper.make_node("Relu", ["h"], ["y"])]
    found = planned(model(nodes, inputs=[x]), pin=["h d1=x"], mesh="2", mode="training")
    with pytest.raises(InputError, match=r"parameters are whole over it \(there are none\)"):
        emit("torchtitan", Given(PlanDocument.model_validate_json(found.plans[0])))


def test_copies_of_another_rank_than_their_operand_stay_whole():
    """The file says a shape that cannot be."""
    y = helper.make_tensor_value_info("y", FLOAT, [4, 4])
    inputs = [helper.make_tensor_value_info("x", FLOAT, [2]), helper.make_tensor_value_info("n", INT64, [1])]
    found = planned(model([helper.make_node("Tile", ["x", "n"], ["y"])], inputs=inputs, outputs=[y]))
    assert PlanDocument.model_validate_json(found.plans[0]).operators["y"].strategy == {"x": "replicate"}


def test_products_with_what_has_no_known_shape_have_no_entry_in_a_strategy_of_mindspore():
    w = helper.make_tensor("w", FLOAT, [4, 4], [0.0] * 16)
    nodes = [helper.make_node("Unheard", ["x"], ["u"]), helper.make_node("MatMul", ["u", "w"], ["y"])]
    found = planned(model(nodes, initializers=[w]), mode="training")
    assert emit("mindspore", Given(PlanDocument.model_validate_json(found.plans[0]))).files


def test_a_number_beside_a_value_of_unknown_type_is_refused_by_name():
    writer = Writer(20, ())
    with pytest.raises(InputError, match="tensor v: its element type is not known"):
        writer.number(2.0, writer.declare("v", "", (2,)))


def test_what_divides_by_zero_is_not_computed_ahead():
    op = Op("r", "Range", ("a", "b", "c"), ("r",), {}, 20)
    assert fold(op, {t: np.array(v) for t, v in (("a", 0), ("b", 16), ("c", 0))}, 8) is None
