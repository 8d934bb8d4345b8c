"""Writes the hostile models beside this file: `python -m tests.hostile.make_models`.

Each is small and breaks one rule, or keeps all rules and asks for far too much.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from tests.hostile.bombs import BOMBS as MORE_BOMBS
from tests.hostile.names import NAMES
from tests.hostile.outside import OUTSIDE
from tests.hostile.parts import FLOAT, INT64, LOCAL, field, function, int64s, model, plain, serialized


def cyclic():
    return model([helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
                  helper.make_node("Relu", ["b"], ["y"])])  # fmt: skip


def recursive_functions():
    f = function("f", [helper.make_node("g", ["a"], ["b"], domain="local")])
    g = function("g", [helper.make_node("f", ["a"], ["b"], domain="local")])
    return model([helper.make_node("f", ["x"], ["y"], domain="local")], functions=[f, g], opsets=LOCAL)


def function_bomb():
    """Thirty functions, each calling the next twice: a thousand million nodes when inlined."""
    functions = []
    for i in range(29):
        call = [helper.make_node(f"f{i + 1}", [a], [b], domain="local") for a, b in (("a", "m"), ("m", "b"))]
        functions.append(function(f"f{i}", call))
    functions.append(function("f29", [helper.make_node("Relu", ["a"], ["b"])]))
    return model([helper.make_node("f0", ["x"], ["y"], domain="local")], functions=functions, opsets=LOCAL)


def nested(levels):
    out = [helper.make_tensor_value_info("r0", FLOAT, None)]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["r0"])], "g0", [], out)
    for i in range(1, levels):
        node = helper.make_node("If", ["c"], [f"r{i}"], then_branch=graph, else_branch=small(i))
        out = [helper.make_tensor_value_info(f"r{i}", FLOAT, None)]
        graph = helper.make_graph([node], f"g{i}", [], out)
    last = helper.make_node("Identity", [f"r{levels - 1}"], ["y"])
    condition = helper.make_tensor("c", TensorProto.BOOL, [], [True])
    return model([*graph.node, last], initializers=[condition])


def deep_nesting():
    return nested(28)  # three messages a level, and protobuf refuses more than a hundred


def deeper_nesting() -> bytes:
    """A thousand graphs in attributes of nodes of graphs, beyond what the protobuf library would write."""
    payload = b""
    for _ in range(1000):
        for number in (6, 5, 1):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            payload = field(number, payload)
    return field(7, payload)  # ModelProto.graph


def small(i):
    out = helper.make_tensor_value_info(f"e{i}", FLOAT, None)
    return helper.make_graph([helper.make_node("Relu", ["x"], [f"e{i}"])], f"else{i}", [], [out])


def missing_tensor():
    return model([helper.make_node("Add", ["x", "nowhere"], ["y"], name="add")])


def attribute_garbage():
    m = model([helper.make_node("Transpose", ["x"], ["y"], perm=[0, 1])])
    m.graph.node[0].attribute[0].type = onnx.AttributeProto.GRAPHS  # says sub-graphs, holds integers
    return m


def wrong_permutation():
    return model([helper.make_node("Transpose", ["x"], ["y"], perm=[5, 7])])


def shape_bomb():
    """Shape arithmetic on a vector of 10^9 elements: eight gigabytes when propagated as data."""
    nodes = [
        helper.make_node("ConstantOfShape", ["n"], ["v"], value=helper.make_tensor("value", INT64, [1], [1])),
        helper.make_node("Concat", ["v", "v", "v", "v"], ["w"], axis=0),
        helper.make_node("ConstantOfShape", ["w"], ["y"]),
    ]
    return model(nodes, initializers=[int64s("n", [10**9])])


def range_bomb():
    nodes = [
        helper.make_node("Range", ["zero", "far", "one"], ["r"]),
        helper.make_node("Cast", ["r"], ["y"], to=FLOAT),
    ]
    scalars = [helper.make_tensor(n, INT64, [], [v]) for n, v in (("zero", 0), ("far", 10**15), ("one", 1))]
    return model(nodes, initializers=scalars)


def huge_tensor():
    big = helper.make_tensor_value_info("x", FLOAT, [2**40, 2**40])
    return model([helper.make_node("Relu", ["x"], ["y"])], inputs=[big])


def negative_dimension():
    t = TensorProto(name="w", data_type=FLOAT, dims=[-3])
    return model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[t])


def short_data():
    t = TensorProto(name="w", data_type=FLOAT, dims=[3], raw_data=b"\0\0")
    return model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[t])


def defined_twice():
    return model([helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])])


def future_opset():
    return model([helper.make_node("Relu", ["x"], ["y"])], opsets=[helper.make_opsetid("", 4000)])


def mismatched_shapes():
    w = helper.make_tensor_value_info("w", FLOAT, [5, 7])
    x = helper.make_tensor_value_info("x", FLOAT, [2, 3])
    return model([helper.make_node("MatMul", ["x", "w"], ["y"])], inputs=[x, w])


def attribute_outside():
    """A permutation table whose data is said to lie in /etc/passwd."""
    t = TensorProto(name="t", data_type=INT64, dims=[2], data_location=TensorProto.EXTERNAL)
    t.external_data.add(key="location", value="/etc/passwd")
    return model([helper.make_node("ConstantOfShape", ["n"], ["y"], value=t)], initializers=[int64s("n", [2])])


def negative_size_of_input():
    x = helper.make_tensor_value_info("x", FLOAT, [2, -5])
    return model([helper.make_node("Relu", ["x"], ["y"])], inputs=[x])


def output_of_nothing():
    return model([helper.make_node("Relu", ["x"], ["z"])])


def input_twice():
    x = helper.make_tensor_value_info("x", FLOAT, [2, 3])
    return model([helper.make_node("Relu", ["x"], ["y"])], inputs=[x, x])


def initializer_twice():
    w = helper.make_tensor("w", FLOAT, [2], [1, 2])
    return model([helper.make_node("Mul", ["w", "w"], ["y"])], initializers=[w, w])


def unknown_element_type():
    t = TensorProto(name="w", data_type=99, dims=[2], raw_data=bytes(8))
    return model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=[t])


def function_of_functions():
    """A local function that is called in a ring of three, from inside a branch."""
    ring = [function(f"r{i}", [helper.make_node(f"r{(i + 1) % 3}", ["a"], ["b"], domain="local")]) for i in range(3)]
    out = [helper.make_tensor_value_info("t", FLOAT, None)]
    branch = helper.make_graph([helper.make_node("r0", ["x"], ["t"], domain="local")], "then", [], out)
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    condition = helper.make_tensor("c", TensorProto.BOOL, [], [True])
    return model([node], initializers=[condition], functions=ring, opsets=LOCAL)


REFUSED = (
    attribute_garbage, attribute_outside, cyclic, defined_twice, function_bomb, function_of_functions, future_opset,
    huge_tensor, mismatched_shapes, missing_tensor, negative_dimension, output_of_nothing, recursive_functions,
    short_data, unknown_element_type, wrong_permutation,
)  # fmt: skip
BOMBS = (
    *(deep_nesting, range_bomb, shape_bomb, input_twice, initializer_twice, negative_size_of_input),
    *(*MORE_BOMBS, *NAMES, *OUTSIDE),
)  # may be imported or refused, but neither slowly nor at great expense


def contents() -> dict[str, bytes]:
    """File name → bytes of everything here."""
    whole = serialized(plain())
    files = {
        "deeper_nesting.onnx": deeper_nesting(),
        "empty.onnx": b"",
        "text.onnx": b"This is not a model.\n" * 20,
        "json.onnx": b'{"graph": {"node": []}}\n',
        "truncated.onnx": whole[: len(whole) * 2 // 3],
        "zeros.onnx": bytes(512),
    }
    for make in (*REFUSED, *BOMBS):
        files[f"{make.__name__}.onnx"] = serialized(make())
    return files


if __name__ == "__main__":
    for name, data in contents().items():
        (Path(__file__).parent / name).write_bytes(data)
