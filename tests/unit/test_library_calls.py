"""Functions of `planner` in use: what is wrong is named, progress is told, a search ends when it is told to."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.requests.prepared import Prepared

SMALL = {"layers": 2, "hidden": 64, "heads": 4, "seq": 32, "vocab": 128, "batch": 64}


@pytest.fixture(scope="module")
def model() -> planner.Model:
    return planner.build("gpt", **SMALL)


WRONG: list[tuple[dict[str, Any], type[planner.PlannerError], str]] = [
    ({"time_limt": 3}, planner.OptionError, r"search\(\) has no option 'time_limt'; did you mean time_limit\?"),
    ({"xyzzy": 3}, planner.OptionError, r"has no option 'xyzzy'; it has batch, bind, "),
    ({"devices": "8"}, planner.OptionError, "devices: expected a number, found '8'"),
    ({"devices": None}, planner.OptionError, "devices: expected a number of devices, found none"),
    ({"devices": 0}, planner.UsageError, "devices=0: expected a positive integer, found '0'"),
    ({"memory_limit": "64 foo"}, planner.OptionError, "^memory_limit: expected a size such as 64GiB"),
    ({"precision": "fp8"}, planner.OptionError, "^precision: invalid choice: 'fp8'"),
    ({"reproducible": 1}, planner.OptionError, "^reproducible: expected true or false, found 1"),
    ({"constraints": 5}, planner.OptionError, "^constraints: expected a path, found 5"),
    ({"progress": 5}, planner.OptionError, "^progress: expected a function"),
    ({"time_limit": -1}, planner.UsageError, "^time_limit: expected a positive number of seconds, such as 300"),
    ({"stages": 3}, planner.UsageError, "^stages=3: expected a divisor of devices=8"),
    ({"mesh": "3x3"}, planner.UsageError, "^mesh=3x3: has 9 devices, devices says 8"),
    ({"hardware": "nosuch"}, planner.InputError, "^hardware=nosuch: hardware profile 'nosuch': expected one of"),
    ({"strategy": "foo"}, planner.UsageError, "^strategy='foo': expected one of ddp"),
    ({"bind": {"x": 3}}, planner.UsageError, r"^bind=\{'x': 3\}: the model has no such dimension"),
    ({"reproducible": True, "time_limit": 3}, planner.UsageError, "^reproducible forbids time_limit"),
    ({"memory_limit": "4kB"}, planner.InfeasibleError, "Raise memory_limit, use more devices, a smaller batch"),
    ({"constraints": "nofile"}, planner.InputError, "^constraints nofile: cannot be read"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "kind", "told"), WRONG, ids=[str(w[0]) for w in WRONG])
def test_what_is_wrong_is_named(
    model: planner.Model, options: dict[str, Any], kind: type[planner.PlannerError], told: str
) -> None:
    with pytest.raises(kind, match=told) as caught:
        planner.search(model, **{"devices": 8, **options})
    assert "--" not in str(caught.value)


def test_other_functions_name_what_is_wrong(model: planner.Model, tmp_path: Path) -> None:
    cases: list[tuple[Any, str]] = [
        (lambda: planner.build("gpt", layrs=2), "has no option 'layrs'; did you mean layers"),
        (lambda: planner.build("gpt", hidden=100), "^hidden=100 is no multiple of heads=12; the nearest"),
        (lambda: planner.build("gptt"), "no architecture named 'gptt'"),
        (lambda: planner.load(tmp_path / "no.onnx"), "no such file"),
        (lambda: planner.load(b"nonsense"), "not an ONNX model"),
        (lambda: planner.load(3), "^model: expected a model of planner.load"),  # type: ignore[arg-type]
        (lambda: planner.load_plan(tmp_path), "cannot be read"),
        (lambda: planner.evaluate(model, devices=8), r"needs either strategy=… or plan=…, found neither"),
        (lambda: planner.evaluate(model, strategy="ddp"), "^strategy needs devices=N"),
        (lambda: planner.read(tmp_path, "toch", model), "^format='toch': expected one of"),
        (lambda: planner.Machine("nosuch").profile, "^hardware=nosuch"),
    ]  # fmt: skip
    for call, told in cases:
        with pytest.raises(planner.PlannerError, match=told) as caught:
            call()
        assert "--" not in str(caught.value)


def test_an_unknown_option_is_a_type_error_as_well(model: planner.Model) -> None:
    with pytest.raises(TypeError):
        planner.search(model, devices=2, nothing=1)  # type: ignore[call-arg]


def test_a_plan_without_its_model_says_what_lacks(model: planner.Model, tmp_path: Path) -> None:
    plan = planner.search(model, devices=2)
    path = plan.save(tmp_path / "plan.json")
    (tmp_path / "model.onnx").unlink()
    alone = planner.load_plan(path)
    assert alone == plan
    assert alone.mfu is None
    for call in (alone.verify, alone.explain):
        with pytest.raises(planner.InputError, match="give the one that was planned as model=…"):
            call()
    with pytest.raises(planner.UsageError, match="target=onnx: needs model"):
        alone.emit("onnx")
    assert planner.verify(path, model)
    with pytest.raises(planner.UsageError, match=r"^target=megatronn: did you mean megatron\?"):
        alone.emit("megatronn")


def test_progress_is_told_step_by_step(model: planner.Model, capsys: pytest.CaptureFixture[str]) -> None:
    steps: list[planner.Progress] = []
    quiet = planner.search(model, devices=8, progress=steps.append, cache=False)
    assert capsys.readouterr() == ("", "")
    assert [s.phase for s in steps if not s.message and s.gap is None] == ["import", "search", "write"]
    assert steps[0].phase == "import"
    figures = [s for s in steps if s.gap is not None]
    assert figures
    assert all(s.incumbent_s is not None and s.bound_s is not None and s.bound_s <= s.incumbent_s for s in figures)
    assert [s.seconds for s in steps] == sorted(s.seconds for s in steps)
    assert any(s.message for s in steps)
    assert planner.search(model, devices=8, progress=True, cache=False) == quiet
    out, err = capsys.readouterr()
    assert not out
    assert "gap" in err


def test_what_a_listener_raises_ends_the_search(model: planner.Model) -> None:
    def refuse(step: planner.Progress) -> None:
        if step.phase == "search":
            raise ZeroDivisionError("enough")

    with pytest.raises(ZeroDivisionError, match="enough"):
        planner.search(model, devices=8, progress=refuse, cache=False)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT as at a terminal: what a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Searches that go on, with a plan in hand, until they are told to end; set as soon as one waits."""
    waits = threading.Event()
    planned = Prepared.plan

    def plan(self: Any, request: Any, control: Any, *args: Any, **kwargs: Any) -> Any:
        found = planned(self, request, control, *args, **kwargs)
        waits.set()
        late = time.monotonic() + 30
        while not control.cancel.is_set():  # in steps: a thread that waits for a lock hears no signal
            assert time.monotonic() < late, "nobody asked for the end"
            time.sleep(0.01)
        return found

    monkeypatch.setattr(Prepared, "plan", plan)
    yield waits
    assert waits.is_set()


