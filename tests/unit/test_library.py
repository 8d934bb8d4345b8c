"""`import planner` gives what the command line gives: the same files, byte for byte, and the same documents."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.cli.main import main

SIZES = {"layers": 2, "hidden": 64, "heads": 4, "seq": 32, "vocab": 128, "batch": 64}
SAMPLES = Path(__file__).resolve().parents[2] / "sample_graphs"
WITHOUT = ("search_seconds", "plan", "plans", "cached")


@pytest.fixture(scope="module", autouse=True)
def no_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Plans of this module are searched, and not found from another's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANNER_CACHE_DIR", str(tmp_path_factory.mktemp("plans")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("library")


@pytest.fixture(scope="module")
def model(folder: Path) -> planner.Model:
    return planner.build("gpt", **SIZES)


@pytest.fixture(scope="module")
def file(model: planner.Model, folder: Path) -> Path:
    """The model as the command line builds it."""
    out = folder / "gpt.onnx"
    flags = [text for name, size in SIZES.items() for text in (f"--{name}", str(size))]
    assert main(["build", "gpt", *flags, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def plan(model: planner.Model) -> planner.Plan:
    return planner.search(model, devices=8, hardware="h100", strategy="zero1", cache=False)


@pytest.fixture(scope="module")
def written(file: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The plan that the command line writes for the same request, and its document."""
    return command(file, folder / "command", "--devices", 8, "--hardware", "h100", "--strategy", "zero1")


def command(model: Path, out: Path, *options: object) -> tuple[Path, dict[str, Any]]:
    told = run("search", model, *options, "--out", out, "--no-cache", "--json")
    return out / "plan.json", json.loads(told)


def run(*arguments: object, status: int = 0) -> str:
    """What a command prints."""
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert main([str(a) for a in arguments]) == status
    return out.getvalue()


def test_a_model_is_built_as_the_command_builds_it(model: planner.Model, file: Path, tmp_path: Path) -> None:
    assert model.save(tmp_path / "copy.onnx").read_bytes() == file.read_bytes()
    loaded = planner.load(file)
    assert loaded.digest == model.digest == planner.load(file.read_bytes()).digest
    assert repr(loaded) == repr(model)
    assert loaded.name == "gpt"
    assert "labels" in loaded._repr_html_()


@pytest.mark.parametrize("kind", ["path", "text", "bytes", "proto"])
def test_a_model_is_whatever_holds_one(kind: str) -> None:
    import onnx

    path = SAMPLES / "mlp.onnx"
    forms: dict[str, Callable[[], Any]] = {
        "path": lambda: path,
        "text": lambda: os.fspath(path),
        "bytes": path.read_bytes,
        "proto": lambda: onnx.load(path, load_external_data=False),
    }
    assert planner.load(forms[kind](), name="mlp").digest == planner.load(path).digest


def test_the_plan_is_that_of_the_command(plan: planner.Plan, written: tuple[Path, dict[str, Any]]) -> None:
    path, document = written
    assert plan.text == path.read_text()
    assert {k: v for k, v in plan.figures.items() if k not in WITHOUT} == {
        k: v for k, v in document.items() if k not in WITHOUT
    }
    assert plan.parallelism == document["in_words"]
    assert (plan.step_time, plan.gap, plan.memory) == tuple(
        document[k] for k in ("step_time_s", "gap", "peak_memory_bytes")
    )
    assert plan.lower_bound == document["step_time_lower_bound_s"]
    assert plan.memory_limit == document["memory_limit_bytes"]
    assert plan.batch == document["batch"] == 64
    assert (plan.samples_per_s, plan.tokens_per_s, plan.mfu) == tuple(
        document[k] for k in ("samples_per_s", "tokens_per_s", "mfu")
    )


OTHERS: list[tuple[dict[str, Any], list[object]]] = [
    ({"devices": 4}, ["--devices", 4]),
    ({"devices": 2, "target": "megatron"}, ["--devices", 2, "--target", "megatron"]),
    ({"devices": 4, "time_limit": 60, "hardware": "v100"}, ["--devices", 4, "--time-limit", 60, "--hardware", "v100"]),
    (
        {"devices": 4, "batch": 8, "pin": "*.c_fc.* replicated", "memory_limit": "8GiB"},
        ["--devices", 4, "--batch", 8, "--pin", "*.c_fc.* replicated", "--memory-limit", "8GiB"],
    ),
    (
        {"devices": 8, "strategy": "megatron:tp=2,micro_batch=2"},
        ["--devices", 8, "--strategy", "megatron:tp=2,micro_batch=2"],
    ),
    ({"devices": 4, "stages": 2, "micro_batches": 4}, ["--devices", 4, "--stages", 2, "--micro-batches", 4]),
    ({"devices": 16, "nodes": 4, "reproducible": True}, ["--devices", 16, "--nodes", 4, "--reproducible"]),
]  # fmt: skip


