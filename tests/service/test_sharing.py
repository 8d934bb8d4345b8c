"""Tenants share a worker: short work waits for no long work, long work has turns, and what is paused can be ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from planner.api.jobs import rotation, sharing
from planner.api.jobs.errors import StoreBusy
from planner.api.jobs.lanes import INTERACTIVE, LARGE, SMALL, lane_of
from planner.api.jobs.slot import Slot
from planner.api.jobs.spells import cpu_of
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import Task
from planner.api.jobs.turns import START_MS
from planner.api.jobs.worker import Worker
from planner.frontends.file import sandbox
from planner.frontends.file.sandbox import Limits, run_limited
from tests.service.entries import misbehaving
from tests.service.working import SMALL as LIMITS
from tests.service.working import until, working

WIDE = "2x2x2x2"  # a mesh whose search takes long


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices that a test has the time for."""
    for module in (rotation, sharing):
        monkeypatch.setattr(module, "TRIAL_S", 0.2)
        monkeypatch.setattr(module, "SLICE_S", 0.3)
    monkeypatch.setattr(sharing, "LOOK_S", 0.05)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "service")


@pytest.fixture
def worker(store: Store) -> Iterator[Worker]:
    with working(store, slots=1, entry=misbehaving) as worker:
        yield worker


def does(what: str, kind: str = "plan", **options: object) -> Task:
    return Task(kind, {}, {"do": what, **options}, code="c")


def _slot(worker: Worker, task: int) -> Slot:
    return next(s for s in worker._at_work if s.claim.task == task)


def _ran(worker: Worker, task: int) -> bool:
    return any(s.claim.task == task and s.hearing.begun_s is not None for s in worker._at_work)


def test_short_work_is_answered_while_long_work_of_another_fills_every_lane(store: Store, worker: Worker) -> None:
    for k in range(3):
        store.ensure(does("sleep", mesh=WIDE, k=k), "a")
        store.ensure(does("sleep", "evaluation", k=k), "a")  # and was not expected to
    until(worker, lambda: len(worker._at_work) == 2)
    report = store.ensure(does("nothing", "artifact"), "b")
    search = store.ensure(does("nothing"), "b")
    for task in (report, search):
        until(worker, lambda task=task: store.state(task.id).ended, 10.0)  # type: ignore[misc]
        assert store.state(task.id).status == "succeeded"


def test_long_work_of_another_has_its_turn_and_both_go_on(store: Store, worker: Worker) -> None:
    a = store.submit("a", does("sleep", mesh=WIDE, k=1), name="m").job
    until(worker, lambda: _ran(worker, a.task))
    b = store.ensure(does("sleep", mesh=WIDE, k=2), "b")
    until(worker, lambda: _ran(worker, b.id), 10.0)
    assert _slot(worker, a.task).paused
    until(worker, lambda: store.job("a", a.id).progress.get("paused") is True)
    pid = _slot(worker, a.task).child.process.pid
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    store.leases.heartbeat("other", [], used={"b": 60.0})  # b has used more by now
    until(worker, lambda: not _slot(worker, a.task).paused, 10.0)
    assert _slot(worker, b.id).paused
    until(worker, lambda: store.job("a", a.id).progress.get("paused") is False)
    assert {"paused": True} in [dict(e.data) for e in store.events("a", a.id) if e.type == "progress"]


def test_tenants_are_charged_the_processor_time_of_their_children(
    store: Store, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "IDLE", 0.0)
    store.ensure(does("spin", mesh=WIDE), "busy")
    store.ensure(does("sleep"), "idle")
    until(worker, lambda: len(worker._at_work) == 2 and all(s.hearing.begun_s is not None for s in worker._at_work))
    until(worker, lambda: cpu_of(next(s.child.pid for s in worker._at_work if s.tenant == "busy")) > 0.3)
    worker._beaten = 0.0
    worker.turn()
    turns = store.leases.standing(["busy", "idle"]).turns
    assert turns["busy"] >= 300 + START_MS
    assert turns["idle"] < 300


def test_a_tenant_alone_is_not_paused(store: Store, worker: Worker) -> None:
    first = store.ensure(does("sleep", mesh=WIDE, k=1), "a")
    store.ensure(does("sleep", mesh=WIDE, k=2), "a")
    until(worker, lambda: _ran(worker, first.id))
    end = time.monotonic() + 0.8
    until(worker, lambda: time.monotonic() > end)
    assert [s.claim.task for s in worker._at_work] == [first.id]
    assert not worker._at_work[0].paused


def _paused(store: Store, worker: Worker, what: str = "sleep") -> tuple[str, int]:
    """A paused job of tenant `a`, and its task."""
    a = store.submit("a", does(what, mesh=WIDE), name="m").job
    until(worker, lambda: _ran(worker, a.task))
    store.ensure(does("sleep", mesh=WIDE, k=2), "b")
    until(worker, lambda: _slot(worker, a.task).paused)
    return a.id, a.task


def test_a_paused_search_that_is_cancelled_hands_in_its_best_at_once(store: Store, worker: Worker) -> None:
    job, _ = _paused(store, worker, "spin until asked")
    store.cancel("a", job)
    until(worker, lambda: store.job("a", job).ended, 5.0)
    found = store.job("a", job)
    assert found.status == "cancelled"
    assert found.plan is not None


