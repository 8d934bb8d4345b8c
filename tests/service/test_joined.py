"""What a job shows of a computation that another tenant had begun: nothing of the time before it came."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from planner.api.jobs import searches, sqlite
from planner.api.jobs.blobs import Blob, digest_bytes
from planner.api.jobs.handover import lay_in
from planner.api.jobs.lanes import LANES
from planner.api.jobs.limits import Limits
from planner.api.jobs.problems import problem
from planner.api.jobs.records import Claim, JobRecord
from planner.api.jobs.sandbox import Confinement
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import KINDS, Task, code_digest
from planner.api.jobs.turns import Able
from planner.api.jobs.work import JobInput
from planner.api.settings import Settings
from planner.api.workers import Workers
from tests.service.http import serving


class Clock:
    """Moments as the test has them."""

    def __init__(self) -> None:
        self.now = time.time()

    def time(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(sqlite, "time", found)
    return found


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Store:
    return Store(tmp_path)


def _submit(store: Store, tenant: str) -> JobRecord:
    task = Task("plan", {"model": store.blobs.put(b"model")}, {}, code="code")
    return store.submit(tenant, task, name=tenant).job


def _begun(store: Store, clock: Clock, attempts: int = 1) -> Claim:
    """A task of tenant a that has been computed for 100 s."""
    _submit(store, "a")
    for k in range(attempts):
        claim = store.leases.claim("w", (0, 1), 10_000.0)
        assert claim is not None
        if k < attempts - 1:
            store.leases.release(claim)
    for k in range(50):
        clock.now += 2.0
        figures = {"incumbent_s": 2.0, "bound_s": 1.0, "gap": 0.5 - k / 1000, "seconds": 2.0 * (k + 1)}
        store.leases.report(claim, [("phase", {"phase": "search"}), ("progress", figures)], figures)
    clock.now += 1.0
    return claim


def _events(store: Store, job: JobRecord, after: int = 0) -> list[tuple[int, str, dict[str, Any], float]]:
    return [(e.seq, e.type, dict(e.data), e.at) for e in store.events(job.tenant, job.id, after)]


def test_a_running_computation_shows_where_it_is_and_not_since_when(store: Store, clock: Clock) -> None:
    claim = _begun(store, clock, attempts=3)
    job = _submit(store, "b")
    assert (job.status, job.attempts, job.started_at) == ("running", 1, job.created_at)
    assert job.progress["seconds"] == 0.0
    assert job.progress["gap"] == 0.5 - 49 / 1000
    events = _events(store, job)
    assert [kind for _, kind, _, _ in events] == ["queued", "started", "phase", "progress"]
    assert {at for *_, at in events} == {job.created_at}
    assert events[1][2] == {"attempt": 1}
    assert events[3][2]["seconds"] == 0.0
    clock.now += 5.0
    store.leases.report(claim, [("progress", {"seconds": 106.0})], {"seconds": 106.0})
    store.leases.release(claim)
    again = store.leases.claim("w", (0, 1), 60.0)
    assert again is not None
    store.leases.fail(again, problem("input-invalid", "x"), lasting=False)
    later = _events(store, job)
    assert later[:4] == events
    assert [kind for _, kind, _, _ in later[4:]] == ["progress", "restarted", "started", "failed"]
    assert later[4][2]["seconds"] == pytest.approx(5.0)
    assert later[6][2] == {"attempt": 2}
    numbers = [seq for seq, *_ in later]
    assert numbers == list(range(numbers[0], numbers[0] + 8))
    for seq in numbers:
        assert _events(store, job, seq) == [e for e in later if e[0] > seq]
    assert [seq for seq, *_ in _events(store, store.jobs("a")[0])] == list(range(1, 111))


def test_numbers_say_nothing_of_how_much_there_was_before(store: Store, clock: Clock) -> None:
    _begun(store, clock)
    first = [_events(store, _submit(store, tenant))[0][0] for tenant in ("b", "c", "d", "e")]
    assert len(set(first)) == 4


def test_whoever_comes_after_the_end_sees_it_end_at_once(store: Store, clock: Clock) -> None:
    claim = _begun(store, clock)
    blob = Blob(store.blobs.put(b"plan"), "application/json", 4)
    store.leases.finish(claim, {"plan.json": blob}, {"gap": 0.0}, plan=blob.digest[:32])
    clock.now += 1000.0
    job = _submit(store, "b")
    assert (job.status, job.attempts, job.started_at, job.finished_at) == ("succeeded", 1, *[job.created_at] * 2)
    assert job.progress["seconds"] == 0.0
    events = _events(store, job)
    assert [kind for _, kind, _, _ in events] == ["queued", "started", "phase", "progress", "succeeded"]
    assert str(clock.now - 1000.0)[:8] not in json.dumps(events)


def test_one_that_waits_again_shows_that_it_waits(store: Store, clock: Clock) -> None:
    store.leases.release(_begun(store, clock, attempts=2))
    clock.now += 1.0
    job = _submit(store, "b")
    assert job.status == "queued"
    assert [kind for _, kind, _, _ in _events(store, job)] == ["queued"]
    store.leases.claim("w", (0, 1), 60.0)
    assert [(kind, data) for _, kind, data, _ in _events(store, job)][1:] == [("started", {"attempt": 1})]


def test_one_that_leaves_sees_its_own_end(store: Store, clock: Clock) -> None:
    claim = _begun(store, clock)
    job = _submit(store, "b")
    store.cancel("b", job.id)
    store.leases.report(claim, [("progress", {"seconds": 200.0})], {})
    events = _events(store, job)
    assert [kind for _, kind, _, _ in events] == ["queued", "started", "phase", "progress", "cancelled"]
    assert _events(store, job, events[-1][0]) == []


def test_whoever_began_sees_all(store: Store, clock: Clock) -> None:
    _begun(store, clock, attempts=3)
    (job,) = store.jobs("a")
    assert job.attempts == 3
    assert job.progress["seconds"] == 100.0
    assert len(_events(store, job)) == 106


def test_tenants_share_no_computation_where_that_is_set(tmp_path: Path) -> None:
    keys = {t: Store(tmp_path).keys.create(t, "")[1] for t in ("a", "b")}
    for share, computations in (("all", 1), ("tenant", 2)):
        with serving(tmp_path, share=share, most_wait=0.2) as s:
            model = share.encode()
            for key in (*keys.values(), *keys.values()):
                assert s.post(model, authorization=f"Bearer {key}").status_code == 202
            assert s.store.counts()["tasks"]["queued"] == computations
            while (claim := s.store.leases.claim("w", (0, 1))) is not None:
                blob = Blob(s.store.blobs.put(b"plan" + model), "application/json", 4 + len(model))
                s.store.leases.finish(claim, {"plan.json": blob}, {}, plan=blob.digest[:32])
            for key in keys.values():
                made = s.post(model, authorization=f"Bearer {key}", prefer="wait=1").json()
                at = f"{made['links']['artifacts']}/report.html"
                answer = s.client.get(at, headers={"authorization": f"Bearer {key}", "prefer": "wait=0"})
                assert answer.status_code == 202
            assert s.store.counts()["tasks"]["queued"] == computations
            while (claim := s.store.leases.claim("w", (0, 1))) is not None:
                s.store.leases.fail(claim, problem("input-invalid", "x"), lasting=False)
            lost = digest_bytes(b"plan" + model)
            s.store.blobs.path(lost).unlink()
            for key in keys.values():
                plan = f"/v1/plans/{lost[:32]}"
                s.client.get(plan, headers={"authorization": f"Bearer {key}", "prefer": "wait=0"})
            assert s.store.counts()["tasks"]["queued"] == computations
            while (claim := s.store.leases.claim("w", (0, 1))) is not None:
                s.store.leases.fail(claim, problem("input-invalid", "x"), lasting=False)


def test_what_is_computed_for_a_tenant_alone_is_done_by_workers_of_its_code(tmp_path: Path) -> None:
    with serving(tmp_path, share="tenant") as s:
        s.post(b"model")
        leases = s.store.leases
        leases.heartbeat("of this code", [], slots=1, code=code_digest())
        assert leases.claim("of other code", LANES, able=Able(frozenset(KINDS), "other")) is None
        assert leases.claim("of this code", LANES, able=Able(frozenset(KINDS), code_digest())) is not None


def test_workers_of_a_service_that_shares_nothing_answer_no_search_by_that_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for share, said in (("all", False), ("tenant", True)):
        assert ("--no-cache" in Workers(Settings(data=tmp_path, share=share))._command(1, 9)) == said
    seen: list[Any] = []

    class Recorded(Exception):
        pass

    class Searcher:
        def __init__(self, options: Any, store: Any, key: Any, *_: Any) -> None:
            seen.append(key)
            raise Recorded

    monkeypatch.setattr(searches, "Searcher", Searcher)
    monkeypatch.chdir(tmp_path)
    model = (Path(__file__).parents[2] / "sample_graphs" / "mlp.onnx").read_bytes()
    blobs = Store(tmp_path / "data").blobs
    inputs = {"model": blobs.put(model)}
    for cache in (tmp_path / "cache", None):
        folder = tmp_path / f"child {cache is None}"
        lay_in(blobs, inputs, folder)
        confinement = Confinement.of("off", [tmp_path])
        work = JobInput("plan", inputs, {"devices": 4, "name": "m"}, folder, Limits(), confinement, cache)
        with pytest.raises(Recorded):
            searches.search(work, Silent())
    assert seen[0] is not None
    assert seen[1] is None


class Silent:
    def __getattr__(self, name: str) -> Any:
        return lambda *_: None
