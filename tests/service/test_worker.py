"""A worker does what the command line does, whatever file it is given, and loses nothing when it ends."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from planner.api.jobs.requests import evaluation_options, model_file, search_options
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import Task
from planner.api.jobs.worker import Worker
from planner.cli.main import main
from planner.errors import UsageError
from tests.service.working import SMALL, ask, until, working

ROOT = Path(__file__).parents[2]
MLP = ROOT / "sample_graphs" / "mlp.onnx"
HOSTILE = ROOT / "tests" / "hostile"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "service")


@pytest.fixture
def worker(store: Store) -> Iterator[Worker]:
    with working(store) as worker:
        yield worker


def plan_task(store: Store, model: Path = MLP, **options: object) -> Task:
    return Task("plan", {"model": store.blobs.put(model.read_bytes())}, {"name": model.stem, **options})


def test_a_plan_is_the_bytes_that_the_command_line_writes(store: Store, worker: Worker, tmp_path: Path) -> None:
    job = store.submit("a", plan_task(store, devices=4, hardware="h100"), name="mlp").job
    until(worker, lambda: store.job("a", job.id).ended)
    found = store.job("a", job.id)
    assert (found.status, found.error) == ("succeeded", None)
    assert found.plan is not None
    files = store.plan("a", found.plan).files
    assert set(files) == {"plan.json", "search.json", "history.json", "summary.txt", "model.onnx"}
    out = tmp_path / "out"
    assert main(["search", str(MLP), "--devices", "4", "--hardware", "h100", "--no-cache", "--out", str(out)]) == 0
    plan = store.blobs.read(files["plan.json"].digest)
    assert plan == (out / "plan.json").read_bytes()
    assert files["plan.json"].digest.startswith(found.plan)
    summary = json.loads(store.blobs.read(files["search.json"].digest))
    assert found.summary["objective_s"] == summary["objective_s"] == json.loads(plan)["cost"]["objective_s"]
    types = [e.type for e in store.events("a", job.id)]
    assert types[:2] == ["queued", "started"]
    assert types[-1] == "succeeded"
    assert {"phase", "progress"} <= set(types)
    assert found.progress["gap"] == 0
    # The kept model plans to the same bytes.
    kept = tmp_path / "kept" / "mlp.onnx"
    kept.parent.mkdir()
    kept.write_bytes(store.blobs.read(files["model.onnx"].digest))
    again = ask(store, worker, plan_task(store, kept, devices=4, hardware="h100"))
    assert again.result["plan.json"].digest == files["plan.json"].digest
    # Another name: found again in the cache, not searched.
    other = tmp_path / "other.onnx"
    other.write_bytes(MLP.read_bytes())
    renamed = ask(store, worker, plan_task(store, other, devices=4, hardware="h100"))
    assert renamed.summary["cached"] is True
    assert json.loads(store.blobs.read(renamed.result["plan.json"].digest))["model"]["name"] == "other"


def test_an_equal_graph_in_anothers_file_brings_nothing_of_that_file(
    store: Store, worker: Worker, tmp_path: Path
) -> None:
    theirs = onnx.load(MLP, load_external_data=False)
    theirs.metadata_props.add(key="about", value="between us")
    (tmp_path / "mlp.onnx").write_bytes(theirs.SerializeToString())
    ask(store, worker, plan_task(store, tmp_path / "mlp.onnx", devices=2))
    own = ask(store, worker, plan_task(store, devices=2))
    assert own.summary["cached"] is False  # who can write where it would be found might write what is no answer
    for blob in own.result.values():
        assert b"between us" not in store.blobs.read(blob.digest)


def test_pictures_emitted_files_and_evaluations_come_from_a_plan(store: Store, worker: Worker) -> None:
    plan = ask(store, worker, plan_task(store, devices=2))
    inputs = {"plan.json": plan.result["plan.json"].digest, "model.onnx": plan.result["model.onnx"].digest}
    for target in ("torch", "onnx"):
        made = ask(store, worker, Task("artifact", inputs, {"name": f"{target}.zip"}))
        assert made.status == "succeeded", made.error
        content = store.blobs.read(made.result[f"{target}.zip"].digest)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            assert archive.testzip() is None
            assert "lost.txt" in archive.namelist()
    pictures = {"report.html": b"<!doctype html>", "report.json": b"{", "trace.json": b"{", "explain.json": b"{"}
    for name, start in pictures.items():
        made = ask(store, worker, Task("artifact", inputs, {"name": name}))
        assert made.status == "succeeded", made.error
        assert store.blobs.read(made.result[name].digest)[: len(start)].lower() == start
    recorded = inputs | {"history.json": plan.result["history.json"].digest}
    for given, history in ((recorded, True), (inputs, False)):
        made = ask(store, worker, Task("artifact", given, {"name": "report.json"}))
        document = json.loads(store.blobs.read(made.result["report.json"].digest))
        assert (document["history"] is not None) == history
    two = {"a": inputs["plan.json"], "b": inputs["plan.json"]}
    for form in ("json", "html"):
        made = ask(store, worker, Task("diff", two, {"form": form}))
        assert set(made.result) == {f"diff.{form}"}, made.error
    why = Task("explanation", inputs, {"operator": "no such operator", "alternatives": 1})
    unknown = ask(store, worker, why)
    assert unknown.error is not None
    assert unknown.error["type"].endswith(":input-invalid")
    unknown = ask(store, worker, Task("artifact", inputs, {"name": "../x.zip"}))
    assert unknown.error is not None
    assert unknown.error["type"].endswith(":usage")
    refused = ask(store, worker, Task("artifact", inputs, {"name": "mindformers.zip"}))
    assert refused.error is not None
    assert refused.error["type"].endswith(":target-refuses")
    model = store.blobs.put(MLP.read_bytes())
    priced = ask(store, worker, Task("evaluation", {"model": model, "plan": inputs["plan.json"]}, {}))
    assert priced.summary["objective_s"] == plan.summary["objective_s"]
    named = ask(store, worker, Task("evaluation", {"model": model}, {"devices": 2, "strategy": "ddp"}))
    assert named.summary["strategy"] == "ddp"


@pytest.mark.parametrize("name", ["cyclic", "deeper_nesting", "function_bomb", "huge_tensor"])
def test_a_hostile_file_is_a_typed_error(store: Store, worker: Worker, name: str) -> None:
    job = store.submit("a", plan_task(store, HOSTILE / f"{name}.onnx", devices=2), name=name).job
    until(worker, lambda: store.job("a", job.id).ended)
    found = store.job("a", job.id)
    assert found.status == "failed"
    assert found.error is not None
    assert found.error["type"] == "urn:planner:problem:input-invalid"
    assert str(store.folder) not in json.dumps(found.error)


def test_what_cannot_fit_says_what_would(store: Store, worker: Worker) -> None:
    state = ask(store, worker, plan_task(store, devices=2, memory_limit="4KB"))
    assert state.error is not None
    assert state.error["type"].endswith("cannot-fit")
    assert state.error["lower_bound_bytes"] > 4000


def test_constraints_come_as_an_input(store: Store, worker: Worker) -> None:
    task = plan_task(store, devices=2)
    pinned = Task(
        "plan",
        {**task.inputs, "constraints": store.blobs.put(b"schema: planner.constraints/1\nrest: data_parallel\n")},
        task.options,
    )
    assert ask(store, worker, pinned).status == "succeeded"
    wrong = Task("plan", {**task.inputs, "constraints": store.blobs.put(b"{")}, task.options)
    state = ask(store, worker, wrong)
    assert state.error is not None
    assert state.error["type"].endswith("input-invalid")


def test_an_input_that_was_damaged_since_is_said(store: Store, worker: Worker) -> None:
    task = plan_task(store, devices=2)
    begun = store.ensure(task)
    store.blobs.path(task.inputs["model"]).write_bytes(b"x")
    until(worker, lambda: store.state(begun.id).ended)
    error = store.state(begun.id).error
    assert error is not None
    assert error["type"].endswith("input-lost")


@pytest.mark.parametrize(
    "options",
    [
        {"devices": 2, "hardware": "/etc/passwd"},
        {"devices": 2, "warm_start": "/etc/passwd"},
        {"devices": 2, "out": "/tmp/x"},
        {"devices": "2,4"},
        {"devices": 2, "optimizer": "lion"},
        {"devices": 2, "name": "../x"},
        {"devices": 2, "name": ""},
        {"devices": 3, "stages": 2},
        {},
    ],
)
def test_options_name_no_file_and_are_those_of_the_command(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        search_options(options)


def test_odd_names_and_values_stay_what_they_are() -> None:
    given = {"devices": 2, "name": "--help", "pin": ["--x.* m=x", "a b=c"], "bind": ["-n=3"], "reproducible": True}
    parsed = search_options(given, constraints=True)
    assert parsed.model == Path("--help.onnx") == model_file(given)
    assert (parsed.pin, parsed.bind, parsed.reproducible) == (given["pin"], given["bind"], True)
    assert evaluation_options({"devices": 2, "strategy": "ddp"}).strategy == "ddp"


def _command(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    code = (
        "import argparse, sys; from planner.api.jobs import command\n"
        "p = argparse.ArgumentParser(); command.configure(p); sys.exit(command.run(p.parse_args()))\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, "--data", str(folder), *more],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )


def _children(pid: int) -> set[int]:
    """All processes below one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found: set[int] = set()
    while more := {c for c, p in parents.items() if p in {pid, *found}} - found:
        found |= more
    return found