def test_time_counts_while_it_runs_and_not_while_it_is_paused(store: Store, worker: Worker) -> None:
    worker.limits = replace(LIMITS, wall_s=1.0)
    job, task = _paused(store, worker)
    store.leases.heartbeat("other", [], used={"a": 20.0})  # so that it stays paused
    end = time.monotonic() + 1.2
    until(worker, lambda: time.monotonic() > end)
    store.leases.heartbeat("other", [], used={"b": 600.0})
    slot = _slot(worker, task)
    assert slot.spells.ran() < 1.0
    until(worker, lambda: store.job("a", job).ended)
    error = store.job("a", job).error
    assert error is not None
    assert error["type"].endswith("child-wall")


def test_a_paused_child_ends_with_its_worker_and_its_task_waits_again(store: Store) -> None:
    with working(store, slots=1, entry=misbehaving) as worker:
        job, task = _paused(store, worker)
        pid = _slot(worker, task).child.pid
        server = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(server, signal.SIGKILL)  # as it is where the worker is killed
        until(worker, lambda: not _alive(pid), 10.0)
        until(worker, lambda: store.state(task).attempts == 2)
    assert store.job("a", job).status == "queued"


def test_what_outstays_the_short_lanes_without_room_begins_again_among_the_long(
    store: Store, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker._sharing, "memory_bytes", 1)  # nothing can be kept paused
    store.ensure(does("sleep", mesh=WIDE), "a")
    until(worker, lambda: len(worker._at_work) == 1)
    long = store.submit("a", does("sleep", "evaluation"), name="m").job
    until(worker, lambda: len(worker._at_work) == 2)
    quick = store.ensure(does("nothing", "artifact"), "b")
    until(worker, lambda: store.state(quick.id).ended, 10.0)
    assert store.job("a", long.id).status == "queued"
    assert [e.type for e in store.events("a", long.id)][-1] == "restarted"
    claimed = store.leases.claim("other", (LARGE,))
    assert claimed is not None
    assert claimed.task == long.task


def test_a_result_that_a_pause_took_time_from_is_not_shared(store: Store, worker: Worker) -> None:
    a = store.submit("a", does("sleep", mesh=WIDE, time_limit=100.0), name="m").job
    until(worker, lambda: _ran(worker, a.task))
    slot = _slot(worker, a.task)
    assert not slot._hurried()
    slot.pause()
    slot.resume()
    assert slot._hurried()


def test_a_stop_takes_nothing_of_the_time_that_an_import_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "LOOK_S", 0.1)
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        try:
            done = run_limited(lambda: time.sleep(0.6) or "done", limits=Limits(wall_seconds=1.5), what="test")
            os._exit(0 if done == "done" else 1)
        except BaseException:
            os._exit(2)
    time.sleep(0.3)
    os.killpg(pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.killpg(pid, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize(
    ("kind", "options", "size", "lane"),
    [
        ("artifact", {"name": "report.html"}, 10**7, INTERACTIVE),
        ("diff", {"form": "json"}, 10**7, INTERACTIVE),
        ("plan", {"devices": 16}, 100_000, SMALL),
        ("plan", {"devices": 16}, 1_000_000, LARGE),
        ("plan", {"devices": 16, "time_limit": 5.0}, 1_000_000, SMALL),
        ("plan", {"devices": 16, "time_limit": 600.0}, 1_000_000, LARGE),
        ("plan", {"devices": 16, "mesh": "2x2x2x2"}, 20_000, LARGE),
        ("plan", {"devices": 16, "mesh": "4x4"}, 20_000, SMALL),
        ("evaluation", {"devices": 16, "strategy": "ddp"}, 100_000, SMALL),
        ("evaluation", {"devices": 16, "strategy": "ddp"}, 1_000_000, LARGE),
        ("explanation", {"alternatives": 3}, 20_000, SMALL),
        ("explanation", {"alternatives": 20}, 200_000, LARGE),
        ("artifact", {"name": "explain.json"}, 500_000, LARGE),
    ],
)
def test_a_lane_follows_from_what_a_task_is_likely_to_take(
    kind: str, options: dict[str, object], size: int, lane: int
) -> None:
    assert lane_of(kind, options, size) == lane


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_was_used_while_the_store_could_not_be_written_to_is_charged_later(
    store: Store, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ensure(does("spin"), "a")
    until(worker, lambda: worker._at_work)
    (slot,) = worker._at_work

    def refuse(*_: object, **__: object) -> None:
        raise StoreBusy("it cannot be asked at the moment")

    with monkeypatch.context() as out_of_reach:
        out_of_reach.setattr(type(store.leases), "heartbeat", refuse)
        until(worker, lambda: cpu_of(slot.child.pid) > 1.0)
        worker._beaten = 0.0
        worker.turn()
    worker._beaten = 0.0
    worker.turn()
    with store.database.read() as db:
        charged = db.execute("SELECT turn FROM turns WHERE tenant = 'a'").fetchone()["turn"]
    assert charged - START_MS >= 900
