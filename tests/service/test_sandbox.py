"""No code that a model brings into a child reaches another tenant's files, the service, or the network."""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.api.jobs import forks
from planner.api.jobs.blobs import Blobs
from planner.api.jobs.caches import cache_of, make_room
from planner.api.jobs.handover import CODE, lay_in
from planner.api.jobs.sandbox import Confinement, Unconfined, announce, confinement, granted, landlock, seccomp
from planner.api.jobs.sandbox.calls import FORBIDDEN, MACHINES
from planner.api.jobs.sandbox.confinement import Granted
from planner.api.jobs.sandbox.readable import programs, without
from planner.api.jobs.sqlite import SqliteDatabase
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import Task
from planner.api.pages import own_secret
from planner.cache import Store as Cache
from planner.errors import UsageError
from tests.service.escapes import hostile
from tests.service.working import ask, working

NOTHING = Granted(0, False)
OLD = Granted(1, True)


def test_code_in_a_child_reaches_nothing_that_is_not_its_own(tmp_path: Path) -> None:
    """All that the kernel grants is tried; what it does not grant is said when the worker begins."""
    store = Store(tmp_path / "service")
    own_secret(store.folder)
    model, other = store.blobs.put(b"its own"), store.blobs.put(b"another tenant's")
    sibling = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    libc = ctypes.CDLL(None)
    queue = libc.msgget(0, 0o600)  # of whoever has its number
    service = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    service.bind(str(store.folder / "service"))
    try:
        with working(store, entry=hostile) as worker:
            theirs = worker._folder / "another"
            theirs.mkdir()
            (theirs / "note").write_text("theirs")
            options = {
                "store": str(store.folder),
                "other": str(store.blobs.path(other)),
                "theirs": str(theirs),
                "worker": os.getpid(),
                "sibling": sibling.pid,
                "queue": queue,
            }
            handled = signal.signal(signal.SIGTERM, lambda *_: None)
            try:
                state = ask(store, worker, Task("artifact", {"model": model}, options, code="c"))
            finally:
                signal.signal(signal.SIGTERM, handled)
        assert sibling.poll() is None
    finally:
        sibling.kill()
        sibling.wait()
        service.close()
        libc.msgctl(queue, 0, None)
    found = granted()
    kept = {"files": found.landlock >= 3, "signals": found.landlock >= 6, "calls": found.calls}
    assert state.error is None
    done = {name: what for name, what in state.summary["done"].items() if kept[name.partition(":")[0]]}
    assert done == {}
    assert len(found.missing) == sum(not holds for holds in kept.values())


def in_a_process(work: Callable[[], object]) -> str:
    """What became of it in a process of its own: "done", or the class of the error."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os.write(write_end, b"done")
        except BaseException as e:
            os.write(write_end, type(e).__name__.encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        said = pipe.read().decode()
    status = os.waitpid(pid, 0)[1]
    return said or f"ended by {status}"


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_older_kernels_keep_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    """A rule of a later version than the kernel's is one that it would refuse."""
    if landlock.abi() < version:
        version = landlock.abi()  # the newest that there is
    monkeypatch.setattr(landlock, "abi", lambda: version)
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    inside.mkdir()
    outside.write_text("x")
    (inside / "own").write_text("x")

    def attempt() -> None:
        Confinement("auto", Granted(version, False)).enter(write=[inside])
        (inside / "own").read_text()
        (inside / "own").write_text("y")
        outside.read_text()

    assert in_a_process(attempt) == ("PermissionError" if version else "done")


def test_filters_name_no_call_twice_and_know_their_machine() -> None:
    for machine in MACHINES:
        assert len(set(FORBIDDEN[machine])) == len(FORBIDDEN[machine]) > 80
        assert len(seccomp.program(machine)) % 8 == 0
        assert len(seccomp.program(machine)) // 8 < 4096  # the most that the kernel takes
    assert not seccomp.available("riscv64")  # no numbers of another machine


def test_the_filter_refuses_and_lets_threads_begin() -> None:
    def sockets() -> None:
        Confinement("auto", Granted(0, True)).enter()
        import threading

        thread = threading.Thread(target=time.sleep, args=(0.01,))
        thread.start()
        thread.join()
        socket.socket()

    assert in_a_process(sockets) == ("PermissionError" if seccomp.available() else "done")


@pytest.mark.parametrize("found", [NOTHING, OLD])
def test_what_is_required_and_not_granted_is_refused(monkeypatch: pytest.MonkeyPatch, found: Granted) -> None:
    monkeypatch.setattr(confinement, "granted", lambda: found)
    with pytest.raises(UsageError, match=r"--sandbox require: .*files of other tenants.*auto"):
        announce("require")
    with pytest.raises(Unconfined, match="files of other tenants"):
        Confinement("require", found).enter()


