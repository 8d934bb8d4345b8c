"""`planner solve` and `planner check` as commands: results, exit statuses, limits, cancellation, rogue solvers."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.cli import solve_watch, solve_worker
from planner.cli.main import main
from planner.search.brute import brute_force
from planner.search.problem import FORBIDDEN, Edge, Node, Problem
from planner.search.saved.instance import read_instance, write_instance


def array(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


NODES = [
    Node(array(15, 10), array(10, 20), (0, 2)),
    Node(array(50, 40, 30), array(30, 40, 50), (1, 3)),
    Node(array(7), array(6), (2, 4)),
]
MATRIX = array(1, 2, 3, 4, 5, 6).reshape(2, 3)
SMALL = Problem(NODES, [Edge(0, 1, MATRIX), Edge(1, 0, MATRIX.T)], 60)


def saved(problem: Problem, folder: Path, name: str = "instance.json") -> Path:
    path = folder / name
    write_instance(problem, path)
    return path


def solved(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, Any], str]:
    status = main(["solve", *map(str, arguments), "--json"])
    out, err = capfd.readouterr()
    return status, json.loads(out), err


def hard(folder: Path) -> Path:
    """A dense problem that no solver here finishes in seconds."""
    rng = np.random.default_rng(5)
    count, states = 60, 20
    nodes = [Node(rng.integers(0, 100, states), rng.integers(1, 100, states), (0, 2)) for _ in range(count)]
    pairs = [(u, v) for u in range(count) for v in range(u + 1, count) if rng.random() < 0.4]
    edges = [Edge(u, v, rng.integers(0, 100, (states, states))) for u, v in pairs]
    return saved(Problem(nodes, edges, 60 * 30), folder, "hard.json.gz")


def test_the_optimum_with_its_proof(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    best = brute_force(SMALL)
    certificate = tmp_path / "certificate.json"
    status, found, err = solved(capfd, saved(SMALL, tmp_path), "--time-limit", "20", "--certificate", certificate)
    assert status == 0
    assert (found["status"], found["cost"], found["lower_bound"], found["gap"]) == ("optimal", best.cost, best.cost, 0)
    assert tuple(found["solution"]) == best.choice
    assert found["certified_lower_bound"] == best.cost
    assert found["peak_memory"] <= found["usage_limit"] == 60
    assert f"cost {best.cost}" in err
    assert main(["check", str(tmp_path / "instance.json"), str(certificate), "--json"]) == 0
    verdict = json.loads(capfd.readouterr().out)
    assert verdict["accepted"]
    assert verdict["optimal"]
    assert (verdict["cost"], verdict["lower_bound"]) == (best.cost, best.cost)


def test_a_certificate_that_was_tampered_with_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    instance, certificate = saved(SMALL, tmp_path), tmp_path / "certificate.json"
    solved(capfd, instance, "--certificate", certificate)
    document = json.loads(certificate.read_text())
    document["certificate"]["bound"] += 1
    certificate.write_text(json.dumps(document))
    assert main(["check", str(instance), str(certificate)]) == 1
    assert "defect: the bound claimed is" in capfd.readouterr().out


def test_memory_that_cannot_do_has_status_4(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    instance = saved(Problem(SMALL.nodes, SMALL.edges, 39), tmp_path)
    certificate = tmp_path / "certificate.json.gz"
    status, found, err = solved(capfd, instance, "--certificate", certificate)
    assert (status, found["status"], found["solution"], found["cost"]) == (4, "infeasible", None, None)
    assert found["memory_lower_bound"] == 40
    assert "needs at least 40 bytes; the limit is 39" in err
    assert main(["check", str(instance), str(certificate)]) == 0
    assert "infeasible: True" in capfd.readouterr().out


def test_forbidden_everywhere_has_status_3(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    never = np.full((2, 3), FORBIDDEN)
    status, found, err = solved(capfd, saved(Problem(NODES, [Edge(0, 1, never)], 60), tmp_path))
    assert (status, found["status"]) == (3, "infeasible")
    assert "every choice uses a forbidden entry" in err


def test_text_for_people(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", str(saved(SMALL, tmp_path)), "--quiet"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("optimal: the choice is proven optimal\n  cost: ")
    assert not err


def test_a_limit_in_time_is_kept(tmp_path: Path) -> None:
    instance = hard(tmp_path)
    for limit in (1.0, 3.0):
        begin = time.monotonic()
        done = subprocess.run(command(instance, "--time-limit", str(limit)), capture_output=True, check=False)
        assert time.monotonic() - begin < limit + 1
        found = json.loads(done.stdout)
        assert found["status"] in ("feasible", "unknown"), done.stderr
        assert done.returncode == (0 if found["status"] == "feasible" else 5)
        if found["cost"] is not None:
            assert 0 <= found["lower_bound"] <= found["cost"]
            assert 0 < found["gap"] <= 1


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "planner.cli.main", "solve", *map(str, arguments), "--json"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_the_best_so_far(number: int, tmp_path: Path) -> None:
    instance, events, start = hard(tmp_path), tmp_path / "events", tmp_path / "start.json"
    leanest = [int(np.argmin(n.usage)) for n in read_instance(instance).nodes if n.usage is not None]
    start.write_text(json.dumps(leanest))
    process = subprocess.Popen(
        command(instance, "--time-limit", "60", "--events", events, "--solution", start),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 20
    while time.monotonic() < until and not ("incumbent" in read(events) and incumbent(events) is not None):
        time.sleep(0.05)
    begin = time.monotonic()
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert time.monotonic() - begin < 2
    assert process.returncode == 0
    found = json.loads(out)
    assert found["status"] == "feasible"
    assert len(found["solution"]) == 60


def read(events: Path) -> str:
    return events.read_text() if events.exists() else ""


def incumbent(events: Path) -> int | None:
    reports = [json.loads(line) for line in read(events).splitlines() if line.endswith("}")]
    return next((r["incumbent"] for r in reversed(reports) if r["kind"] == "report"), None)


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("overrun", "did not stop in time"),
        ("crash", "ended by signal 9 (no memory left?)"),
        ("fail", "ended with status 3"),
        ("cut", ""),
    ],
)
def test_what_a_solver_had_found_survives_it(
    name: str, warning: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solve_watch, "WORKER", "tests.unit.rogue_worker")
    begin = time.monotonic()
    status, found, err = solved(capfd, f"{name}.json", "--time-limit", "1.5")
    assert time.monotonic() - begin < 2.5
    assert status == 0
    assert (found["status"], found["cost"], found["lower_bound"]) == ("feasible", 12, 7)
    assert found["solution"] == [1, 0]
    assert warning in err


def test_the_last_choice_that_a_worker_sends_is_its_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads send: one what is offered, the other the answer."""
    out = io.StringIO()
    channel = solve_worker._Channel(out)
    send, sending = channel.send, threading.Event()

    def slow(kind: str, **fields: Any) -> None:
        if fields["cost"] == 75:
            sending.set()
            time.sleep(0.3)
        send(kind, **fields)

    monkeypatch.setattr(channel, "send", slow)
    best = brute_force(SMALL)
    first = threading.Thread(target=channel.choice, args=(SMALL, (1, 0, 0)))
    first.start()
    assert sending.wait(10)
    channel.choice(SMALL, best.choice)
    first.join()
    costs = [json.loads(line)["cost"] for line in out.getvalue().splitlines()]
    assert costs == [75, best.cost]


