"""Small models that keep the rules and ask for far too much."""

from __future__ import annotations

from itertools import pairwise

from onnx import TensorProto, helper

from tests.hostile.parts import FLOAT, INT64, LOCAL, OPSETS, chain, field, function, int64s, model, serialized, varint


def doubled(first, levels):
    """Each tensor is the one before, twice."""
    names = [first, *(f"c{i}" for i in range(1, levels)), "y"]
    return [helper.make_node("Concat", [a, a], [b], axis=0) for a, b in pairwise(names)]


def concat_bomb():
    """A kilobyte: a vector of integers doubled thirty times, which shape inference would carry as data."""
    return model(doubled("n", 30), initializers=[int64s("n", [1])], outputs=[int_output()])


def concat_bomb_of_shape():
    """The same from a Shape, and then taken for a shape."""
    nodes = [helper.make_node("Shape", ["x"], ["n"]), *doubled("n", 29)]
    nodes[-1].output[0] = "wide"
    nodes.append(helper.make_node("ConstantOfShape", ["wide"], ["y"]))
    return model(nodes)


def concat_beyond_64_bits():
    return model(doubled("x", 64))


def int_output():
    return helper.make_tensor_value_info("y", INT64, None)


def doubling_functions(levels):
    functions = []
    for i in range(levels - 1):
        call = [helper.make_node(f"f{i + 1}", [a], [b], domain="local") for a, b in (("a", "m"), ("m", "b"))]
        functions.append(function(f"f{i}", call))
    functions.append(function(f"f{levels - 1}", [helper.make_node("Relu", ["a"], ["b"])]))
    return model([helper.make_node("f0", ["x"], ["y"], domain="local")], functions=functions, opsets=LOCAL)


def doubling_functions_21():
    """A million nodes when inlined."""
    return doubling_functions(21)


def many_times_tiled():
    n = int64s("n", [2**40, 2**40])
    return model([helper.make_node("Tile", ["x", "n"], ["y"])], initializers=[n])


def expanded_beyond_64_bits():
    n = int64s("n", [2**21] * 3)
    one = helper.make_tensor_value_info("x", FLOAT, [1])
    return model([helper.make_node("Expand", ["x", "n"], ["y"])], inputs=[one], initializers=[n])


def padded():
    n = int64s("n", [0, 0, 2**61, 2**61])
    return model([helper.make_node("Pad", ["x", "n"], ["y"])], initializers=[n])


def one_hot_wide():
    depth = helper.make_tensor("d", INT64, [], [2**60])
    values = helper.make_tensor("v", FLOAT, [2], [0, 1])
    x = helper.make_tensor_value_info("x", INT64, [8])
    return model([helper.make_node("OneHot", ["x", "d", "v"], ["y"])], inputs=[x], initializers=[depth, values])


def eye():
    """Shape arithmetic through an identity matrix of 10^10 elements."""
    nodes = [
        helper.make_node("ConstantOfShape", ["n"], ["v"]),
        helper.make_node("EyeLike", ["v"], ["e"]),
        helper.make_node("ReduceSum", ["e"], ["s"], keepdims=0),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    return model(nodes, initializers=[int64s("n", [10**5, 10**5])])


def loop_forever():
    """A body that counts to 10^15 and doubles what it carries."""
    values = [
        helper.make_tensor_value_info("i", INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("a", FLOAT, None),
    ]
    outputs = [
        helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
        helper.make_tensor_value_info("b", FLOAT, None),
        helper.make_tensor_value_info("scan", FLOAT, None),
    ]
    nodes = [
        helper.make_node("Identity", ["go"], ["go_on"]),
        helper.make_node("Concat", ["a", "a"], ["b"], axis=0),
        helper.make_node("Identity", ["b"], ["scan"]),
    ]
    body = helper.make_graph(nodes, "body", values, outputs)
    stored = [helper.make_tensor("m", INT64, [], [10**15]), helper.make_tensor("c", TensorProto.BOOL, [], [True])]
    return model([helper.make_node("Loop", ["m", "c", "x"], ["z", "y"], body=body)], initializers=stored)


def loop_in_itself():
    """A body that reads what the loop around it results in."""
    values = [
        helper.make_tensor_value_info("i", INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("a", FLOAT, [2, 3]),
    ]
    outputs = [
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("b", FLOAT, [2, 3]),
    ]
    body = helper.make_graph([helper.make_node("Add", ["a", "y"], ["b"])], "body", values, outputs)
    stored = [helper.make_tensor("m", INT64, [], [3]), helper.make_tensor("c", TensorProto.BOOL, [], [True])]
    return model([helper.make_node("Loop", ["m", "c", "x"], ["y"], body=body)], initializers=stored)


def sparse_tensor():
    """Three values that say they are a matrix of 2^62 elements, at places outside of it."""
    made = model([helper.make_node("MatMul", ["x", "w"], ["y"])])
    values = helper.make_tensor("w", FLOAT, [3], [1, 2, 3])
    places = helper.make_tensor("i", INT64, [3], [-1, 2**62, 2**63 - 1])
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2**31, 2**31]))
    return made


