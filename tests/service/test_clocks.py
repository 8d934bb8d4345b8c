"""A clock that is set, ahead or back, removes nothing and puts nothing out of order."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from planner.api.jobs.blobs import Blob
from planner.api.jobs.calendar import Calendar
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import Task
from planner.api.jobs.turns import Able
from planner.api.jobs.worker import Worker

DAY = 86400.0
HOUR = 3600.0


class Clock:
    """`time.time`, as a test sets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        real, real_ns = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: real() + self.ahead)
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(self.ahead * 1e9))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "service")


def submit(store: Store, n: int) -> str:
    return store.submit("a", Task("plan", {}, {"n": n}, code="c"), name="m").job.id


def finish(store: Store, content: bytes) -> str:
    claim = store.leases.claim("w", (0, 1, 2))
    assert claim is not None
    digest = store.blobs.put(content)
    store.leases.finish(claim, {"plan.json": Blob(digest, "", len(content))}, {}, plan=digest[:32])
    return digest[:32]


def purged(worker: Worker) -> bool:
    """Whether the worker, whose hour it is, has removed anything."""
    before = len(worker.store.jobs("a"))
    worker.purge()
    return len(worker.store.jobs("a")) < before


def test_a_clock_forty_days_ahead_removes_nothing(store: Store, clock: Clock) -> None:
    submit(store, 1)
    finish(store, b"plan")
    worker = Worker(store, retention_s=30 * DAY)
    assert not purged(worker)
    clock.ahead = 40 * DAY
    for _ in range(5):
        assert not purged(worker)
        clock.ahead += HOUR
    clock.ahead = 0.0  # it is set right
    assert not purged(worker)
    assert len(store.plans("a")) == 1


def test_a_store_that_nobody_looked_at_before_is_not_purged_by_a_clock_that_is_ahead(
    store: Store, clock: Clock
) -> None:
    submit(store, 1)
    finish(store, b"plan")
    clock.ahead = 40 * DAY
    assert not purged(Worker(store, retention_s=30 * DAY))


def test_what_is_old_goes_once_the_clock_has_gone_on_for_a_day(store: Store, clock: Clock) -> None:
    submit(store, 1)
    finish(store, b"plan")
    worker = Worker(store, retention_s=30 * DAY)
    assert not purged(worker)
    clock.ahead = 40 * DAY  # the service was not running, say
    looks = 0
    while not purged(worker):
        clock.ahead += HOUR
        looks += 1
    assert looks == 24


def test_of_several_workers_one_purges_in_an_hour(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [Worker(store, retention_s=DAY) for _ in range(3)]
    purges: list[float] = []
    monkeypatch.setattr(Store, "purge", lambda *_: purges.append(clock.ahead))
    for _ in range(4):
        for worker in workers:
            worker.purge()
        clock.ahead += HOUR
    assert purges == [0.0, HOUR, 2 * HOUR, 3 * HOUR]


def test_what_failed_goes_where_nothing_else_does(store: Store, clock: Clock) -> None:
    for n, ends in enumerate((True, False)):
        digest = store.blobs.put(f"model {n}".encode())
        store.submit("a", Task("plan", {"model": digest}, {}, code="c"), name="m")
        claim = store.leases.claim("w", (0, 1, 2))
        assert claim is not None
        if ends:
            store.leases.finish(claim, {}, {})
        else:
            store.leases.fail(claim, {"type": "x"}, lasting=False)
    worker = Worker(store, failed_s=DAY)
    for _ in range(50):
        worker.purge()
        clock.ahead += HOUR
    with store.database.read() as db:
        kept = [row[0] for row in db.execute("SELECT digest FROM files").fetchall()]
    assert kept == [store.blobs.put(b"model 0")]
    assert len(store.jobs("a")) == 2


def test_a_blob_is_as_young_as_its_folder_says(store: Store, clock: Clock) -> None:
    digest = store.blobs.put(b"about to be named")
    clock.ahead = 2 * HOUR  # of this host, and another dates the files
    assert store.purge(30 * DAY).blobs == 0
    assert digest in store.blobs


def test_days_that_pass_one_by_one_are_believed(tmp_path: Path) -> None:
    calendar = Calendar(tmp_path, lambda: None)
    for hour in range(0, 24 * 40, 20):
        assert calendar.leap(hour * HOUR) == 0.0
    assert calendar.leap(0.0) == 0.0  # set back


def test_a_clock_that_leaps_again_and_again_is_not_believed(tmp_path: Path) -> None:
    calendar = Calendar(tmp_path, lambda: 0.0)
    assert [calendar.leap(week * 7 * DAY) for week in range(1, 5)] == [week * 7 * DAY for week in range(1, 5)]


def test_a_torn_note_of_the_clock_is_no_leap(tmp_path: Path) -> None:
    (tmp_path / "purge-clock.json").write_text("{")
    assert Calendar(tmp_path, lambda: None).leap(1e9) == 0.0


def test_jobs_and_plans_stay_in_order_when_the_clock_is_set_back(store: Store, clock: Clock) -> None:
    jobs, plans = [], []
    for n, ahead in enumerate((0.0, -40 * DAY, -40 * DAY, -80 * DAY, 0.0)):
        clock.ahead = ahead
        jobs.append(submit(store, n))
        plans.append(finish(store, str(n).encode()))
    assert [j.id for j in store.jobs("a")] == jobs[::-1]
    assert [p.id for p in store.plans("a")] == plans[::-1]
    page = store.jobs("a", limit=2)
    assert [j.id for j in store.jobs("a", after=page[-1].id)] == jobs[::-1][2:]


def test_a_job_and_its_events_end_no_earlier_than_they_begin(store: Store, clock: Clock) -> None:
    job = submit(store, 1)
    clock.ahead = 10.0
    claim = store.leases.claim("w", (0, 1, 2))
    assert claim is not None
    clock.ahead = -100.0
    store.leases.fail(claim, None, lasting=False)
    found = store.job("a", job)
    assert found.started_at is not None
    assert found.finished_at is not None
    assert found.created_at <= found.started_at <= found.finished_at
    moments = [e.at for e in store.events("a", job)]
    assert len(moments) == 3
    assert moments == sorted(moments)


def test_a_worker_of_before_the_clock_was_set_back_is_not_waited_for(store: Store, clock: Clock) -> None:
    clock.ahead = HOUR
    store.leases.heartbeat("of before", (), pid=1, slots=1, code="c")
    clock.ahead = 0.0
    submit(store, 1)
    assert store.leases.workers() == {}
    claim = store.leases.claim("of another code", (0, 1, 2), able=Able(frozenset(("plan",)), "another"))
    assert claim is not None
