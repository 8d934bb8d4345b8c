"""Names that cannot be shown are refused, wherever in a model they stand."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
from onnx import TensorProto, helper

from planner.errors import InputError
from planner.frontends import import_bytes

BAD = "a\x1bb"
FLOAT = TensorProto.FLOAT


def plain() -> onnx.ModelProto:
    """A local function, a branch, an initializer, a symbolic dimension and a module."""
    x, y = (helper.make_tensor_value_info(n, FLOAT, ["n", 4]) for n in ("x", "y"))
    inner = helper.make_tensor_value_info("inner", FLOAT, None)
    stored = helper.make_tensor("stored", FLOAT, [4], [0.0] * 4)
    branch = helper.make_graph([helper.make_node("Add", ["h", "held"], ["inner"], name="add")], "branch", [], [inner])
    branch.initializer.add().CopyFrom(helper.make_tensor("held", FLOAT, [4], [1.0] * 4))
    condition = helper.make_tensor("condition", TensorProto.BOOL, [], [True])
    nodes = [
        helper.make_node("double", ["x"], ["d"], domain="own", name="call"),
        helper.make_node("Add", ["d", "stored"], ["h"], name="sum"),
        helper.make_node("If", ["condition"], ["y"], name="either", then_branch=branch, else_branch=branch),
    ]
    nodes[1].metadata_props.add(key="namespace", value="m: M/layer: torch.nn.Module/h: aten.add")
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    body = [helper.make_node("Add", ["a", "a"], ["b"], name="twice")]
    function = helper.make_function("own", "double", ["a"], ["b"], body, opsets[:1])
    graph = helper.make_graph(nodes, "g", [x], [y], [stored, condition])
    return helper.make_model(graph, opset_imports=opsets, functions=[function])


def test_the_plain_model_is_read() -> None:
    assert import_bytes(plain().SerializeToString(), bind={"n": 2}).ops


def attribute(m: onnx.ModelProto) -> None:
    m.graph.node[1].attribute.add(name=BAD, type=onnx.AttributeProto.INT, i=1)


def dimension(m: onnx.ModelProto) -> None:
    m.graph.input[0].type.tensor_type.shape.dim[0].dim_param = BAD


def of_branch(m: onnx.ModelProto) -> onnx.GraphProto:
    return m.graph.node[2].attribute[0].g


PLACES: dict[str, Callable[[onnx.ModelProto], object]] = {
    "an operator": lambda m: setattr(m.graph.node[1], "name", BAD),
    "an operator type": lambda m: setattr(m.graph.node[1], "op_type", BAD),
    "a domain": lambda m: setattr(m.graph.node[1], "domain", BAD),
    "an operand": lambda m: m.graph.node[1].input.append(BAD),
    "a result": lambda m: m.graph.node[1].output.append(BAD),
    "an attribute": attribute,
    "a module": lambda m: setattr(m.graph.node[1].metadata_props[0], "value", BAD),
    "an initializer": lambda m: setattr(m.graph.initializer[0], "name", BAD),
    "an input": lambda m: setattr(m.graph.input[0], "name", BAD),
    "an output": lambda m: setattr(m.graph.output[0], "name", BAD),
    "a value": lambda m: m.graph.value_info.add(name=BAD),
    "a dimension": dimension,
    "an operator of a branch": lambda m: setattr(of_branch(m).node[0], "name", BAD),
    "an initializer of a branch": lambda m: setattr(of_branch(m).initializer[0], "name", BAD),
    "a function": lambda m: setattr(m.functions[0], "name", BAD),
    "a domain of functions": lambda m: setattr(m.functions[0], "domain", BAD),
    "an operand of a function": lambda m: m.functions[0].input.append(BAD),
    "an attribute of a function": lambda m: m.functions[0].attribute.append(BAD),
    "an operator of a function": lambda m: setattr(m.functions[0].node[0], "name", BAD),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_name_that_cannot_be_shown_is_refused(place: str) -> None:
    changed = plain()
    PLACES[place](changed)
    with pytest.raises(InputError, match=r"holds '\\x1b', which no name may have"):
        import_bytes(changed.SerializeToString(), bind={"n": 2})
