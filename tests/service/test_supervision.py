"""Workers that hang are replaced, and what loses its parent is buried by the first process of a container."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.api.jobs import pulse
from planner.api.jobs.pulse import Listener, Pulse
from planner.api.settings import Settings
from planner.api.workers import Workers

# Gives signs of life, stops for good at its first life, and says so.
STAND_IN = r"""
import os, signal, sys, time
lives, handle = sys.argv[1], int(sys.argv[2])
with open(lives, "a") as f:
    f.write(f"{os.getpid()}\n")
first = len(open(lives).readlines()) == 1
for k in range(600):
    os.write(handle, b".")
    time.sleep(0.05)
    if first and k == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
"""


class StandIns(Workers):
    """Runs the program above in place of workers."""

    def __init__(self, lives: Path) -> None:
        super().__init__(Settings(data=lives.parent, workers=1), patience_s=1.0)
        self.lives = lives

    def _command(self, slots: int, pulse: int) -> list[str]:
        return [sys.executable, "-c", STAND_IN, str(self.lives), str(pulse)]


def until(what: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def test_a_worker_that_is_alive_and_gives_no_sign_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lives = tmp_path / "lives"
    ends: list[str] = []
    with StandIns(lives) as workers:
        workers.on_end = ends.append
        until(lambda: lives.exists() and len(lives.read_text().split()) > 1)
        assert ends == ["hung"]
        assert not Path(f"/proc/{lives.read_text().split()[0]}").exists()
    assert [r.message for r in caplog.records][:2] == ["worker hangs", "worker ended"]


def test_waiting_for_a_store_of_another_host_is_no_silence(tmp_path: Path) -> None:
    database = pytest.importorskip("planner.api.jobs.postgres.database", reason="the extra `server` is not installed")
    given_up_s = int(database._DEFAULTS["tcp_user_timeout"]) / 1000
    assert Workers(Settings(data=tmp_path)).patience_s == 12.0
    shared = Workers(Settings(data=tmp_path, store="postgresql://h/d", blobs="s3://b"))
    assert shared.patience_s > database.WAIT_S + 2 * given_up_s
    assert f"-c statement_timeout={shared.patience_s / 2:g}s" in database._OPTIONS


def test_silence_counts_from_the_last_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(pulse.time, "monotonic", lambda: now)
    monkeypatch.setattr(Pulse, "_live", lambda self: None)  # which would go by another clock
    listener = Listener(patience_s=12.0, start_s=300.0)
    worker = Pulse(os.dup(listener.handle))
    listener.given()

    def silent_after(seconds: float) -> bool:
        nonlocal now
        for _ in range(int(seconds)):
            now += 1.0
            found = listener.silent()
        return found

    assert not silent_after(200)  # it begins
    worker.beat()
    assert not silent_after(12)
    assert silent_after(2)
    worker.beat()
    assert not silent_after(1)
    now += 3600.0  # the listener was stopped itself, as a machine is that sleeps
    assert not listener.silent()
    assert not silent_after(11)
    assert silent_after(3)
    listener.close()


def test_a_process_that_stands_still_is_noticed_before_a_round_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(pulse.time, "monotonic", lambda: now)
    listener = Listener(patience_s=60.0)
    handle = os.dup(listener.handle)
    listener.given()

    def silent_after(seconds: int, sign: bytes = b"") -> float:
        nonlocal now
        for _ in range(seconds):
            now += 1.0
            if sign:
                os.write(handle, sign)
            found = listener.silent()
        return found

    assert not silent_after(20, b".,")
    assert not silent_after(59, b",")  # a round waits for the database, and the process lives
    assert silent_after(2, b",") == 61.0  # for too long
    assert not silent_after(1, b".,")
    assert not silent_after(10)  # it is stopped
    assert silent_after(1) == 11.0
    os.close(handle)
    listener.close()


def test_a_worker_lives_while_its_round_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "EVERY_S", 0.01)
    listener = Listener()
    Pulse(os.dup(listener.handle)).beat()
    until(lambda: listener.silent() or listener._heard_beside)
    assert listener._heard
    listener.close()


def test_signs_of_life_need_nobody_who_listens() -> None:
    Pulse(None).beat()
    listener = Listener()
    worker = Pulse(os.dup(listener.handle))
    listener.given()
    listener.close()
    worker.beat()


ORPHANS = """
import json, os, subprocess, sys, time
from pathlib import Path
from planner.api.jobs.reaper import Reaper, inherits
from planner.api.jobs.sandbox.kernel import prctl

before = inherits()
prctl(36, 1)  # orphans come here
own = set()
with Reaper(lambda: set(own), every_s=0.05):
    waited = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    own.add(waited.pid)
    orphans = [subprocess.run(["sh", "-c", "sleep 0.1 & echo $!"], stdout=subprocess.PIPE).stdout for _ in range(3)]
    end = time.monotonic() + 30
    while any(Path(f"/proc/{int(pid)}").exists() for pid in orphans) and time.monotonic() < end:
        time.sleep(0.02)
    left = [int(pid) for pid in orphans if Path(f"/proc/{int(pid)}").exists()]
    time.sleep(0.2)  # two more looks, at which the other is dead
    print(json.dumps([before, inherits(), left, waited.wait()]))
"""


def test_orphans_are_buried_and_the_ends_of_own_processes_are_left_to_who_waits() -> None:
    found = subprocess.run([sys.executable, "-c", ORPHANS], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == [False, True, [], 3]


def test_a_worker_touches_the_file_that_tells_others_of_its_rounds(tmp_path: Path) -> None:
    file = tmp_path / "alive"
    worker = Pulse(None, file)
    worker.beat()
    os.utime(file, (0.0, 0.0))
    worker.beat()
    assert file.stat().st_mtime == 0.0  # a moment later: it costs nothing
    worker._next = 0.0
    worker.beat()
    assert file.stat().st_mtime > 0.0


def test_a_worker_whose_file_cannot_be_written_goes_on(tmp_path: Path) -> None:
    Pulse(None, tmp_path / "none" / "alive").beat()
