"""Searches that are told to end: by a signal, by a limit, in time whatever they are busy with."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.cost_models import load_profile
from planner.errors import NoPlanError
from planner.frontends import import_bytes
from planner.planning import Request, make_plan, outer
from planner.planning.interrupt import run_until_stopped
from planner.pricing import Settings
from planner.requests.cancel import cancelled_by_signals
from planner.search.control import Control
from planner.search.evaluate import evaluate
from planner.search.solve import Search
from tests.unit.semantics_model import transformer


def test_work_that_never_looks_is_interrupted() -> None:
    cancel = threading.Event()
    control = Control(cancel=cancel)

    def work() -> None:
        cancel.set()
        while True:
            time.sleep(0.001)

    begin = time.monotonic()
    assert not run_until_stopped(work, control)
    assert time.monotonic() - begin < 2
    assert not any(t.name == "search" for t in threading.enumerate())


def test_work_stuck_in_compiled_code_is_left_behind() -> None:
    begin = time.monotonic()
    assert not run_until_stopped(lambda: time.sleep(3), Control(0.1))
    assert time.monotonic() - begin < 2


def test_failures_and_ends_pass_through() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_until_stopped(fail, Control())
    assert run_until_stopped(lambda: None, Control())


def _request(**more: object) -> Request:
    return Request(4, load_profile("a100-80"), Settings(training=True), **more)  # type: ignore[arg-type]


def test_a_cancelled_search_returns_its_best_and_bounds_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    control = Control()
    opened = outer._Outer._open

    def once(self: outer._Outer, option: outer.Option, inner: Control) -> None:
        opened(self, option, inner)
        control.cancel.set()

    monkeypatch.setattr(outer._Outer, "_open", once)
    planned = make_plan(import_bytes(transformer()), _request(), control=control)
    assert evaluate(planned.priced.problem, planned.solution.choice) == planned.solution.cost
    assert [c.status for c in planned.candidates].count("unknown") == 1
    assert planned.gap == 1, "meshes that were not looked at may cost nothing"


def test_a_cancelled_search_without_a_plan_makes_a_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    control = Control()

    def forever(_self: Search, **_: object) -> None:
        while True:
            time.sleep(0.001)

    monkeypatch.setattr(Search, "glance", lambda _self, **_: control.cancel.set())
    # The search itself never ends; what makes the plain plan may search as well.
    runs = [forever]
    run = Search.run
    monkeypatch.setattr(Search, "run", lambda self, **k: (runs.pop() if runs else run)(self, **k))
    planned = make_plan(import_bytes(transformer()), _request(), control=control)
    assert planned.solution.solver == "plain"
    assert evaluate(planned.priced.problem, planned.solution.choice) == planned.solution.cost


def test_a_search_cancelled_at_once_has_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    control = Control()
    control.cancel.set()

    def never(*_: object) -> None:
        while True:
            time.sleep(0.001)

    monkeypatch.setattr(outer, "price", never)
    graph = import_bytes(transformer())
    with pytest.raises(NoPlanError, match="cancelled"):
        make_plan(graph, _request(), control=control)


SLOW = """
import sys, time
from planner.cli import main
from planner.planning import outer
opened = outer._Outer._open
def slow(self, option, control):
    opened(self, option, control)
    print("opened", file=sys.stderr, flush=True)
    while True:
        time.sleep(0.001)
outer._Outer._open = slow
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_with_a_plan(tmp_path: Path, own_cache: Path, number: signal.Signals) -> None:
    model = tmp_path / "transformer.onnx"
    model.write_bytes(transformer())
    command = [sys.executable, "-c", SLOW, "search", str(model), "--devices", "4", "--out", str(tmp_path), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line == "opened\n" for line in process.stderr)
        begin = time.monotonic()
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert time.monotonic() - begin < 10, "two seconds, on a machine that is not loaded"
    found = json.loads(out)
    assert found["cancelled"]
    assert found["status"] == "feasible"
    assert main(["verify", found["plan"], str(model)]) == 0
    assert not any(own_cache.rglob("*")), "what was cut short is not kept"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_search_ends_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    model = tmp_path / "transformer.onnx"
    model.write_bytes(transformer())
    before = signal.getsignal(number)
    monkeypatch.setattr(
        "planner.requests.model.ModelSource.load_with_file", lambda *_, **__: signal.raise_signal(number)
    )
    assert main(["search", str(model), "--devices", "4", "--out", str(tmp_path)]) == 5
    assert "cancelled before the search began" in capsys.readouterr().err
    assert signal.getsignal(number) is before


def test_the_second_signal_ends_the_program_at_once() -> None:
    with cancelled_by_signals() as cancellation:
        cancellation.searching = True
        signal.raise_signal(signal.SIGINT)
        assert cancellation.requested.is_set()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_limit_too_short_for_anything_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "transformer.onnx"
    model.write_bytes(transformer())
    status = main(["search", str(model), "--devices", "4", "--out", str(tmp_path), "--time-limit", "1e-6"])
    err = capsys.readouterr().err
    assert status in (0, 5)
    assert status == 0 or "longer --time-limit" in err
