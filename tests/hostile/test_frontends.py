"""Hostile models end in an error for the user, quickly and in bounded memory."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from pathlib import Path

import pytest

from planner.errors import EndedError, InputError, LimitError, UsageError
from planner.frontends import Limits, load_model
from planner.frontends.file import sandbox
from planner.frontends.file.sandbox import run_limited

from . import large, make_models

HERE = Path(__file__).parent
BOMBS = {f"{make.__name__}.onnx" for make in make_models.BOMBS}
REFUSED = sorted(set(make_models.contents()) - BOMBS)
TIGHT = Limits(memory_bytes=1 << 30, cpu_seconds=20, wall_seconds=30)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_one_screen(name):
    with pytest.raises(InputError) as caught:
        load_model(HERE / name, limits=TIGHT)
    message = str(caught.value)
    assert 20 < len(message) < 2000
    assert message.count("\n") < 25
    assert "Traceback" not in message


@pytest.mark.parametrize("name", sorted(BOMBS))
def test_bombs_cost_little(name):
    assert (HERE / name).stat().st_size < 1 << 17
    began = time.monotonic()
    with contextlib.suppress(InputError, LimitError):
        load_model(HERE / name, limits=TIGHT)
    assert time.monotonic() - began < 15


def test_files_are_what_the_script_writes():
    for name, data in make_models.contents().items():
        assert (HERE / name).read_bytes() == data, name


def test_large_files_are_what_the_script_writes():
    """By name; two of them by their bytes."""
    assert {p.name for p in large.FOLDER.iterdir()} == {f"{make.__name__}.onnx.gz" for make in large.LARGE}
    for make in (large.empty_nodes, large.attribute_flood):
        assert large.unpacked(large.FOLDER / f"{make.__name__}.onnx.gz") == make()


def test_missing_file_and_directory(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_model(tmp_path / "none.onnx")
    with pytest.raises(InputError, match="directory"):
        load_model(tmp_path)


def test_every_truncation_is_refused_or_read(tmp_path):
    """Half a file is never a crash; a cut between two fields may leave a smaller valid message."""
    from planner.frontends import import_bytes

    whole = make_models.plain().SerializeToString()
    for n in range(0, len(whole), 7):
        try:
            import_bytes(whole[:n])
        except InputError:
            continue


def limit_met(work, limits):
    """What the error says whose limit is met."""
    with pytest.raises(LimitError) as caught:
        run_limited(work, limits=limits, what="test")
    return caught.value.limit


def spin():
    while True:
        pass


def test_child_that_allocates_is_stopped():
    assert limit_met(lambda: bytearray(8 << 30), Limits(memory_bytes=1 << 29)) == "memory"


def test_child_that_spins_is_stopped():
    began = time.monotonic()
    assert limit_met(spin, Limits(cpu_seconds=1, wall_seconds=30)) == "cpu"
    assert time.monotonic() - began < 15


def test_child_that_spins_in_native_code_is_stopped():
    """Python's own handler of the signal, were there one, would not run."""

    def deaf():
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
        spin()

    assert limit_met(deaf, Limits(cpu_seconds=1, wall_seconds=30)) == "cpu"


def test_child_that_sleeps_is_stopped():
    assert limit_met(lambda: time.sleep(60), Limits(wall_seconds=0.5)) == "wall"


def test_limits_of_a_child_below_a_child_are_told_as_such():
    inner = Limits(wall_seconds=0.2)
    assert limit_met(lambda: run_limited(lambda: time.sleep(60), limits=inner, what="inner"), TIGHT) == "wall"


@pytest.mark.parametrize(
    ("work", "says"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL: it was killed from outside"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV: native code failed"),
        (lambda: os.kill(os.getpid(), signal.SIGABRT), "SIGABRT: native code failed"),
        (lambda: os._exit(3), "without an answer"),
        (lambda: os.open("/proc/self/no-such-file", os.O_RDONLY), "the machine failed it"),
    ],
)
def test_the_death_of_a_child_is_no_verdict_about_the_input(work, says):
    with pytest.raises(EndedError, match=says) as caught:
        run_limited(work, limits=TIGHT, what="test")
    assert not isinstance(caught.value, InputError | LimitError)
    assert caught.value.exit_status == 5


