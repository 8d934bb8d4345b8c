"""What a file says of its parameters and its loss counts for more than what its structure looks like."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from planner.errors import InputError
from planner.frontends import import_bytes
from planner.frontends.facts.stated import FROZEN_KEY, LOSS_KEY, PARAMETERS_KEY, aliases
from planner.ir import Role
from planner.work.activity import trained_parameters


def model(**facts: str) -> bytes:
    """mean((x W) * s), of which both W and s could be weights."""
    weights = [helper.make_tensor(n, TensorProto.FLOAT, d, [1.0] * (d[0] * d[-1] if len(d) > 1 else d[0]))
               for n, d in (("w", [4, 4]), ("s", [4]))]  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Mul", ["y", "s"], ["z"]),
        helper.make_node("ReduceMean", ["z"], ["mean"], keepdims=0),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [2, 4])], [value("mean", TensorProto.FLOAT, [])], weights
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    for key, text in facts.items():
        made.metadata_props.add(key=key.replace("_", "."), value=text)
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


def test_without_words_structure_decides() -> None:
    graph = import_bytes(model())
    assert {t.name for t in graph.parameters} == {"w", "s"}
    assert graph.loss is None


def test_stated_parameters_are_the_parameters() -> None:
    graph = import_bytes(model(**{PARAMETERS_KEY: '["s"]'}))
    assert {t.name for t in graph.parameters} == {"s"}
    assert graph.tensors["w"].role is Role.CONSTANT


def test_stated_frozen_weights_are_parameters_that_are_not_trained() -> None:
    graph = import_bytes(model(**{PARAMETERS_KEY: '["s"]', FROZEN_KEY: '["w"]'}))
    assert {t.name for t in graph.parameters} == {"s", "w"}
    assert trained_parameters(graph) == {"s"}
    assert graph.digest != import_bytes(model(**{PARAMETERS_KEY: '["s", "w"]'})).digest


@pytest.mark.parametrize(
    ("trained", "message"), [(None, "expected planner.parameters beside it"), ('["s", "w"]', "names 'w' as well")]
)
def test_frozen_weights_that_contradict_are_refused(trained: str | None, message: str) -> None:
    with pytest.raises(InputError, match=rf"metadata planner\.frozen: .*{message}"):
        import_bytes(model(**{FROZEN_KEY: '["w"]'}, **({PARAMETERS_KEY: trained} if trained else {})))


def test_a_stated_loss_is_the_loss() -> None:
    assert import_bytes(model(**{LOSS_KEY: "mean"})).loss == "mean"


@pytest.mark.parametrize("text", ["", "[", "{}", "[1]", '"w"', "[" * 100_000])
def test_words_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"metadata planner\.parameters: expected a JSON list of names"):
        import_bytes(model(**{PARAMETERS_KEY: text}))
    with pytest.raises(InputError, match=r"metadata planner\.frozen: expected a JSON list of names"):
        import_bytes(model(**{PARAMETERS_KEY: '["s"]', FROZEN_KEY: text}))


def test_a_loss_that_is_no_output_is_refused() -> None:
    with pytest.raises(InputError, match="the graph has no output 'y'"):
        import_bytes(model(**{LOSS_KEY: "y"}))


def test_aliases_of_parameters_are_names_or_are_refused() -> None:
    model = onnx.ModelProto()
    assert aliases(model, "m") == {}
    entry = model.metadata_props.add(key="planner.aliases", value='{"head.weight": "table.weight"}')
    assert aliases(model, "m") == {"head.weight": "table.weight"}
    for wrong in ("[", "[1]", '{"a": 1}'):
        entry.value = wrong
        with pytest.raises(InputError, match=r"m: metadata planner\.aliases: expected a JSON object of names"):
            aliases(model, "m")