def test_a_dearer_choice_replaces_none() -> None:
    state = solve_watch.SolveState()
    for cost in (7, 5, 9):
        solve_watch._take({"kind": "choice", "choice": [cost], "cost": cost}, state, lambda _: None)
    assert (state.choice, state.cost) == ([5], 5)


def test_a_choice_to_start_from(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    instance = saved(SMALL, tmp_path)
    start = tmp_path / "start.json"
    start.write_text("[0, 0, 0]")
    status, found, _ = solved(capfd, instance, "--solution", start, "--evaluate")
    assert (status, found["status"], found["cost"]) == (0, "feasible", 15 + 50 + 7 + 2)
    assert found["solution"] == [0, 0, 0]
    status, found, _ = solved(capfd, instance, "--solution", start)
    assert found["status"] == "optimal"
    for text, message in (
        ("[0, 0]", "expected a state for each of 3 nodes, found 2"),
        ("[0, 3, 0]", "node 1: expected a state below 3, found 3"),
        ('{"solution": "x"}', "expected a list of states"),
        ("[1, 2, 0]", "needs 70 bytes, the limit is 60"),
    ):
        start.write_text(text)
        assert main(["solve", str(instance), "--solution", str(start)]) == 3
        assert message in capfd.readouterr().err


def test_events_are_json_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    instance = saved(SMALL, tmp_path)
    _, _, err = solved(capfd, instance, "--events", "-")
    events = [json.loads(line) for line in err.splitlines()]
    reports = [e for e in events if e["kind"] == "report"]
    assert {"incumbent", "bound", "gap", "solver", "seconds"} <= set(reports[-1])
    assert reports[-1]["gap"] == 0
    times = [e["seconds"] for e in events]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--time-limit", "0"], "expected a positive number"),
        (["--time-limit", "nan"], "expected a positive number"),
        (["--reproducible", "--time-limit", "3"], "--reproducible forbids --time-limit"),
        (["--evaluate"], "give it with --solution"),
        (["--seed", "-1"], "--seed -1"),
        (["--certificate", "/nowhere/at/all"], "there is no such directory"),
        (["--events", "/nowhere/at/all"], "cannot be written"),
    ],
)
def test_usage_errors_have_status_2(
    arguments: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["solve", str(saved(SMALL, tmp_path)), *arguments])
    except SystemExit as e:  # of what is wrong with one argument alone
        status = int(e.code or 0)
    assert status == 2
    assert message in capfd.readouterr().err


