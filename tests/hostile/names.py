"""Models that anybody can plan, whose names are markup, commands to terminals, paths, or nothing of the kind."""

from __future__ import annotations

import onnx
from onnx import helper

from tests.hostile.parts import FLOAT, field, model, serialized

MARKUP = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onfocus='alert(1)",
    "<!--<script>",
    "]]>",
    "javascript:alert(1)",
    "{{7*7}}",
    "${7*7}",
    "%0d%0aSet-Cookie: a=b",
    "&lt;b&gt;",
    "</style><style>*{display:none}</style>",
    "__proto__",
    "constructor",
)
TERMINAL = (
    "\x1b[2J\x1b[1;31mred",
    "\x1b]0;title\x07",
    "\x1b]52;c;ZWNobw==\x07",
    "\x9b2J",
    "over\rwritten",
    "line\nplanner: ok",
    "\b\b\b\b",
    "\x7f",
    "\u202egnp.exe",
    "\u2066\u2069",
    "bell\x07",
    "nul\0name",
    "\u2028alert(1)\u2029",
    "tab\tvertical\x0b",
)
PATHS = (
    "../../../../tmp/escaped",
    "/etc/cron.d/escaped",
    "..",
    ".",
    "a/../../b",
    "C:\\x",
    "~root",
    "-rf",
    "CON",
    " ",
    "a" * 300,
)


def layers(names, source="x", prefix=""):
    """A product and a sum a name, which stands in the operator's, the tensors', the module's and the weights' names."""
    nodes, stored, last = [], [], source
    for i, name in enumerate(names):
        w = helper.make_tensor(f"{name}.weight{i}", FLOAT, [3, 3], [0.5] * 9)
        node = helper.make_node("MatMul", [last, w.name], [f"{name}:{i}"], name=f"/{name}/{prefix}{i}/MatMul")
        node.metadata_props.add(key="namespace", value=f": model/{name}.{i}: Linear/aten: aten.mm")
        node.doc_string = name
        stored.append(w)
        nodes.append(node)
        last = f"{name}:{i}"
    nodes.append(helper.make_node("Relu", [last], ["y"], name=f"{names[0]}"))
    made = model(nodes, initializers=stored)
    made.graph.name = made.producer_name = made.doc_string = names[0]
    return made


def markup():
    return layers(MARKUP)


def terminal():
    return layers(TERMINAL)


def paths():
    return layers(PATHS)


def strange_output():
    """Markup and commands to terminals as names of inputs and outputs, and of a symbolic dimension."""
    name = MARKUP[0] + TERMINAL[0]
    x = helper.make_tensor_value_info(name, FLOAT, ["</script>" + TERMINAL[1], 3])
    y = helper.make_tensor_value_info("\x1b[31m" + MARKUP[1], FLOAT, None)
    return model([helper.make_node("Relu", [name], [y.name])], inputs=[x], outputs=[y])


def strange_operator():
    """An operator type that nobody knows, with such a name, and a domain that leaves its folder."""
    node = helper.make_node("\x1b[31m</script>../../x", ["x"], ["y"], domain="../../<b>", name="\x1b]0;a\x07")
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("../../<b>", 1)]
    return model([node], opsets=opsets)


def strange_domain():
    """An operator of a domain that leaves its folder, and is markup."""
    node = helper.make_node("</script>../../x", ["x"], ["y"], domain="../../<b>", name="../../<img src=x>")
    return model([node], opsets=[helper.make_opsetid("", 20), helper.make_opsetid("../../<b>", 1)])


def strange_missing():
    """What an error would have to name."""
    return model([helper.make_node("Add", ["x", "\x1b[2J</script>\nplanner: fine\u202e"], ["y"], name="\x1b[31m\x9b")])


def not_unicode():
    """Names that are no UTF-8 on the wire."""
    whole = serialized(model([helper.make_node("Relu", ["x"], ["y"], name="N" * 8)]))
    return whole.replace(b"N" * 8, b"\xff\xfe\xed\xa0\x80\xc0\xaf\x80")


def tensor_not_unicode():
    whole = serialized(model([helper.make_node("Relu", ["QQQQ"], ["y"])],
                             inputs=[helper.make_tensor_value_info("QQQQ", FLOAT, [2, 3])]))  # fmt: skip
    return whole.replace(b"QQQQ", b"\xff\xed\xa0\x80")


def no_names():
    """Operators without names or types, tensors without names."""
    made = model([helper.make_node("Relu", ["x"], ["y"])])
    node = onnx.NodeProto(input=["", ""], output=["", ""]).SerializeToString()
    graph = made.graph.SerializeToString() + field(1, node) * 3
    made.ClearField("graph")
    return serialized(made) + field(7, graph)


NAMES = (
    markup,
    no_names,
    not_unicode,
    paths,
    strange_domain,
    strange_missing,
    strange_operator,
    strange_output,
    tensor_not_unicode,
    terminal,
)
