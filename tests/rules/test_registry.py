"""Which operators have a rule, and what happens to those that have none."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from planner.errors import PlannerError
from planner.ir import DeviceMesh, Graph, Op, Role, Tensor
from planner.rules import local_op, opaque_reason, registered_types, replicated, rule_for, strategies
from planner.rules.cost import Kind
from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, Cut

MODELS = Path(__file__).resolve().parents[3] / "shared" / "models"


def graph_of(type: str, shape: tuple[int, ...] | None, **attributes: object) -> tuple[Op, Graph]:
    op = Op("y", type, ("x",), ("y",), attributes, 20)
    tensors = {
        "x": Tensor("x", (4, 6), "float32", Role.INPUT),
        "y": Tensor("y", shape, "float32", Role.ACTIVATION),
    }
    return op, Graph((op,), tensors, ("x",), ("y",))


def test_an_unknown_type_has_no_rule_and_is_replicated() -> None:
    op, graph = graph_of("example::Mystery", (4, 6))
    assert rule_for(op, graph) is None
    whole = replicated(op, graph)
    assert whole.differentiable == {0}
    assert [s.text(DeviceMesh.of(2)) for s in strategies(whole, DeviceMesh.of(2), training=False)] == ["replicated"]


def test_gradients_flow_through_a_replicated_operator() -> None:
    op, graph = graph_of("example::Mystery", (4, 6))
    texts = [s.text(DeviceMesh.of(2)) for s in strategies(replicated(op, graph), DeviceMesh.of(2), training=True)]
    assert texts == ["replicated", "d~=x"]


def test_opaque_operators_state_their_reason() -> None:
    op, graph = graph_of("Loop", (4, 6))
    found = rule_for(op, graph)
    assert found is not None
    assert found.text == f"whole: {opaque_reason('Loop')}"
    assert not found.factors
    assert "Loop" in registered_types()


def test_a_shape_that_depends_on_data_keeps_the_operator_whole() -> None:
    op, graph = graph_of("Relu", None)
    found = rule_for(op, graph)
    assert found is not None
    assert "shape of y depends on data" in found.text
    assert found.results == (None,)


def test_shapes_that_contradict_the_operator_keep_it_whole() -> None:
    op, graph = graph_of("Relu", (5, 6))
    found = rule_for(op, graph)
    assert found is not None
    assert found.text.startswith("whole: rule")


def test_two_rules_for_one_operator_are_refused() -> None:
    with pytest.raises(ValueError, match="MatMul has two rules"):
        rule("MatMul")(lambda o: pytest.fail("never called"))


def test_an_operator_is_of_a_kind_that_has_a_price() -> None:
    op, graph = graph_of("Relu", (4, 6))
    found = rule_for(op, graph)
    assert found is not None
    assert found.cost.kind is Kind.ELEMENTWISE
    with pytest.raises(ValueError, match="'spectral' is not a valid Kind"):
        sharded(Operator.of(op, graph), "d... -> d...", kind="spectral")
    assert [str(k) for k in Kind if not k.fuses] == ["matmul", "conv", "attention", "gather"]
    assert [str(k) for k in Kind if k.multiplies] == ["matmul", "conv", "attention"]


def test_a_factor_has_a_cut_unless_it_is_never_split_and_modes_have_theirs() -> None:
    op, graph = graph_of("Relu", (4, 6))
    sum_, inner = Combine.SUM, Combine.INNER
    found = sharded(
        Operator.of(op, graph),
        "a! b -> a! b",
        combine={"a&b": inner, "a": inner},
        modes={"a&b": ("a", "b")},
        aware=["b"],
    )
    assert found.cuts == {"b": Cut(("b",), sum_, aware=True), "a&b": Cut(("a", "b"), inner)}
    assert (found.modes, found.members("a&b"), found.members("a")) == (("a&b",), ("a", "b"), ("a",))
    assert [found.combine(name) for name in ("a", "b", "a&b")] == [sum_, sum_, inner]
    assert (found.aware(["a", "b"]), found.aware(["a&b"])) == (True, False)


def test_counts_are_divided_among_the_shards() -> None:
    op = Op("y", "Conv", ("x", "w"), ("y",), {"group": 6}, 20)
    shapes = {"x": (2, 6, 5, 5), "w": (6, 1, 3, 3), "y": (2, 6, 3, 3)}
    graph = Graph((op,), {n: Tensor(n, s, "float32", Role.INPUT) for n, s in shapes.items()}, ("x", "w"), ("y",))
    found = rule_for(op, graph)
    assert found is not None
    mesh = DeviceMesh.of(3)
    groups = {
        s.text(mesh): local_op(op, found, s, mesh).attributes["group"] for s in strategies(found, mesh, training=False)
    }
    assert groups["g=x"] == 2
    assert groups["replicated"] == 6


@pytest.mark.corpus
@pytest.mark.skipif(not MODELS.exists(), reason="the model corpus does not lie beside the checkout")
def test_every_operator_of_the_corpus_has_a_rule() -> None:
    from planner.frontends import import_bytes

    without: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    count = skipped = 0
    for path in sorted(MODELS.glob("*.onnx")):
        try:
            graph = import_bytes(path.read_bytes(), name=path.stem)
        except PlannerError:
            skipped += 1  # dimensions to bind, or invalid on purpose
            continue
        for op in graph.ops:
            found = rule_for(op, graph)
            count += 1
            if found is None:
                without[op.type] += 1
            elif found.text.startswith("whole:"):
                whole[f"{op.type}: {found.text}"] += 1
    print(f"{count} operators ({skipped} files skipped); kept whole: {dict(whole)}; without a rule: {dict(without)}")
    assert not without
