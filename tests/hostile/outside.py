"""Models whose data is said to lie in files that are none of theirs.

`CANARY` stands in a model for a path that a test watches: nobody may open it.
"""

from __future__ import annotations

from onnx import TensorProto, helper

from tests.hostile.parts import FLOAT, INT64, int64s, model

PLACES = (
    "../../../../../../../../etc/passwd", "/etc/passwd", "/dev/zero", "/proc/self/environ", "C:\\Windows\\win.ini",
    "..\\..\\secret", "file:///etc/passwd", "http://127.0.0.1:1/x", "\0/etc/passwd", ".", "", "x" * 5000, "link",
)  # fmt: skip
UP = "../" * 24


def external(name, kind, dims, place):
    t = TensorProto(name=name, data_type=kind, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", place), ("offset", "0"), ("length", str(2**62))):
        t.external_data.add(key=key, value=value)
    return t


def everywhere(places):
    """Weights, small integers and a constant, each from every one of these places."""
    nodes, stored, last = [], [], "x"
    for i, place in enumerate(places):
        stored.append(external(f"w{i}", FLOAT, [3, 3], place))
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Constant", [], [f"k{i}"], value=external("", FLOAT, [3], place)))
        nodes.append(helper.make_node("Add", [f"m{i}", f"k{i}"], [f"a{i}"]))
        last = f"a{i}"
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    return model(nodes, initializers=stored)


def weights_outside():
    return everywhere(PLACES)


def shape_outside():
    """A Reshape whose shape lies in another file."""
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
    return model(nodes, initializers=[external("s", INT64, [2], "/proc/self/environ")])


def constant_attribute_outside():
    nodes = [
        helper.make_node("Constant", [], ["s"], value=external("", INT64, [2], "/dev/zero")),
        helper.make_node("Reshape", ["x", "s"], ["y"]),
    ]
    return model(nodes)


def branch_outside():
    """A constant inside a branch."""
    out = [helper.make_tensor_value_info("t", FLOAT, [2, 3])]
    node = helper.make_node("Constant", [], ["t"], value=external("", FLOAT, [2, 3], "../../secret"))
    branch = helper.make_graph([node], "branch", [], out)
    condition = helper.make_tensor("c", TensorProto.BOOL, [], [True])
    return model([helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)],
                 initializers=[condition, int64s("unused", [1])])  # fmt: skip


def watched(canary: str):
    """Everything at a file that a test watches: absolute, and up from wherever this is read."""
    return everywhere((canary, UP + canary.lstrip("/"), f"./{UP}{canary.lstrip('/')}", f"file://{canary}"))


OUTSIDE = (branch_outside, constant_attribute_outside, shape_outside, weights_outside)