@pytest.mark.parametrize(("mode", "found"), [("auto", NOTHING), ("auto", OLD), ("off", Granted(7, True))])
def test_what_is_missing_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: confinement.Mode, found: Granted
) -> None:
    monkeypatch.setattr(confinement, "granted", lambda: found)
    announce(mode)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.fields["not_kept_from"] == list(found.missing)  # type: ignore[attr-defined]


def test_a_part_that_the_kernel_refuses_leaves_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose own filter forbids a child to have one."""
    monkeypatch.setattr(confinement, "_holds", lambda found: not found.calls)
    monkeypatch.setattr(landlock, "abi", lambda: 7)
    granted.cache_clear()
    try:
        assert granted() == Granted(7, False)
    finally:
        granted.cache_clear()


def test_a_part_that_is_refused_to_a_child_leaves_it_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def restrict(**_: object) -> None:
        raise OSError(errno.EINVAL, "a folder that it cannot have")

    monkeypatch.setattr(landlock, "restrict", restrict)

    def attempt() -> None:
        Confinement("auto", Granted(7, True)).enter()
        socket.socket()

    assert in_a_process(attempt) == ("PermissionError" if seccomp.available() else "done")
    assert in_a_process(lambda: Confinement("require", Granted(7, True)).enter()) == "Unconfined"


def test_a_store_inside_of_a_folder_of_code_is_left_out(tmp_path: Path) -> None:
    for name in ("lib/store/blobs", "lib/pkg", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lib" / "module.py").touch()
    (tmp_path / "lib" / "link").symlink_to(tmp_path / "lib" / "store")
    paths = [tmp_path / "lib", tmp_path / "other", tmp_path / "lib" / "store"]
    kept = set(without(paths, tmp_path / "lib" / "store"))
    assert kept == {tmp_path / "lib" / "pkg", tmp_path / "lib" / "module.py", tmp_path / "other"}


def test_blobs_that_hosts_share_are_left_out_wherever_they_lie(tmp_path: Path) -> None:
    for name in ("code/blobs", "code/pkg"):
        (tmp_path / name).mkdir(parents=True)
    database = SqliteDatabase(tmp_path / "store.sqlite")
    store = Store(tmp_path / "store", database=database, blobs=Blobs(tmp_path / "code" / "blobs", remote=True))
    kept = Confinement.of("auto", store.folders, [str(tmp_path / "code")]).programs
    assert tmp_path / "code" / "pkg" in kept
    assert not any((tmp_path / "code" / "blobs").is_relative_to(path) for path in kept)


def test_where_a_command_is_started_is_no_folder_of_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not any(tmp_path.is_relative_to(path) for path in programs())
    assert Path(os.__file__).parent in programs()


def test_keys_in_the_environment_are_not_in_the_memory_of_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_SECRET_KEY", "x")
    before = dict(os.environ)
    with forks._announced():
        assert "CLOUD_SECRET_KEY" not in os.environ
        assert {"PATH", "ORT_DISABLE_TELEMETRY"} <= set(os.environ)
    assert dict(os.environ) == before


def test_programs_that_a_child_starts_find_the_planner(tmp_path: Path) -> None:
    """Wherever it is installed, and though nothing else of that place is to be read."""
    lay_in(Blobs(tmp_path / "store" / "blobs"), {}, tmp_path)
    kept = Confinement.of("auto", [tmp_path / "store"])

    def attempt() -> None:
        os.chdir(tmp_path / "work")
        os.environ["PYTHONPATH"] = str(tmp_path / CODE)
        kept.enter(read=[tmp_path / CODE], write=[tmp_path / "work"])
        code = "import sys; sys.modules['numpy'] = None; import planner.errors"
        subprocess.run([sys.executable, "-c", code], check=True)

    assert in_a_process(attempt) == "done"


def test_all_caches_together_are_bounded_and_each_is_of_its_own_inputs(tmp_path: Path) -> None:
    first, second = (cache_of(tmp_path, {"model": name * 64}) for name in "ab")
    assert first != second
    for folder in (first, second):
        Cache(folder).write("answers", "0" * 64, os.urandom(5000))
        for path in folder.rglob("0" * 64):
            os.utime(path, (1, 1) if folder == first else None)
    make_room(tmp_path, 8000)
    assert not first.exists()  # unused for longest
    assert Cache(second).read("answers", "0" * 64) is not None


def test_folders_that_a_child_has_nested_in_its_cache_stop_no_purge(tmp_path: Path) -> None:
    folder = cache_of(tmp_path, {"model": "a" * 64})
    Cache(folder).write("answers", "0" * 64, b"kept")
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("nested", dir_fd=handle)
        inner = os.open("nested", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    make_room(tmp_path)
    assert [entry.name for entry in folder.iterdir()] == ["answers"]
    assert Cache(folder).read("answers", "0" * 64) == b"kept"


def test_health_says_nothing_of_the_sandbox() -> None:
    from planner.api.routes import health

    assert "sandbox" not in json.dumps(health._ALIVE.model_dump())