def test_another_thread_ends_a_search(model: planner.Model, endless: threading.Event) -> None:
    token = planner.Cancellation()

    def end() -> None:
        assert endless.wait(30)
        token.cancel()

    ends = threading.Thread(target=end)
    ends.start()
    begun = time.monotonic()
    plan = planner.search(model, devices=8, space="operators", cancellation=token, cache=False)
    ends.join()
    assert plan.cancelled
    assert token.cancelled
    assert plan.step_time > 0
    assert time.monotonic() - begun < 25
    with pytest.raises(planner.NoPlanError, match="cancelled before the search began"):
        planner.search(model, devices=8, cancellation=token, cache=False)


def test_a_search_in_a_thread_of_its_own_is_ended(model: planner.Model, endless: threading.Event) -> None:
    token = planner.Cancellation()
    found: list[planner.Plan] = []

    def search() -> None:
        found.append(planner.search(model, devices=8, space="operators", cancellation=token, cache=False))

    thread = threading.Thread(target=search)
    thread.start()
    assert endless.wait(30)
    token.cancel()
    thread.join(30)
    assert found[0].cancelled


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_gives_the_best_plan_so_far(
    model: planner.Model, endless: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        assert endless.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    plan = planner.search(model, devices=8, space="operators", cache=False)
    thread.join()
    assert plan.cancelled
    assert "ending with the best plan so far" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("interruptible")
def test_a_second_interrupt_is_one_as_ever(model: planner.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)

    def stuck(self: Any, *args: Any, **kwargs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    monkeypatch.setattr(Prepared, "plan", stuck)
    with pytest.raises(KeyboardInterrupt):
        planner.search(model, devices=8, space="operators", cache=False)
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.undo()
    assert not planner.search(model, devices=2, cache=False).cancelled


def test_a_model_is_imported_once_for_many_searches(model: planner.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.requests.model import ModelSource

    once = planner.load(model.source.data or b"", name="once", batch=32)

    def again(self: ModelSource, **_: Any) -> Any:
        raise AssertionError("imported again")

    monkeypatch.setattr(ModelSource, "load_with_file", again)
    for devices in (2, 4):
        assert planner.search(once, devices=devices, space="operators", cache=False).batch == 32