@pytest.mark.parametrize(("keywords", "options"), OTHERS)
def test_options_are_those_of_the_command(
    model: planner.Model, file: Path, tmp_path: Path, keywords: dict[str, Any], options: list[object]
) -> None:
    path, document = command(file, tmp_path, *options)
    found = planner.search(model, cache=False, **keywords)
    assert found.text == path.read_text()
    assert found.parallelism == document["in_words"].replace(" (--details)", "").replace("--devices ", "devices=")
    # What is only read off the plan says the same.
    back = planner.load_plan(found.save(tmp_path / "saved"))
    assert back == found
    assert (back.parallelism, back.tokens_per_s, back.mfu) == (found.parallelism, found.tokens_per_s, found.mfu)
    assert (tmp_path / "saved" / "model.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes()


def test_a_machine_says_what_to_plan_for(model: planner.Model, plan: planner.Plan) -> None:
    machine = planner.Machine("h100", devices=8)
    assert planner.search(model, machine, strategy="zero1", cache=False) == plan
    assert planner.search(model, hardware=machine, strategy="zero1", cache=False) == plan
    assert machine.memory == plan.memory_limit
    assert {"h100", "ascend-910b"} < set(planner.machines()["name"])
    for wrong in ({"devices": 4}, {"hardware": "v100"}):
        with pytest.raises(planner.OptionError, match=r"the machine (has 8|is h100); keep one"):
            planner.search(model, machine, **wrong)  # type: ignore[arg-type]


def test_equal_requests_share_the_cache_with_the_command(file: Path, model: planner.Model, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    run("search", file, "--devices", 4, "--out", tmp_path / "plan", "--cache", kept)
    found = planner.search(model, devices=4, cache=kept)
    assert found.cached
    assert found.text == (tmp_path / "plan" / "plan.json").read_text()
    assert not planner.search(model, devices=4, cache=False).cached


def test_the_best_of_other_meshes_come_along(model: planner.Model, file: Path, tmp_path: Path) -> None:
    options = ["--devices", 8, "--top-k", 3, "--space", "operators", "--hardware", "alpha-beta"]
    command(file, tmp_path, *options)
    found = planner.search(model, devices=8, top_k=3, space="operators", hardware="alpha-beta", cache=False)
    files = [tmp_path / f"plan-{k}.json" for k in range(2, 2 + len(found.others))]
    assert found.others
    assert [p.text for p in found.others] == [f.read_text() for f in files]


def test_files_for_runtimes_are_those_of_the_command(
    plan: planner.Plan, file: Path, written: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    for target in ("megatron", "torch", "dtensor", "onnx"):
        more = ["--model", file] if target in ("torch", "onnx") else []
        told = json.loads(
            run("emit", written[0], "--target", target, "--out", tmp_path / "a" / target, *more, "--json")
        )
        emission = plan.emit(target, tmp_path / "b" / target)
        assert list(emission.lost) == told["lost"]
        assert [p.relative_to(tmp_path / "b") for p in emission.paths] == [
            Path(f).relative_to(tmp_path / "a") for f in told["files"]
        ]
        assert all(
            p.read_bytes() == (tmp_path / "a" / p.relative_to(tmp_path / "b")).read_bytes() for p in emission.paths
        )
        assert planner.emit(written[0], target, model=file if more else None).files == emission.files


def test_a_plan_is_verified(plan: planner.Plan, model: planner.Model, written: tuple[Path, dict[str, Any]]) -> None:
    path, _ = written
    proof = plan.verify()
    assert proof
    assert proof.checked == ["forward", "gradients"]
    told = json.loads(run("verify", path, "--json"))
    # The command reads the model that lies beside the plan.
    assert {k: v for k, v in proof.document.items() if k != "import"} == {
        k: v for k, v in told.items() if k != "import"
    }
    assert proof.plan.verification == planner.load_plan(path).verification == "full"
    assert proof.plan == planner.load_plan(path)
    assert plan.verification == "none", "a plan is a value, and stays as it was"
    with pytest.raises(planner.InputError):
        planner.verify(plan, planner.build("gpt", **{**SIZES, "layers": 1}))


def test_what_a_strategy_and_a_plan_cost(
    model: planner.Model, file: Path, plan: planner.Plan, written: tuple[Path, dict[str, Any]]
) -> None:
    told = json.loads(run("evaluate", file, "--devices", 8, "--strategy", "zero1", "--hardware", "h100", "--json"))
    found = planner.evaluate(model, planner.Machine("h100", devices=8), strategy="zero1")
    assert found.to_dict() | {"model": ""} == told | {"model": ""}
    assert found.fits
    low, high = found.step_time_interval or (0.0, 0.0)
    assert low < found.step_time < high
    told = json.loads(run("evaluate", file, "--plan", written[0], "--json"))
    priced = planner.evaluate(model, plan=plan)
    assert priced.to_dict() | {"model": "", "strategy": ""} == told | {"model": "", "strategy": ""}
    assert priced.step_time == plan.step_time
    assert planner.evaluate(model, plan=written[0]).to_dict()["strategy"] == str(written[0])


def test_why_a_plan_is_as_it_is(plan: planner.Plan, written: tuple[Path, dict[str, Any]]) -> None:
    operator = next(n for n, op in plan.document.operators.items() if op.type == "MatMul")
    for op in (None, operator):
        told = json.loads(run("explain", written[0], *([] if op is None else [op]), "--json"))
        found = plan.explain(op).to_dict()
        # The command names the file that lies beside its plan.
        beside = str(written[0].with_name("model.onnx"))
        assert json.loads(json.dumps(found).replace(str(plan.model and plan.model.source.path), beside)) == told


def test_what_one_plan_does_otherwise(model: planner.Model, plan: planner.Plan, tmp_path: Path) -> None:
    other = planner.search(model, devices=8, hardware="h100", strategy="megatron:tp=4", cache=False)
    a, b = plan.save(tmp_path / "a"), other.save(tmp_path / "b")
    found = plan.diff(other)
    assert found.to_dict() == json.loads(run("diff", a, b, "--json", status=1))
    assert not found.identical
    assert plan.diff(plan).identical
    named = planner.diff(a, b, tmp_path / "diff.html")
    run("diff", a, b, "--out", tmp_path / "command.html", status=1)
    assert (tmp_path / "diff.html").read_bytes() == (tmp_path / "command.html").read_bytes()
    assert str(named) == run("diff", a, b, status=1).rstrip("\n")
    assert found._repr_html_().startswith("<iframe")


def test_a_report_is_that_of_the_command(plan: planner.Plan, tmp_path: Path) -> None:
    path = plan.save(tmp_path)
    run("report", path, "--out", tmp_path / "command.html")
    found = plan.report(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_bytes() == (tmp_path / "command.html").read_bytes()
    assert found.text == run("report", path).rstrip("\n")
    assert found.to_dict() == json.loads(run("report", path, "--json"))
    assert found._repr_html_().startswith("<iframe srcdoc=")
    assert found.html not in found._repr_html_(), "the page is escaped inside the frame"


def test_another_systems_strategy_is_read(model: planner.Model, file: Path, tmp_path: Path) -> None:
    ours = planner.search(model, devices=4, hardware="ascend-910b", target="dtensor", cache=False)
    emission = ours.emit("dtensor", tmp_path / "dtensor")
    strategy = next(p for p in emission.paths if p.name == "parallel_plan.json")
    run("read", strategy, "--format", "dtensor", "--model", file, "--out", tmp_path / "read.json")
    assert planner.read(strategy, "dtensor", model).text == (tmp_path / "read.json").read_text()


def test_tables_add_up_to_the_report(plan: planner.Plan) -> None:
    document = plan.report().to_dict()
    operators, collectives = plan.operators(), plan.collectives()
    assert len(operators) == len(plan.document.operators)
    assert sum(operators["seconds"]) == pytest.approx(plan.document.cost.objective_s, rel=1e-9)
    between = [row for row in collectives if row["where"] == "between"]
    assert sum(row["bytes"] for row in between) == sum(r["bytes"] for r in document["collectives"])
    parameters = plan.parameters()
    assert plan.model is not None
    assert sum(parameters["elements"]) == plan.model.parameters
    assert {row["stored"] for row in parameters} == {r["layout"] for r in document["parameters"]}
    first = next(iter(operators))
    assert first.keys() == set(operators.columns)
    assert repr(operators).startswith("operator")
    assert "<table>" in operators._repr_html_()
    assert operators.sorted("seconds")["seconds"] == sorted(operators["seconds"], reverse=True)
    with pytest.raises(KeyError, match="there are operator"):
        operators["nothing"]


def test_a_data_frame_is_made_where_it_is_asked_for(plan: planner.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """By pandas' own constructor, which is not installed here."""
    import sys
    import types

    made: list[Any] = []
    fake = types.ModuleType("pandas")
    fake.DataFrame = lambda rows, columns: made.append((rows, columns)) or "frame"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", fake)
    table = plan.parameters()
    assert table.to_pandas() == "frame"
    assert made == [(list(table.rows), list(table.columns))]


def test_a_notebook_shows_a_card(plan: planner.Plan) -> None:
    card = plan._repr_html_()
    assert "<svg" in card
    assert "<script" not in card
    assert plan.parallelism in card
    assert repr(plan).startswith("<Plan gpt on 8 x h100: DP")
    assert str(plan) == plan.summary


def test_names_of_a_model_are_no_markup(tmp_path: Path) -> None:
    name = "<b onload=x>"
    model = planner.load(SAMPLES / "mlp.onnx", name=name)
    plan = planner.search(model, devices=2, cache=False)
    for shown in (model._repr_html_(), plan._repr_html_(), plan.report()._repr_html_(), plan.operators()._repr_html_()):
        assert name not in shown
    assert plan.name == name