def _wait(holds: object, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def test_a_killed_worker_leaves_no_process_and_its_task_is_taken_over(store: Store) -> None:
    slow = ROOT / "sample_graphs" / "gpt2_small.onnx"
    job = store.submit("a", plan_task(store, slow, devices=8), name="m").job
    first = _command(store.folder)
    try:
        _wait(lambda: any(e.type == "phase" for e in store.events("a", job.id)))
        below = _children(first.pid)
        assert len(below) >= 2  # the fork server and a child
        first.kill()
        first.wait()
        _wait(lambda: not any(Path(f"/proc/{p}").exists() for p in below))
        second = _command(store.folder)
        try:
            _wait(lambda: store.job("a", job.id).attempts == 2)
            store.cancel("a", job.id)
            _wait(lambda: store.job("a", job.id).ended)
        finally:
            second.send_signal(signal.SIGTERM)
            assert second.wait(20) == 0
    finally:
        first.kill()
        first.wait()
    assert list((store.folder / "scratch").iterdir()) == []


def test_a_stopped_worker_gives_its_task_back_at_once(store: Store) -> None:
    slow = ROOT / "sample_graphs" / "gpt2_small.onnx"
    job = store.submit("a", plan_task(store, slow, devices=64, memory_limit="250MB"), name="m").job
    process = _command(store.folder, "--parent", str(os.getpid()))
    _wait(lambda: store.job("a", job.id).status == "running" and store.counts()["workers"] == 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert store.job("a", job.id).status == "queued"
    assert store.counts()["workers"] == 0
    assert [e.type for e in store.events("a", job.id)][-1] == "restarted"


def test_a_worker_without_its_parent_does_what_waits_and_ends(store: Store) -> None:
    job = store.submit("a", plan_task(store, devices=2), name="m").job
    orphan = _command(store.folder, "--parent", "1")  # which it was not
    assert orphan.wait(90) == 0
    assert store.job("a", job.id).status == "succeeded"


def test_a_worker_without_its_parent_leaves_what_waits_to_one_that_is_ready(store: Store) -> None:
    store.leases.heartbeat("another", [], slots=1)
    job = store.submit("a", plan_task(store, devices=2), name="m").job
    orphan = _command(store.folder, "--parent", "1")
    assert orphan.wait(60) == 0
    assert store.job("a", job.id).status == "queued"


def test_a_store_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").write_bytes(b"no database" * 1000)
    process = _command(tmp_path)
    assert process.wait(20) == 3


def test_limits_of_a_child_hold_for_what_it_forks(store: Store) -> None:
    with working(store, limits=replace(SMALL, memory_bytes=16 << 20)) as worker:
        state = ask(store, worker, plan_task(store, ROOT / "sample_graphs" / "resnet50.onnx", devices=2))
    assert state.error is not None
    assert state.error["type"].rpartition(":")[2] in ("child-memory", "child-died")  # native code may not survive it
