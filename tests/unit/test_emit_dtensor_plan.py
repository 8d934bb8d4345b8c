"""The DTensor plan: placements, what is refused, and what the files say; run on PyTorch in tests/peer."""

from __future__ import annotations

import ast
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cli.main import main
from planner.emit import NameRules
from planner.emit.dtensor.placements import placements
from planner.emit.dtensor.reading import read_placements
from planner.emit.reading import Reading
from planner.errors import InputError, PlannerError
from planner.frontends import load_model
from planner.ir import DeviceMesh, Layout, Reduction
from planner.planning import read_plan

SAMPLES = Path(__file__).parents[2] / "sample_graphs"


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_every_axis_splits_the_dimension_that_the_layout_says(sizes: list[int], data: st.DataObject) -> None:
    mesh = DeviceMesh.of(*sizes)
    where = [data.draw(st.integers(-1, 2)) for _ in sizes]
    layout = Layout(tuple(tuple(n for n, d in zip(mesh.names, where, strict=True) if d == i) for i in range(3)))
    assert placements(layout, mesh) == [None if d < 0 else d for d in where]


def test_what_dtensor_has_no_words_for_is_refused() -> None:
    mesh = DeviceMesh.of(2, 2)
    with pytest.raises(ValueError, match=r"cuts a dimension by y\.x"):
        placements(Layout((("y", "x"),)), mesh)
    with pytest.raises(ValueError, match="pending sum"):
        placements(Layout(((),), (("x", Reduction.SUM),)), mesh)


def plan(folder: Path, *pins: str) -> str:
    options = [o for p in pins for o in ("--pin", p)]
    arguments = ["search", str(SAMPLES / "mlp.onnx"), "--devices", "4", "--hardware", "cpu", "--no-cache"]
    assert main([*arguments, "--out", str(folder), *options]) == 0
    return str(folder / "plan.json")


def test_files_say_what_the_plan_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = plan(tmp_path / "plan", "mesh=4", "rest=zero")
    assert main(["emit", path, "--target", "dtensor", "--out", str(tmp_path / "out")]) == 0
    assert "DTensor derives them" in capsys.readouterr().out
    document: dict[str, Any] = json.loads((tmp_path / "out" / "parallel_plan.json").read_text(encoding="utf-8"))
    made = json.loads(Path(path).read_text(encoding="utf-8"))
    assert document["mesh"] == {"sizes": [4], "names": ["x"]}
    for name, p in made["parameters"].items():
        told = document["parameters"][name]
        for key, layout in (("kept", p["stored"]), ("computed", p["compute"][0])):
            assert told[key] == [next((d for d, axes in enumerate(layout["dims"]) if "x" in axes), None)]
    assert any(p["kept"] != p["computed"] for p in document["parameters"].values())
    ast.parse((tmp_path / "out" / "parallel.py").read_text(encoding="utf-8"))
    assert (tmp_path / "out" / "run_torchrun.sh").stat().st_mode & 0o100


