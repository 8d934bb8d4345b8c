"""Models that are large, or a long work: packed into kilobytes, as `large/NAME.onnx.gz`.

`python -m tests.hostile.large` writes them.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

from onnx import helper

from tests.hostile.bombs import doubling_functions
from tests.hostile.names import layers
from tests.hostile.parts import FLOAT, chain, field, model, plain, serialized, varint, with_nodes

FOLDER = Path(__file__).parent / "large"
MIB = 1 << 20


def empty_nodes() -> bytes:
    """20 MB of nodes without anything, ten million of them."""
    return field(7, b"\x0a\x00" * (10 * MIB)) + serialized(plain())


def empty_initializers() -> bytes:
    return field(7, b"\x2a\x00" * (10 * MIB)) + serialized(plain())


def empty_inputs() -> bytes:
    return field(7, b"\x5a\x00" * (4 * MIB)) + serialized(plain())


def empty_dimensions() -> bytes:
    """A tensor of four million dimensions that are not said."""
    shape = field(1, field(2, b"\x0a\x00" * (4 * MIB)))  # TypeProto.tensor_type, .shape, .dim
    value = field(1, b"x") + field(2, shape)
    return field(7, field(11, value)) + serialized(model(chain(["Relu"])))


def attribute_flood() -> bytes:
    """A node of a million attributes."""
    attribute = field(5, field(1, b"a") + b"\xa0\x01\x02\x18\x07")  # name, type INT, i
    return with_nodes(field(1, b"x") + field(2, b"z") + field(4, b"Relu") + attribute * 10**6)


def other_attribute_flood() -> bytes:
    """The same with a name each."""
    told = b"".join(field(5, field(1, b"a%d" % i) + b"\xa0\x01\x02\x18\x07") for i in range(10**6))
    return with_nodes(field(1, b"x") + field(2, b"z") + field(4, b"Relu") + told)


def integer_flood() -> bytes:
    """A permutation of forty million entries."""
    ints = field(1, b"perm") + b"\xa0\x01\x07" + field(8, bytes(40 * MIB))
    return with_nodes(field(1, b"x") + field(2, b"z") + field(4, b"Transpose") + field(5, ints))


def integers_one_by_one() -> bytes:
    """Ten million integers, each in a field of its own."""
    ints = field(1, b"perm") + b"\xa0\x01\x07" + b"\x40\x01" * (10 * MIB)
    return with_nodes(field(1, b"x") + field(2, b"z") + field(4, b"Transpose") + field(5, ints))


def string_flood() -> bytes:
    """Five million empty strings in an attribute."""
    told = field(1, b"equation") + b"\xa0\x01\x08" + b"\x4a\x00" * (5 * MIB)
    return with_nodes(field(1, b"x") + field(2, b"z") + field(4, b"Einsum") + field(5, told))


def long_string() -> bytes:
    """An equation of thirty million letters."""
    told = field(1, b"equation") + b"\xa0\x01\x03" + field(4, b"a," * (15 * MIB))
    return with_nodes(field(1, b"x") + field(2, b"z") + field(4, b"Einsum") + field(5, told))


def long_operator_type() -> bytes:
    return with_nodes(field(1, b"x") + field(2, b"z") + field(4, b"R" * (10 * MIB)))


def long_names() -> bytes:
    """Names of a hundred thousand letters, for operators, tensors, weights and modules."""
    return serialized(layers(["n" * 100_000, "<" * 100_000, "\x1b[31m" * 20_000]))


def long_documentation() -> bytes:
    return serialized(plain()) + field(6, b"d" * (60 * MIB))


def metadata_flood() -> bytes:
    return serialized(plain()) + field(14, b"") * (5 * MIB)


def opset_flood() -> bytes:
    return serialized(plain()) + field(8, b"") * (5 * MIB)


def function_flood() -> bytes:
    return serialized(plain()) + b"\xca\x01\x00" * (5 * MIB)


def group_nesting_deeper() -> bytes:
    """Groups inside each other, five million deep."""
    return serialized(plain()) + b"\xa3\x06" * (5 * MIB) + b"\xa4\x06" * (5 * MIB)


def input_flood() -> bytes:
    """A sum of a million operands."""
    return with_nodes(field(1, b"x") * 10**6 + field(2, b"z") + field(4, b"Sum"))


def output_flood() -> bytes:
    """A split into a million parts."""
    told = b"".join(field(2, b"p%d" % i) for i in range(10**6))
    return with_nodes(field(1, b"x") + told + field(4, b"Split"))


def value_flood() -> bytes:
    """A million shapes of tensors that do not exist."""
    entry = field(13, field(1, b"v") + field(2, field(1, b"\x08\x01" + field(2, field(1, b"\x08\x02")))))
    return serialized(plain()) + field(7, entry * 10**6)


def unknown_fields() -> bytes:
    """Fifty megabytes of fields that nobody knows."""
    return serialized(plain()) + (varint(900 << 3) + b"\x01") * (16 * MIB)


def valid_200k() -> bytes:
    """200,000 operators, all as they should be."""
    return serialized(model(chain(["Relu", "Neg"] * 100_000)))


def valid_wide() -> bytes:
    """20,000 branches from one tensor, summed up."""
    names = [f"b{i}" for i in range(20_000)]
    nodes = [helper.make_node("Relu", ["x"], [n]) for n in names]
    return serialized(model([*nodes, helper.make_node("Sum", names, ["y"])]))


def valid_products() -> bytes:
    """3,000 products with weights, no two of which are alike in shape."""
    nodes, stored, last = [], [], "x"
    for i in range(3000):
        rows, columns = 16 + (i % 53) * 16, 16 + ((i + 1) % 53) * 16
        stored.append(helper.make_tensor_value_info(f"w{i}", FLOAT, [rows, columns]))
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"]))
        last = f"m{i}"
    nodes.append(helper.make_node("Relu", [last], ["y"]))
    return serialized(model(nodes, inputs=[helper.make_tensor_value_info("x", FLOAT, [64, 16]), *stored]))


def doubling_functions_14() -> bytes:
    """Sixteen thousand nodes when inlined: within the rules."""
    return serialized(doubling_functions(14))


def same_operand_many_times() -> bytes:
    return serialized(model([helper.make_node("Sum", ["x"] * 20_000, ["y"])]))


def split_into_thousands() -> bytes:
    x = helper.make_tensor_value_info("x", FLOAT, [5000, 4])
    parts = [f"p{i}" for i in range(5000)]
    nodes = [helper.make_node("Split", ["x"], parts, num_outputs=5000), helper.make_node("Sum", parts, ["y"])]
    return serialized(model(nodes, inputs=[x]))


def reversed_200k() -> bytes:
    """200,000 operators, the last first."""
    return serialized(model(chain(["Relu", "Neg"] * 99_999)[::-1]))


LARGE: tuple[Callable[[], bytes], ...] = (
    attribute_flood,
    doubling_functions_14,
    empty_dimensions,
    empty_initializers,
    empty_inputs,
    empty_nodes,
    function_flood,
    group_nesting_deeper,
    input_flood,
    integer_flood,
    integers_one_by_one,
    long_documentation,
    long_names,
    long_operator_type,
    long_string,
    metadata_flood,
    opset_flood,
    other_attribute_flood,
    output_flood,
    reversed_200k,
    same_operand_many_times,
    split_into_thousands,
    string_flood,
    unknown_fields,
    valid_200k,
    valid_products,
    valid_wide,
    value_flood,
)


def packed(data: bytes) -> bytes:
    return gzip.compress(gzip.compress(data, 9, mtime=0), 9, mtime=0)  # of runs of zeros, the second halves it again


def unpacked(path: Path) -> bytes:
    return gzip.decompress(gzip.decompress(path.read_bytes()))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for make in LARGE:
        path = FOLDER / f"{make.__name__}.onnx.gz"
        if not path.exists() or unpacked(path) != make():
            path.write_bytes(packed(make()))