@pytest.mark.parametrize("threads", [True, False])
def test_a_fault_in_the_child_of_a_process_with_threads_is_tried_again(tmp_path, monkeypatch, threads):
    """What native threads were in the middle of is copied by a fork, and the next one finds them elsewhere."""
    monkeypatch.setattr(sandbox, "_has_threads", lambda: threads)
    tried = tmp_path / "tried"

    def falls_at_first():
        first = not tried.exists()
        tried.write_text(tried.read_text() + "x" if not first else "x")
        if first:
            os.kill(os.getpid(), signal.SIGSEGV)
        return "answer"

    if threads:
        assert run_limited(falls_at_first, limits=TIGHT, what="test") == "answer"
    else:
        with pytest.raises(EndedError, match="SIGSEGV"):
            run_limited(falls_at_first, limits=TIGHT, what="test")
    assert tried.read_text() == "x" * (1 + threads)


@pytest.mark.parametrize("threads", [True, False])
def test_a_child_that_waits_for_a_lock_of_its_parents_threads_is_tried_again(tmp_path, monkeypatch, threads):
    """A fork copies locks that threads hold, and not the threads that would give them back."""
    monkeypatch.setattr(sandbox, "_has_threads", lambda: threads)
    monkeypatch.setattr(sandbox, "_ASLEEP_S", 0.4)
    monkeypatch.setattr(sandbox, "LOOK_S", 0.1)
    tried = tmp_path / "tried"

    def work():
        with tried.open("a") as file:
            file.write("x")
        if tried.read_text() == "x":
            time.sleep(3)  # as a lock that nobody gives back does, but for its end
        return "done"

    assert run_limited(work, limits=Limits(), what="test") == "done"
    assert tried.read_text() == ("xx" if threads else "x")


@pytest.mark.parametrize("waits", [True, False])
def test_a_child_that_computes_or_waits_for_its_own_is_not_asleep(monkeypatch, waits):
    monkeypatch.setattr(sandbox, "_has_threads", lambda: True)
    monkeypatch.setattr(sandbox, "_ASLEEP_S", 0.3)
    monkeypatch.setattr(sandbox, "LOOK_S", 0.1)
    monkeypatch.setattr(sandbox, "_ATTEMPTS", 1)

    def compute():
        until = time.monotonic() + 1.2
        while time.monotonic() < until:
            pass
        return "done"

    def work():
        return run_limited(compute, limits=Limits(), what="inside") if waits else compute()

    assert run_limited(work, limits=Limits(), what="test") == "done"


def test_a_process_with_many_open_files_is_answered():
    """`select` refuses descriptors above 1,023, which a training with many sockets has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    try:
        with contextlib.ExitStack() as held:
            for _ in range(1050):
                held.enter_context(open(os.devnull))
            assert run_limited(lambda: "answer", limits=TIGHT, what="test") == "answer"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_knows_whether_it_has_threads():
    done, waiting = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (waiting.set(), done.wait()))
    thread.start()
    waiting.wait()
    assert sandbox._has_threads()
    done.set()
    thread.join()


def test_a_child_killed_while_it_answers_is_no_verdict_either(monkeypatch):
    """A part of an answer is never taken for the whole, whatever it may say."""
    real = sandbox._receive
    monkeypatch.setattr(sandbox, "_receive", lambda *given: real(*given)[:-1])
    with pytest.raises(EndedError, match="try again"):
        run_limited(lambda: b"x" * 1000, limits=TIGHT, what="test")


def test_large_answers_come_through():
    size = 64 << 20
    assert len(run_limited(lambda: b"x" * size, limits=TIGHT, what="test")) == size


def test_planner_errors_keep_their_class():
    def usage():
        raise UsageError("--bind nothing")

    with pytest.raises(UsageError, match="--bind nothing"):
        run_limited(usage, limits=TIGHT, what="test")


def test_no_child_is_left_behind():
    before = children()
    with pytest.raises(LimitError):
        run_limited(lambda: time.sleep(60), limits=Limits(wall_seconds=0.2), what="test")
    assert children() <= before  # a service tested before this may have left its fork server


def children() -> set[str]:
    """Processes of which this one is the parent, those that wait to be asked after included."""
    return {n for task in Path("/proc/self/task").iterdir() for n in (task / "children").read_text().split()}