def quantised():
    """A product of bytes whose scales are zero, infinite and no number."""
    names = ("a", "as", "az", "b", "bs", "bz", "ys", "yz")
    scale = {"as": 0.0, "bs": float("inf"), "ys": float("nan")}
    stored = [
        helper.make_tensor(n, FLOAT, [], [scale[n]])
        if n in scale
        else helper.make_tensor(n, TensorProto.UINT8, [], [255])
        for n in names[1:3] + names[4:]
    ]
    inputs = [
        helper.make_tensor_value_info("a", TensorProto.UINT8, [4, 4]),
        helper.make_tensor_value_info("b", TensorProto.UINT8, [4, 4]),
    ]
    node = helper.make_node("QLinearMatMul", list(names), ["y"])
    return model([node], inputs=inputs, outputs=[helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
                 initializers=stored)  # fmt: skip


def einsum_of_many_letters():
    letters = "abcdefghijklmnopqrstuvwxyz"
    nodes = [
        helper.make_node(
            "Einsum",
            ["x"] * 12,
            ["y"],
            equation=",".join(letters[2 * i : 2 * i + 2] for i in range(12)) + "->" + letters[:24],
        )
    ]
    return model(nodes)


def rank_of_thousand():
    x = helper.make_tensor_value_info("x", FLOAT, [2] * 61 + [1] * 939)
    return model(chain(["Relu", "Neg"]), inputs=[x])


def transposed_rank_60():
    x = helper.make_tensor_value_info("x", FLOAT, [2] * 60)
    w = helper.make_tensor("w", FLOAT, [2], [1, 2])
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=list(range(59, -1, -1))),
             helper.make_node("Mul", ["t", "w"], ["y"])]  # fmt: skip
    return model(nodes, inputs=[x], initializers=[w])


def random_sizes():
    """Sizes that only running tells, in a row."""
    nodes, last = [], "x"
    for i in range(30):
        nodes += [
            helper.make_node("NonZero", [last], [f"n{i}"]),
            helper.make_node("Cast", [f"n{i}"], [f"z{i}"], to=FLOAT),
        ]
        last = f"z{i}"
    nodes.append(helper.make_node("Relu", [last], ["y"]))
    return model(nodes)


def opset_flood():
    """The same operator set in ten thousand versions."""
    made = model([helper.make_node("Relu", ["x"], ["y"])])
    return serialized(made) + b"".join(field(8, b"\x10" + varint(i)) for i in range(1, 10_000))


def group_nesting():
    """Protobuf groups inside each other, a thousand deep, in a field that nobody knows."""
    return serialized(model(chain(["Relu"]))) + b"\xa3\x06" * 1000 + b"\xa4\x06" * 1000


def group_without_end():
    return serialized(model(chain(["Relu"]))) + b"\xa3\x06" * 1000


def long_length():
    """A length-delimited field of 2^63 bytes."""
    return serialized(model(chain(["Relu"]))) + b"\x3a" + varint(2**63)


def empty_functions():
    """Functions without a name, nodes or operator sets."""
    return serialized(model(chain(["Relu"]), opsets=[*OPSETS])) + field(25, b"") * 2000


BOMBS = (
    concat_bomb,
    concat_bomb_of_shape,
    concat_beyond_64_bits,
    doubling_functions_21,
    einsum_of_many_letters,
    empty_functions,
    expanded_beyond_64_bits,
    eye,
    group_nesting,
    group_without_end,
    long_length,
    loop_forever,
    loop_in_itself,
    many_times_tiled,
    one_hot_wide,
    opset_flood,
    padded,
    quantised,
    random_sizes,
    rank_of_thousand,
    sparse_tensor,
    transposed_rank_60,
)