def test_reproducible_answers_are_the_same_every_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    instance = saved(SMALL, tmp_path)
    answers = set()
    for _ in range(3):
        _, found, _ = solved(capfd, instance, "--reproducible", "--certificate", tmp_path / "c.json")
        del found["seconds"]
        answers.add(json.dumps(found) + (tmp_path / "c.json").read_text())
    assert len(answers) == 1


def test_a_worker_ends_with_its_parent(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(hard(tmp_path), "--time-limit", "60"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 20
    while not (children := _children(process.pid)) and time.monotonic() < until:
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert children
    until = time.monotonic() + 5
    while any(_runs(c) for c in children) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(_runs(c) for c in children)


def _children(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_saved_problems_are_read_back_whole(tmp_path: Path) -> None:
    """Names, edge usage, missing intervals and an absent limit: the superset of the published format."""
    edge = Edge(0, 1, MATRIX, MATRIX * 3, (1, 2))
    nodes = [Node(NODES[0].costs, None, None, "x"), Node(NODES[1].costs, NODES[1].usage, (1, 3), 'a "b"\n')]
    problem = Problem(nodes, [edge, Edge(1, 0, MATRIX.T)], None)
    for name in ("a.json", "a.json.gz"):
        read = read_instance(saved(problem, tmp_path, name))
        assert read.limit is None
        assert [n.name for n in read.nodes] == ["x", 'a "b"\n']
        assert [(n.interval, n.usage is None) for n in read.nodes] == [(None, True), ((1, 3), False)]
        assert [(e.u, e.v, e.interval) for e in read.edges] == [(0, 1, (1, 2)), (1, 0, None)]
        assert np.array_equal(read.edges[0].usage, MATRIX * 3)  # type: ignore[arg-type]
        assert np.array_equal(read.edges[1].costs, MATRIX.T)
    again = saved(read_instance(tmp_path / "a.json"), tmp_path, "b.json")
    assert again.read_bytes() == (tmp_path / "a.json").read_bytes()


def test_the_documented_problem_and_certificate_hold(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "problem-format.md").read_text(encoding="utf-8")
    instance, certificate = tmp_path / "instance.json", tmp_path / "certificate.json"
    for path, block in zip((instance, certificate), re.findall(r"```json\n(.*?)```", text, re.DOTALL), strict=True):
        path.write_text(block)
    assert main(["check", str(instance), str(certificate), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["optimal"]
    assert solved(capfd, instance)[1]["cost"] == 72


def test_equal_arrays_of_a_file_are_one_object(tmp_path: Path) -> None:
    problem = read_instance(saved(Problem([NODES[0]] * 3, [Edge(0, 1, np.zeros((2, 2), np.int64))] * 2, 9), tmp_path))
    assert len({id(n.costs) for n in problem.nodes}) == 1
    assert problem.edges[0].costs is problem.edges[1].costs
    assert not problem.nodes[0].costs.flags.writeable
