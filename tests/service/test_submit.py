"""`planner submit` and the client, against a service of their own: what `planner search` says, byte for byte."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.api.client import CannotFit, Client, Invalid, JobState, NotFound, Progress, TargetRefuses, Unauthorised
from planner.api.progress import Display, closed, picture
from planner.api.submit import as_planner_error
from planner.api.unpack import unpacked
from planner.cli.main import main
from planner.errors import InputError, UsageError
from planner.planning import read_plan
from planner.requests.record_file import record_beside
from tests.service.process import served
from tests.unit.test_frontends_strip import inside

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
PINS = b"schema: planner.constraints/1\nrest: {data_parallel: [x]}\n"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("service")
    with served(folder / "data", "--workers", "1", log=folder / "log") as service:
        yield service.url


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """With weights, under a name that a service does not take."""
    path = tmp_path / "a small gpt.onnx"
    path.write_bytes(inside((SAMPLES / "gpt_tiny.onnx").read_bytes()))
    return path


def submit(url: str, *arguments: object) -> int:
    return main(["submit", *map(str, arguments), "--server", url])


def test_the_plan_and_the_summary_are_those_of_search(url, model, tmp_path, capsys):
    options = [model, "--devices", 4, "--hardware", "v100", "--pin", "rest=data_parallel", "--batch", 16]
    assert submit(url, *options, "--out", tmp_path / "a", "--artifact", "torch", "--artifact", "report.html") == 0
    ours = capsys.readouterr()
    assert main(["search", *map(str, options), "--out", str(tmp_path / "b"), "--no-cache"]) == 0
    theirs = capsys.readouterr()
    assert (tmp_path / "a" / "plan.json").read_bytes() == (tmp_path / "b" / "plan.json").read_bytes()
    assert (tmp_path / "a" / "model.onnx").read_bytes() == (tmp_path / "b" / "model.onnx").read_bytes()
    kept = [line for line in theirs.out.splitlines() if not line.startswith(("search ", "plan written"))]
    assert [line for line in kept if line not in ours.out.splitlines()] == []
    told = [line for line in theirs.err.splitlines() if line.startswith("warning: ")]
    assert all(line in ours.err.splitlines() for line in told)
    assert "weights stay here" in ours.err
    assert (tmp_path / "a" / "torch" / "parallel.py").is_file()
    assert (tmp_path / "a" / "report.html").read_bytes().startswith(b"<!doctype html>")


def test_how_the_search_went_is_kept_beside_the_plan_and_shown_in_its_report(url, model, tmp_path):
    options = ["--devices", 4, "--batch", 16, "--artifact", "report.json", "--out", tmp_path]
    assert submit(url, model, *options) == 0
    record = record_beside(tmp_path / "plan.json", read_plan(tmp_path / "plan.json"))
    assert record is not None, "it names the plan as it was written, with the name of this file's model"
    assert record.steps
    shown = json.loads((tmp_path / "report.json").read_bytes())["history"]
    assert shown["steps"] == [moment.model_dump() for moment in record.steps]


def test_json_is_the_document_of_search_with_the_job(url, model, tmp_path, capsys):
    assert submit(url, model, "--devices", 4, "--out", tmp_path, "--json", "--artifact", "megatron") in (0, 3)
    document = json.loads(capsys.readouterr().out)
    plan = json.loads((tmp_path / "plan.json").read_bytes())
    assert document["objective_s"] == plan["cost"]["objective_s"]
    assert document["plan"] == str(tmp_path / "plan.json")
    assert {"job", "plan_id", "cached", "cancelled"} <= set(document)
    assert set(document["artifacts"]["megatron"]) <= {"files", "refused"}


def test_the_best_plans_of_several_meshes_come_too(url, tmp_path, capsys):
    assert submit(url, SAMPLES / "mlp.onnx", "--devices", 4, "--top-k", 2, "--reproducible", "--out", tmp_path) == 0
    written = [line for line in capsys.readouterr().out.splitlines() if line.startswith("plan written to")]
    assert written == [f"plan written to {tmp_path / name}" for name in ("plan.json", "plan-2.json")]
    best, next_best = (json.loads((tmp_path / name).read_bytes()) for name in ("plan.json", "plan-2.json"))
    assert best["cost"]["objective_s"] <= next_best["cost"]["objective_s"]
    assert best["meshes"] != next_best["meshes"]


def test_detached_it_prints_the_job(url, model, capsys):
    assert submit(url, model, "--devices", 2, "--detach") == 0
    job = capsys.readouterr().out.strip()
    with Client(url) as client:
        assert client.job(job).wait().status == "succeeded"


def test_exit_statuses_and_words_are_those_of_search(url, model, tmp_path, capsys):
    for extra, status in ((["--memory-limit", "1kB"], 4), (["--stages", "3"], 2), (["--pin", "nothing m=x"], 3)):
        options = [str(model), "--devices", "4", *extra]
        assert main(["search", *options, "--no-cache", "--out", str(tmp_path / "x")]) == status
        theirs = capsys.readouterr().err.splitlines()[-1]
        assert submit(url, *options, "--out", tmp_path / "y") == status
        ours = capsys.readouterr().err.splitlines()[-1]
        if status != 2:  # options are named as parameters there
            assert ours.removeprefix("planner submit: ") == theirs.removeprefix("planner search: ")
    assert not (tmp_path / "y").exists()


def test_what_cannot_be_asked_for_is_said_before_anything_is_sent(url, model, tmp_path, capsys):
    (tmp_path / "odd.onnx").write_bytes(b"no model")
    assert submit(url, tmp_path / "odd.onnx", "--devices", 4) == 3
    assert submit(url, model, "--devices", 4, "--hardware", "mine.toml") == 2
    assert submit(url, model, "--devices", 4, "--detach", "--artifact", "torch") == 2
    assert submit("ftp://here", model, "--devices", 4) == 2
    assert submit(url, model, "--devices", 4, "--key", "wrong", "--out", tmp_path) == 0, (
        "no key is needed where there are none"
    )


def test_ctrl_c_takes_the_best_so_far(url, tmp_path):
    command = [sys.executable, "-m", "planner", "submit", str(SAMPLES / "gpt2_small.onnx"), "--devices", "16"]
    command += ["--memory-limit", "560MB", "--server", url, "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    seen = next(line for line in process.stderr if "gap" in line)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, seen + err
    assert "ending with the best plan so far" in err
    assert "cancelled   this is the best plan found until then" in out
    assert json.loads((tmp_path / "plan.json").read_bytes())["cost"]["objective_s"] > 0


def test_the_client_goes_from_a_model_to_all_that_is_made_of_its_plan(url, tmp_path):
    with Client(url) as client:
        told: list[Progress] = []
        job = client.submit(SAMPLES / "mlp.onnx", devices=4).wait(told.append)
        assert told
        other = client.submit(SAMPLES / "mlp.onnx", devices=4, constraints=PINS).wait()
        events = [e.type for e in job.events()]
        assert events[0] == "queued"
        assert events[-1] == "succeeded"
        assert [e.type for e in job.events(after="1")] == events[1:]
        assert json.loads(job.plan())["model"]["name"] == "mlp"
        names = {a.name for a in job.artifacts()}
        assert {"plan.json", "report.html", "trace.json", "torch.zip"} <= names
        assert client.artifact(job.plan_id, "report.html", tmp_path / "r.html") == (tmp_path / "r.html").read_bytes()
        assert client.diff(job.plan_id, other.plan_id)["schema"]
        assert "<html" in client.diff_html(job.plan_id, other.plan_id)
        assert {p.id for p in client.plans()} >= {job.plan_id, other.plan_id}
        assert client.evaluate(SAMPLES / "gpt_tiny.onnx", devices=4, strategy="ddp")["step_time_s"] > 0
        assert "a100-80" in {h.name for h in client.hardware()}
        assert job.id in {j.id for j in client.jobs(status="succeeded")}
        with pytest.raises(CannotFit):
            client.submit(SAMPLES / "mlp.onnx", devices=1, memory_limit=1000).wait()
        with pytest.raises(Invalid, match="devices"):
            client.submit(SAMPLES / "mlp.onnx", devices=0)
        with pytest.raises((TargetRefuses, NotFound)):
            client.artifact(job.plan_id, "no-such.zip")
        client.forget(other.plan_id)
        with pytest.raises(NotFound):
            client.plan(other.plan_id)


def test_a_service_that_is_not_there_gives_no_plan():
    with Client("http://127.0.0.1:9", patience=0) as client, pytest.raises(Exception, match="planner serve") as caught:
        client.hardware()
    assert as_planner_error(caught.value).exit_status == 5


def test_gaps_fill_the_bar_in_powers_of_ten():
    assert closed(1.0) == closed(5.0) == 0
    assert closed(0.01) == pytest.approx(0.5)
    assert closed(0.0) == closed(1e-5) == 1
    line = picture(Progress("search", 2.0, 1.98, 0.01, 3.0), 12.0)
    assert line == "search      [############------------] objective 2 s, bound 1.98 s, gap 1.00%  12 s"
    line = picture(Progress("search", 2.0, 1.98, 0.01, 3.0, paused=True), 12.0)
    assert line == "paused      objective 2 s, bound 1.98 s, gap 1.00%  12 s"


def test_without_a_terminal_lines_tell_what_is_new():
    out = io.StringIO()
    with Display(out) as display:
        display.show(Progress("search"))
        for gap in (0.5, 0.5, 0.0, 0.0):
            display.show(Progress("search", 2.0, 2.0 - gap, gap, 1.0))
        for paused in (True, True, False, True):
            display.show(Progress("search", 2.0, 2.0, 0.0, 1.0, paused=paused))
    assert [line.split(": ")[1] for line in out.getvalue().splitlines()] == [
        "search",
        "objective 2 s, bound 1.5 s, gap 50.00%",
        "objective 2 s, bound 2 s, gap 0.00%",
        "paused, while others have their turn",
        "paused, while others have their turn",
    ]


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a/../../b", "a\\..\\b"])
def test_archives_cannot_leave_their_folder(name):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(InputError, match="leaves its folder"):
        unpacked(held.getvalue())


def test_states_of_later_services_are_read():
    state = JobState.of({"id": "a", "status": "running", "progress": {"gap": 0.5, "more": 1}, "new": True})
    assert state.progress == Progress(gap=0.5)
    assert not state.ended


def test_a_missing_key_is_usage_and_says_where_it_goes():
    document = {"type": "urn:planner:problem:unauthorised", "title": "A key is needed", "status": 401, "detail": "none"}
    error = as_planner_error(Unauthorised(document))
    assert isinstance(error, UsageError)
    assert "PLANNER_KEY" in str(error)