def test_convolutions_that_dtensor_gets_wrong_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = ["search", str(SAMPLES / "resnet18_tiny.onnx"), "--devices", "2", "--hardware", "cpu", "--no-cache"]
    emit = ["emit", str(tmp_path / "plan.json"), "--target", "dtensor", "--out", str(tmp_path / "out")]
    assert main([*search, "--pin", "rest=data_parallel", "--out", str(tmp_path)]) == 0
    assert main(emit) == 0
    graph = load_model(SAMPLES / "resnet18_tiny.onnx")
    first = next(op.name for op in graph.ops if op.type == "Conv")
    assert main([*search, "--pin", f"{first} o=2", "--force", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(emit) == 3
    assert f"{first} (Conv) is divided along channels" in capsys.readouterr().err


def layouts(path: Path) -> dict[str, tuple[list[str], str]]:
    made = read_plan(path)
    return {
        n: (list(dict.fromkeys(str(Layout(x.layout().dims)) for x in p.compute)), str(p.stored.layout()))
        for n, p in made.parameters.items()
    }


TABLES = ("transformer.wte.gather i0=x v=y", "lm_head.transpose d0=y", "lm_head.matmul b0=x n=y")


@pytest.mark.parametrize(
    ("model", "pins"),
    [
        ("mlp.onnx", ("mesh=2x2", "rest=zero")),
        ("mlp.onnx", ("mesh=2x2", "type=MatMul m=x n=y", "rest=data_parallel")),
        ("gpt_tiny.onnx", ("mesh=4", "rest=zero")),
        ("gpt_tiny.onnx", ("mesh=2x2", "*.c_fc.matmul b0=x n=y", "*.mlp.c_proj.matmul b0=x k=y", *TABLES)),
    ],
)
def test_emitted_and_read_back_parameters_lie_alike(tmp_path: Path, model: str, pins: tuple[str, ...]) -> None:
    options = [o for p in pins for o in ("--pin", p)]
    path = str(SAMPLES / model)
    search = ["search", path, "--devices", "4", "--hardware", "cpu", "--no-cache", "--target", "dtensor"]
    assert main([*search, "--out", str(tmp_path), *options]) == 0
    assert main(["emit", str(tmp_path / "plan.json"), "--target", "dtensor", "--out", str(tmp_path / "out")]) == 0
    file, out = str(tmp_path / "out" / "parallel_plan.json"), str(tmp_path / "read.json")
    assert main(["read", file, "--format", "dtensor", "--model", path, "--hardware", "cpu", "--out", out]) == 0
    assert layouts(Path(out)) == layouts(tmp_path / "plan.json")


def test_stages_go_by_module_and_are_read_back(tmp_path: Path) -> None:
    path = str(SAMPLES / "gpt_tiny.onnx")
    search = ["search", path, "--devices", "4", "--hardware", "cpu", "--no-cache", "--stages", "2"]
    pins = [o for p in ("mesh=2", "rest=data_parallel") for o in ("--pin", p)]
    assert main([*search, "--micro-batches", "2", *pins, "--out", str(tmp_path)]) == 0
    assert main(["emit", str(tmp_path / "plan.json"), "--target", "dtensor", "--out", str(tmp_path / "out")]) == 0
    made = read_plan(tmp_path / "plan.json")
    document = json.loads((tmp_path / "out" / "parallel_plan.json").read_text(encoding="utf-8"))
    told = document["pipeline"]
    for operator in made.operators.values():
        if operator.module in told["stage_of"]:
            assert told["stage_of"][operator.module] == operator.stage
    (first,) = told["begins"]
    assert {s for m, s in told["stage_of"].items() if f"{m}.".startswith(f"{first}.")} == {1}
    assert told["shared"] == ["transformer.wte.weight"]
    text = (tmp_path / "out" / "parallel.py").read_text(encoding="utf-8")
    assert f"BEGINS = ({first!r},)" in text
    file, out = str(tmp_path / "out" / "parallel_plan.json"), tmp_path / "read.json"
    options = ["--model", path, "--hardware", "cpu", "--micro-batches", "2", "--out", str(out)]
    assert main(["read", file, "--format", "dtensor", *options]) == 0
    found = read_plan(out)
    assert found.schedule.stages == 2
    assert layouts(out) == layouts(tmp_path / "plan.json")
    assert {n: o.stage for n, o in found.operators.items() if o.module in told["stage_of"]} == {
        n: o.stage for n, o in made.operators.items() if o.module in told["stage_of"]
    }


def emitted(folder: Path, *pins: str) -> dict[str, Any]:
    path = plan(folder / "plan", *pins)
    assert main(["emit", path, "--target", "dtensor", "--out", str(folder / "out")]) == 0
    document: dict[str, Any] = json.loads((folder / "out" / "parallel_plan.json").read_text(encoding="utf-8"))
    return document


def test_fully_shard_is_offered_where_the_plan_is_just_that(tmp_path: Path) -> None:
    stored = tuple(f"{m} stored=[{{}}{r}]" for m, r in (("*.weight", ",_"), ("*.bias", "")))
    found = emitted(tmp_path / "a", "mesh=4", *(s.format("x") for s in stored), "rest=data_parallel")
    assert (found["fully_shard"]["replicas"], found["fully_shard"]["shards"]) == (1, 4)
    assert "layers.1" in found["fully_shard"]["blocks"]
    found = emitted(tmp_path / "b", "mesh=2x2", *(s.format("y") for s in stored), "rest=data_parallel")
    assert (found["fully_shard"]["replicas"], found["fully_shard"]["shards"]) == (2, 2)
    for name, pins in (
        ("the outer ranks", (*(s.format("x") for s in stored), "rest=data_parallel")),
        ("no shards", ("rest=data_parallel",)),
        ("the second dimension", ("*.weight stored=[_,y]", "*.bias stored=[y]", "rest=data_parallel")),
        ("products", ("type=MatMul m=x n=y", "rest=data_parallel")),
    ):
        assert "fully_shard" not in emitted(tmp_path / name, "mesh=2x2", *pins), name


GRAPH = load_model(SAMPLES / "mlp.onnx")
VALID: dict[str, Any] = {
    "schema": "planner.dtensor/1",
    "mesh": {"sizes": [2, 2], "names": ["x", "y"]},
    "parameters": {
        t.name: {"kept": [None, 0], "computed": [None, None]} for t in GRAPH.parameters if t.name in GRAPH.consumers
    },
    "inputs": {n: [0, None] for n in GRAPH.inputs},
}


def reading(folder: Path, document: Any) -> Reading:
    path = folder / "parallel_plan.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return read_placements(path, GRAPH, NameRules())


def test_what_a_file_has_beside_the_model_is_told(tmp_path: Path) -> None:
    more = {"parameters": VALID["parameters"] | {"other": {}}, "inputs": {"nothing": [0, 0]}, "modules": {"a": {}}}
    told = "\n".join(reading(tmp_path, VALID | more).unused)
    for word in ("parameter other", "input nothing", "ends of 1 modules"):
        assert word in told


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "planner.torch/2"}, "expected schema"),
        ({"mesh": {"sizes": []}}, "expected 1 to .* mesh axes"),
        ({"mesh": {"sizes": [2, 0]}}, "expected a whole number"),
        ({"mesh": {"sizes": [1 << 10, 1 << 10]}}, "at most 65,536"),
        ({"parameters": {}}, "is not in it"),
        ({"parameters": {n: {"kept": [0], "computed": [0, 0]} for n in VALID["parameters"]}}, "each of 2 axes"),
        ({"parameters": {n: {"kept": [None, None], "computed": [None, 7]} for n in VALID["parameters"]}},
         "expected dimensions 0 to"),
        ({"inputs": []}, "inputs: expected an object"),
        ({"pipeline": {"stages": 2, "stage_of": {}}}, "expected parameters in each of 2 stages"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        reading(tmp_path, VALID | change)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from([*VALID, "modules", "pipeline"]), JSON, max_size=3), JSON, st.data())
def test_no_value_crashes_the_reader(
    tmp_path_factory: pytest.TempPathFactory, change: dict[str, Any], value: Any, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(VALID["parameters"])))
    key = data.draw(st.sampled_from(["kept", "computed", "other"]))
    parameters = VALID["parameters"] | {name: VALID["parameters"][name] | {key: value}}
    with contextlib.suppress(PlannerError):
        reading(tmp_path_factory.mktemp("fuzz"), VALID | {"parameters": parameters} | change)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 900))
def test_no_bytes_crash_the_reader(tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "plan.json"
    text = json.dumps(VALID).encode()
    path.write_bytes(text[:at] + noise + text[at + len(noise) :])
    with contextlib.suppress(PlannerError):
        read_placements(path, GRAPH, NameRules())
