"""plan.json as somebody edited it: what cannot be is said when it is read, and no emitter meets it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.emit import TARGETS, Given, emit
from planner.errors import InputError, PlannerError
from planner.planning import read_plan
from tests.unit.emit_golden import FOLDER

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
