"""plan.json as somebody edited it: what cannot be is said when it is read, and no emitter meets it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.cost_models import load_profile
from planner.emit import TARGETS, Given, emit
from planner.errors import InputError, PlannerError
from planner.frontends import import_bytes
from planner.ir import Graph
from planner.planning import Request, describe, make_plan, plan_text, read_plan
from planner.planning.constraints import parse_pin
from planner.pricing import Settings
from tests.unit.emit_golden import FOLDER
from tests.unit.frontends_models import BOOL, INT64, constant, node, serialised, value

PLAN = FOLDER / "plans" / "mlp-pipeline.json"


def edited(tmp_path: Path, change: Any) -> Path:
    document = json.loads(PLAN.read_text(encoding="utf-8"))
    change(document)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


CHANGES: dict[str, tuple[Any, str]] = {
    "axis renamed": (lambda d: d["meshes"]["m0"]["axes"][0].update(name="y"), "axis 'x' is not one of the mesh"),
    "axis of code": (lambda d: d["meshes"]["m0"]["axes"][0].update(name='x"""\nprint()'), "should match pattern"),
    "huge axis": (lambda d: d["meshes"]["m0"]["axes"][0].update(size=10**9), "more than 1,048,576 devices"),
    "other devices": (lambda d: d["cluster"].update(devices=10**12), "expected 8, as the stages' meshes have"),
    "no micro-batch": (lambda d: d["schedule"].update(micro_batches=0), "greater than or equal to 1"),
    "negative stage": (lambda d: d["operators"]["relu"].update(stage=-1), "greater than or equal to 0"),
    "stage beyond": (lambda d: d["operators"]["relu"].update(stage=10**9), "operators in stage 1000000000"),
    "data flows back": (lambda d: d["operators"]["layers.0.matmul"].update(stage=1), "of stage 1"),
    "unknown reader": (
        lambda d: d["parameters"]["layers.0.weight"]["readers"][0].update(operator="nope"), "nope:1 is no operand",
    ),
    "another rank": (lambda d: d["parameters"]["layers.0.weight"].update(shape=[]), "2 dimensions, and the shape"),
    "negative size": (lambda d: d["parameters"]["layers.0.weight"].update(shape=[-4, 7]), "expected a shape"),
    "many dimensions": (lambda d: d["parameters"]["layers.0.weight"].update(shape=[1] * 5000), "at most 64 sizes"),
    "axis twice": (lambda d: d["parameters"]["layers.0.weight"]["stored"].update(dims=[["x"], ["x"]]), "used twice"),
    "unknown role": (lambda d: d["operators"]["relu"]["strategy"].update(x="divide"), "expected split:FACTOR"),
    "operand left out": (lambda d: d["operators"]["layers.0.matmul"]["operands"].__setitem__(0, None), "found none"),
    "operand of a scalar": (
        lambda d: d["operators"]["layers.0.matmul"]["operands"][1].update(dims=[]), "found one of 0",
    ),
    "no results": (lambda d: d["operators"]["layers.0.matmul"].update(results=[]), "for each of 1 tensors, found 0"),
    "unknown collective": (
        lambda d: d["operators"]["softmaxcrossentropyloss"]["inner"][0].update(kind="gossip"),
        "'gossip' is no collective",
    ),
    "unknown mesh": (lambda d: d["tensors"]["relu"]["layout"].update(mesh="m9"), "mesh 'm9' is not among"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_cannot_be_is_said_when_the_plan_is_read(tmp_path: Path, name: str) -> None:
    change, message = CHANGES[name]
    with pytest.raises(InputError, match=message):
        read_plan(edited(tmp_path, change))


X = value("x", [8, 16])
UNREAD = {
    "dropout": ([node("Dropout", "h ratio like", "y")], value("like", [], BOOL)),
    "trilu": ([node("Trilu", "h like", "y")], value("like", [], INT64)),
    "cast like an input": ([node("Mul", "h like", "y")], value("like", [8, 16])),
    "cast like a product": ([node("MatMul", "like w", "o"), node("Relu", "o", "z"), node("Mul", "h o", "y")],
                            value("like", [8, 16])),
}  # fmt: skip


def graph_of(name: str) -> Graph:
    """h = x @ w, of which y is made; the last operand of y is one whose values are not read."""
    nodes, like = UNREAD[name]
    outputs = ["y", "z"] if name.endswith("product") else ["y"]
    stored = [constant("w", np.ones((16, 16)), "float32"), constant("ratio", 0.5, "float32")]
    graph = import_bytes(serialised([node("MatMul", "x w", "h"), *nodes], [X, like], outputs, stored))
    # In a file that is imported a cast to a known type becomes a Cast; graphs of other origins may keep it.
    ops = (replace(op, type="CastLike") if op.type == "Mul" else op for op in graph.ops)
    return replace(graph, ops=tuple(ops))


@pytest.mark.parametrize("name", UNREAD)
def test_a_plan_with_an_operand_that_is_not_read_is_read_again(tmp_path: Path, name: str) -> None:
    """The rule gives such an operand no layout; the plan says how the tensor lies."""
    graph = graph_of(name)
    pins = parse_pin("mesh=4") + parse_pin("o n=x") if "o" in graph.producers else parse_pin("mesh=4")
    request = Request(4, load_profile("cpu"), Settings(training=False, precision="fp32"), constraints=pins)
    made = describe(make_plan(graph, request), bind={}, batch=None)
    path = tmp_path / "plan.json"
    path.write_text(plan_text(made), encoding="utf-8")
    assert read_plan(path) == made
    operator = made.operators["y"]
    if "o" in made.tensors:
        assert operator.operands[-1] == made.tensors["o"].layout
    else:
        assert operator.operands[-1] is not None


def test_readers_that_are_not_said_are_refused_by_every_target(tmp_path: Path) -> None:
    plan = read_plan(edited(tmp_path, lambda d: d["parameters"]["layers.0.weight"].update(readers=[])))
    for target in (t for t, x in TARGETS.items() if "model" not in x.needs):
        with pytest.raises(InputError, match="its readers are not said"):
            emit(target, Given(plan))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for k, v in inner for p in places(v, (*path, k)))]


DOCUMENT = json.loads(PLAN.read_text(encoding="utf-8"))
PLACES = [
    p
    for p in places({k: DOCUMENT[k] for k in ("meshes", "stages", "operators", "parameters", "schedule", "inputs")})
    if p and "runs" not in p
]
JUNK = [None, -1, 0, 3, 10**6, "", "nope", "x", [], [["y"]], {}, {"x": "nope"}, True, 1.5]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(PLACES),
    st.sampled_from(JUNK),
    st.sampled_from(sorted(t for t, x in TARGETS.items() if not x.needs)),
)
def test_no_edit_crashes_an_emitter(tmp_path: Path, place: tuple[Any, ...], junk: Any, target: str) -> None:
    def change(document: dict[str, Any]) -> None:
        at: Any = document
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = junk

    with suppress(PlannerError):
        dict(emit(target, Given(read_plan(edited(tmp_path, change)))).files)
