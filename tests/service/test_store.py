"""The store: what was accepted stays, equal tasks are one, results are seen once, tenants take turns."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from planner.api.jobs import blobs
from planner.api.jobs.blobs import Blob, Blobs, digest_bytes
from planner.api.jobs.endings import LOSSES
from planner.api.jobs.errors import (
    BlobDamaged,
    BlobMissing,
    IdempotencyConflict,
    LeaseLost,
    NotFound,
    QueueFull,
    StoreConflict,
    StoreDamaged,
    StoreFull,
    StoreUnusable,
)
from planner.api.jobs.lanes import INTERACTIVE, LARGE, SMALL
from planner.api.jobs.leases import DEATHS
from planner.api.jobs.problems import problem
from planner.api.jobs.records import Claim
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import Task, code_digest
from tests.service.earlier import STATES, made_by_version, write_as_version_2
from tests.service.places import Place

LANES = (INTERACTIVE, SMALL, LARGE)


@pytest.fixture
def embedded(tmp_path: Path) -> Store:
    """For what is of SQLite alone."""
    return Store(tmp_path / "service", queue=20)


def task(store: Store, content: str = "model", kind: str = "plan", **options: object) -> Task:
    return Task(kind, {"model": store.blobs.put(content.encode())}, options, code="code")


def claim(store: Store, worker: str = "w", lease_s: float = 60.0) -> Claim:
    found = store.leases.claim(worker, LANES, lease_s)
    assert found is not None
    return found


def finish(store: Store, held: Claim, content: bytes = b"plan", **more: object) -> str:
    digest = store.blobs.put(content)
    files = {"plan.json": Blob(digest, "application/json", len(content))}
    store.leases.finish(held, files, {"objective_s": 1.0}, plan=digest[:32], **more)  # type: ignore[arg-type]
    return digest[:32]


def test_equal_tasks_of_two_tenants_are_computed_once_and_seen_by_both(store: Store) -> None:
    a = store.submit("a", task(store), name="m").job
    b = store.submit("b", task(store), name="n").job
    held = claim(store)
    assert store.leases.claim("w", LANES) is None
    plan = finish(store, held)
    for tenant, job, name in (("a", a, "m"), ("b", b, "n")):
        found = store.job(tenant, job.id)
        assert (found.status, found.plan, found.name, found.summary) == ("succeeded", plan, name, {"objective_s": 1.0})
        assert store.blobs.read(store.plan(tenant, plan).files["plan.json"].digest) == b"plan"
    late = store.submit("c", task(store), name="o").job
    assert (late.status, late.plan) == ("succeeded", plan)
    assert late.started_at is not None
    assert late.started_at >= late.created_at
    assert [e.type for e in store.events("c", late.id)] == ["queued", "started", "succeeded"]


def test_tenants_do_not_see_each_other(store: Store) -> None:
    job = store.submit("a", task(store), name="m").job
    plan = finish(store, claim(store))
    for look in (store.job, store.cancel, store.events):
        with pytest.raises(NotFound):
            look("b", job.id)
    with pytest.raises(NotFound):
        store.plan("b", plan)
    with pytest.raises(NotFound):
        store.forget("b", plan)
    assert store.jobs("b") == []
    assert store.plans("b") == []
    assert [p.id for p in store.plans("a")] == [plan]
    store.forget("a", plan)
    assert store.plans("a") == []
    assert store.job("a", job.id).plan is None


def test_an_idempotency_key_names_one_job(store: Store) -> None:
    first = store.submit("a", task(store), name="m", idempotency="k", fingerprint="f")
    again = store.submit("a", task(store), name="m", idempotency="k", fingerprint="f")
    assert (first.created, again.created, again.job.id) == (True, False, first.job.id)
    assert store.submit("b", task(store), name="m", idempotency="k", fingerprint="g").created
    with pytest.raises(IdempotencyConflict):
        store.submit("a", task(store), name="m", idempotency="k", fingerprint="g")


def test_pages_of_jobs_are_newest_first_and_without_gaps(store: Store) -> None:
    made = [store.submit("a", task(store, str(i % 3)), name=str(i)).job.id for i in range(7)]
    seen: list[str] = []
    while page := store.jobs("a", limit=2, after=seen[-1] if seen else None):
        seen += [j.id for j in page]
    assert sorted(seen, reverse=True) == seen
    assert set(seen) == set(made)
    claim(store)
    assert {j.status for j in store.jobs("a", status="running")} == {"running"}


def test_tenants_take_turns_and_what_a_person_waits_for_comes_first(store: Store) -> None:
    for i in range(5):
        store.submit("flood", task(store, f"f{i}"), name=str(i))
    store.submit("a", task(store, "a"), name="a")
    store.submit("b", task(store, "b"), name="b")
    quick = store.ensure(task(store, "x", kind="artifact", name="report.html"), "flood")
    order = [claim(store) for _ in range(4)]
    assert order[0].task == quick.id
    served = [store.blobs.read(c.inputs["model"]).decode() for c in order[1:]]
    assert served == ["a", "b", "f0"]  # the flood was served last


def test_a_tenant_may_have_so_many_waiting_and_no_more(store: Store) -> None:
    for i in range(20):
        store.submit("a", task(store, str(i)), name="m")
    with pytest.raises(QueueFull):
        store.submit("a", task(store, "more"), name="m")
    with pytest.raises(QueueFull):
        store.ensure(task(store, "more", kind="artifact"), "a")
    store.submit("b", task(store, "more"), name="m")
    claim(store)
    assert len(store.jobs("a")) == 20


def test_a_lost_lease_is_taken_over_and_the_first_holder_can_write_nothing(store: Store, place: Place) -> None:
    job = store.submit("a", task(store), name="m").job
    zombie = claim(store, "w1")
    assert store.leases.claim("w2", LANES) is None
    place.at(time.time() + 61.0)
    heir = claim(store, "w2")
    assert (heir.task, heir.attempt) == (zombie.task, 2)
    assert heir.token > zombie.token
    for write in (
        lambda: finish(store, zombie, b"other"),
        lambda: store.leases.fail(zombie, problem("internal", "x"), lasting=True),
        lambda: store.leases.report(zombie, [("phase", {})]),
        lambda: store.leases.died(zombie, "x"),
        lambda: store.leases.release(zombie),
    ):
        with pytest.raises(LeaseLost):
            write()
    assert store.leases.heartbeat("w1", [zombie]).lost == {zombie.task}
    assert store.job("a", job.id).status == "running"
    plan = finish(store, heir)
    with pytest.raises(LeaseLost):
        finish(store, heir, b"again")
    assert store.job("a", job.id).plan == plan
    types = [e.type for e in store.events("a", job.id)]
    assert types == ["queued", "started", "restarted", "started", "succeeded"]
    assert [e.seq for e in store.events("a", job.id)] == [1, 2, 3, 4, 5]


def test_a_heartbeat_keeps_a_lease(store: Store, place: Place) -> None:
    store.submit("a", task(store), name="m")
    held = claim(store)
    begun = time.time()
    for k in range(1, 5):
        place.at(begun + 45.0 * k)
        assert store.leases.heartbeat("w", [held], slots=2, lease_s=60.0).lost == frozenset()
        assert store.leases.claim("w2", LANES) is None
    assert store.counts()["slots"] == 2


def test_a_task_that_kills_its_child_fails_after_three_times(store: Store) -> None:
    job = store.submit("a", task(store), name="m").job
    for k in range(DEATHS):
        held = None
        while held is None:
            held = store.leases.claim("w", LANES)
            time.sleep(0.02)
        assert store.leases.died(held, "SIGSEGV") == (k < DEATHS - 1)
    found = store.job("a", job.id)
    assert found.status == "failed"
    assert found.error is not None
    assert found.error["type"].endswith("child-died")
    assert store.submit("a", task(store), name="m").job.status == "queued"  # a passing reason: begun anew
    assert store.job("a", job.id).status == "failed"


def test_a_task_that_loses_its_workers_fails_in_the_end(store: Store) -> None:
    job = store.submit("a", task(store), name="m").job
    for _ in range(LOSSES):
        held = claim(store, "w1")
        store.leases.bury("w1")
        with store.database.write() as db:
            db.execute("UPDATE queue SET not_before = 0")  # a suspect waits
        with pytest.raises(LeaseLost):
            store.leases.release(held)
    assert store.leases.claim("w", LANES) is None
    assert store.job("a", job.id).status == "failed"


def test_a_failure_of_the_request_is_kept_and_a_passing_one_is_not(store: Store) -> None:
    for lasting, again in ((True, "failed"), (False, "queued")):
        one = task(store, str(lasting), kind="artifact")
        state = store.ensure(one)
        store.leases.fail(claim(store), problem("target-refuses", "no"), lasting=lasting)
        told = store.state(state.id)
        assert told.status == "failed"
        assert told.error is not None
        assert told.error["status"] == 422
        assert store.ensure(one).status == again


def test_cancelling_leaves_what_others_want(store: Store) -> None:
    a, b = (store.submit(t, task(store), name="m").job for t in "ab")
    held = claim(store)
    gone = store.cancel("a", a.id)
    assert (gone.status, gone.plan) == ("cancelled", None)
    assert store.leases.ends_requested([held]).cancelled == frozenset()
    store.leases.report(held, [("phase", {"phase": "searching"})], {"gap": 0.5})
    plan = finish(store, held)
    assert store.job("b", b.id).plan == plan
    assert store.job("a", a.id).status == "cancelled"
    assert [e.type for e in store.events("a", a.id)] == ["queued", "started", "cancelled"]
    assert store.events("a", a.id, after=3) == []
    assert store.plans("a") == []


def test_cancelling_a_search_ends_with_the_best_plan_so_far(store: Store) -> None:
    job = store.submit("a", task(store), name="m").job
    held = claim(store)
    assert store.cancel("a", job.id).status == "running"
    assert store.leases.heartbeat("w", [held]).cancelled == {held.task}
    fresh = store.submit("b", task(store), name="m").job  # not joined to what is being ended
    assert fresh.status == "queued"
    plan = finish(store, held, cancelled=True)
    found = store.job("a", job.id)
    assert (found.status, found.plan) == ("cancelled", plan)
    assert store.plan("a", plan).id == plan
    assert store.cancel("a", job.id).status == "cancelled"


def test_cancelling_what_waits_ends_it_at_once(store: Store) -> None:
    job = store.submit("a", task(store), name="m").job
    assert store.cancel("a", job.id).status == "cancelled"
    assert store.leases.claim("w", LANES) is None
    assert store.submit("a", task(store), name="m").job.status == "queued"


def test_a_task_asked_to_end_whose_worker_is_lost_has_ended(store: Store) -> None:
    job = store.submit("a", task(store), name="m").job
    claim(store, lease_s=0.0)
    store.cancel("a", job.id)
    time.sleep(0.001)
    assert store.leases.claim("w", LANES) is None
    assert store.job("a", job.id).status == "cancelled"


def test_a_released_task_waits_again_for_everyone(store: Store) -> None:
    a, b = (store.submit(t, task(store), name="m").job for t in "ab")
    store.leases.release(claim(store))
    assert store.job("a", a.id).status == store.job("b", b.id).status == "queued"
    assert claim(store).attempt == 2


def test_an_input_that_is_not_kept_is_refused(store: Store) -> None:
    with pytest.raises(BlobMissing):
        store.submit("a", Task("plan", {"model": digest_bytes(b"never put")}, {}, code="c"), name="m")


def test_a_result_whose_blob_is_gone_or_damaged_is_computed_again(store: Store) -> None:
    one = task(store, kind="artifact", name="report.html")
    for spoil in ("remove", "damage"):
        state = store.ensure(one)
        assert state.status == "queued"
        content = b"page"
        digest = store.blobs.put(content)
        store.leases.finish(claim(store), {"report.html": Blob(digest, "text/html", 4)}, {})
        assert store.ensure(one).status == "succeeded"
        if spoil == "remove":
            store.blobs.path(digest).unlink()
        else:
            store.blobs.path(digest).write_bytes(b"p4ge")
            with pytest.raises(BlobDamaged):
                store.blobs.read(digest)
    again = store.recover(digest)
    assert again is not None
    assert again.status == "queued"
    assert store.ensure(dataclasses.replace(one, code=code_digest())).id == again.id
    assert store.recover(digest_bytes(b"nobody's")) is None


def test_keys_are_shown_once_and_revoked_at_once(store: Store, place: Place) -> None:
    key, secret = store.keys.create("a", "laptop")
    assert store.keys.authenticate(secret) == "a"
    assert store.keys.authenticate(secret + "x") is None
    with store.database.read() as db:
        assert not any(secret in str(column) for row in db.execute("SELECT * FROM keys") for column in tuple(row))
    assert not any(secret.encode() in path.read_bytes() for path in place.folder.glob("store.sqlite*"))
    other = place.open()
    other.keys.revoke(key)
    assert store.keys.authenticate(secret) is None
    assert [(k.id, k.revoked_at is not None) for k in store.keys.list("a")] == [(key, True)]
    with pytest.raises(NotFound):
        store.keys.revoke("nobody")


def test_the_version_tells_of_anyones_writing_and_not_of_reading(embedded: Store) -> None:
    before = embedded.version()
    embedded.jobs("a")
    assert embedded.version() == before
    embedded.submit("a", task(embedded), name="m")
    own = embedded.version()
    assert own != before
    Store(embedded.folder).submit("b", task(embedded, "n"), name="n")
    assert embedded.version() != own


def test_purging_takes_what_is_old_and_unnamed_and_nothing_else(store: Store) -> None:
    done = store.submit("a", task(store, "old"), name="m").job
    plan = finish(store, claim(store))
    waiting = store.submit("a", task(store, "waiting"), name="m").job
    young = store.blobs.put(b"being submitted")
    orphan = store.blobs.put(b"orphan")
    for digest in store.blobs.digests():
        if digest != young:
            os.utime(store.blobs.path(digest), (0, 0))
    kept = store.purge(retention_s=3600)
    assert (kept.jobs, kept.tasks, kept.blobs) == (0, 0, 1)
    assert orphan not in store.blobs
    gone = store.purge(retention_s=-1)
    assert (gone.jobs, gone.plans, gone.tasks) == (1, 1, 1)
    with pytest.raises(NotFound):
        store.job("a", done.id)
    with pytest.raises(NotFound):
        store.plan("a", plan)
    assert store.job("a", waiting.id).status == "queued"
    assert store.blobs.read(claim(store).inputs["model"]) == b"waiting"
    assert young in store.blobs


def test_a_blob_is_whole_or_not_there(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs")
    digest = blobs.put(b"content")
    assert blobs.read(digest) == b"content"
    assert digest in blobs
    assert blobs.put(b"content") == digest
    with pytest.raises(BlobMissing):
        blobs.read(digest_bytes(b"x"))
    for hostile in ("../../etc/passwd", "", digest.upper(), digest + "/x"):
        assert hostile not in blobs
        with pytest.raises(ValueError, match="hexadecimal"):
            blobs.path(hostile)
    blobs.path(digest).write_bytes(b"con")
    with pytest.raises(BlobDamaged):
        blobs.read(digest)
    assert blobs.put(b"content") == digest
    assert blobs.read(digest) == b"content"


def test_a_blob_just_put_is_never_purged(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs")
    over = threading.Event()

    def purge() -> None:
        while not over.is_set():
            blobs.purge(lambda _: False, young_s=0.3)

    thread = threading.Thread(target=purge)
    thread.start()
    try:
        for k in range(150):
            digest = blobs.put(str(k % 5).encode())
            assert blobs.read(digest) == str(k % 5).encode()
            if k % 3 == 0:
                os.utime(blobs.path(digest), (0, 0))  # grown old, and about to be removed
    finally:
        over.set()
        thread.join()


def test_a_full_disk_is_said_and_nothing_is_half_kept(embedded: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = task(embedded)
    job = embedded.submit("a", kept, name="m").job

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreFull):
            embedded.blobs.put(b"new")
    assert digest_bytes(b"new") not in embedded.blobs
    assert not list(embedded.blobs.folder.rglob(".tmp-*"))
    db = embedded.database._connection()
    db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")
    with pytest.raises(StoreFull):
        embedded.submit("a", kept, name="x" * 200_000)
    db.execute("PRAGMA max_page_count = 1000000")
    embedded.database.check()
    assert embedded.job("a", job.id).status == "queued"
    assert embedded.submit("a", kept, name="m").created


def test_many_threads_submit_and_claim_without_loss(store: Store, place: Place) -> None:
    failures: list[BaseException] = []

    def submit(tenant: str) -> None:
        try:
            for i in range(15):
                store.submit(tenant, task(store, f"{tenant}{i}"), name=str(i))
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=submit, args=(t,)) for t in "abcd"]
    for t in threads:
        t.start()
    other = place.open()
    claimed: list[int] = []
    while len(claimed) < 60 and not failures:
        held = other.leases.claim("w", LANES)
        if held is not None:
            claimed.append(held.task)
    for t in threads:
        t.join()
    assert not failures
    assert len(set(claimed)) == 60


def test_what_was_accepted_survives_a_kill(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from planner.api.jobs.store import Store; from planner.api.jobs.tasks import Task\n"
        "s = Store(Path(sys.argv[1]), queue=10**6)\n"
        "for i in range(10**6):\n"
        "    model = s.blobs.put(str(i % 7).encode())\n"
        "    j = s.submit('a', Task('plan', {'model': model}, {'i': i}, code='c'), name='m')\n"
        "    print(j.job.id, flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    accepted = [child.stdout.readline().strip() for _ in range(25)]
    child.kill()
    accepted += [line.strip() for line in child.stdout if len(line) == 33]
    child.wait()
    child.stdout.close()
    store = Store(tmp_path)
    store.database.check()
    assert {store.job("a", j).status for j in accepted} == {"queued"}


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises(StoreDamaged, match=r"store\.sqlite"):
        Store(tmp_path)


def test_a_torn_database_is_noticed(embedded: Store) -> None:
    for i in range(20):
        embedded.submit("a", task(embedded, str(i), note="x" * 2000), name="m")
    path = embedded.database.path
    db = sqlite3.connect(path)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    content = bytearray(path.read_bytes())
    content[4096 : len(content) - 4096] = b"\xa5" * (len(content) - 8192)
    path.write_bytes(bytes(content))
    with pytest.raises(StoreDamaged):
        Store(embedded.folder).database.check()


def test_a_store_of_a_later_version_is_left_alone(embedded: Store) -> None:
    db = sqlite3.connect(embedded.database.path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreUnusable, match="newer"):
        Store(embedded.folder)


def test_who_waits_is_known_however_tasks_leave_the_queue(store: Store) -> None:
    def waiting() -> dict[str, int]:
        with store.database.read() as db:
            found = {row["tenant"]: row["tasks"] for row in db.execute("SELECT tenant, tasks FROM waiting")}
            rows = db.execute("SELECT tenant, COUNT(*) AS n FROM queue GROUP BY tenant").fetchall()
        assert found == {row["tenant"]: row["n"] for row in rows}
        return found

    for k in range(3):
        for tenant in "ab":
            store.submit(tenant, task(store, str(k)), name="m")
    assert waiting() == {"a": 3, "b": 3}
    store.leases.release(claim(store))
    assert waiting() == {"a": 3, "b": 3}
    claim(store)
    for job in store.jobs("a", "queued"):
        store.cancel("a", job.id)
    assert waiting() == {"b": 2}
    with store.database.write() as db:
        db.execute("DELETE FROM jobs")
        db.execute("DELETE FROM tasks")
    assert waiting() == {}


def test_counts_are_of_everything(store: Store) -> None:
    store.submit("a", task(store), name="m")
    store.submit("b", task(store), name="m")
    counts = store.counts()
    assert (counts["tasks"]["queued"], counts["jobs"]["queued"], counts["workers"]) == (1, 2, 0)
    assert json.dumps(counts)


def test_a_plan_outlives_the_last_job_that_has_it(store: Store, place: Place) -> None:
    now, day = time.time(), 86400.0
    place.at(now - 30 * day)
    plan = _planned(store)
    place.at(now - day)
    again = store.submit("a", task(store), name="m").job
    assert again.plan == plan
    place.at(now)
    store.purge(20 * day)
    assert store.job("a", again.id).plan == plan
    assert store.blobs.read(store.plan("a", plan).files["plan.json"].digest) == b"plan"
    place.at(now + 40 * day)
    purged = store.purge(20 * day)
    assert (purged.jobs, purged.plans, purged.tasks) == (1, 1, 1)


def test_a_job_that_joins_does_not_tell_when_others_asked(store: Store, place: Place) -> None:
    now = time.time()
    place.at(now - 1000)
    _planned(store)
    place.at(now)
    job = store.submit("b", task(store), name="m").job
    assert {e.at for e in store.events("b", job.id)} == {job.created_at}


def test_another_request_for_a_finished_task_gives_its_plan_to_nobody_else(store: Store) -> None:
    plan = _planned(store)
    store.forget("a", plan)
    store.submit("b", task(store), name="m")
    assert [p.tenant for t in ("a", "b") for p in store.plans(t)] == ["b"]


def test_a_task_that_pauses_is_begun_also_when_the_clock_was_set_back(store: Store, place: Place) -> None:
    store.submit("a", task(store), name="m")
    store.leases.died(claim(store), "a signal")
    assert store.leases.claim("w", LANES) is None
    now = time.time()
    place.at(now - 3600)
    assert claim(store)


def _planned(store: Store) -> str:
    """Id of the plan of a job of tenant a."""
    store.submit("a", task(store), name="m")
    return finish(store, claim(store))


def test_the_folders_that_lead_to_a_blob_are_durable_before_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(blobs, "sync_folder", synced.append)
    kept = Blobs(tmp_path / "data" / "blobs")
    path = kept.path(kept.put(b"content"))
    assert synced == [tmp_path, tmp_path / "data", tmp_path / "data" / "blobs", path.parent]
    synced.clear()
    with kept.spool() as file:
        file.write(b"another")
        path = kept.path(digest_bytes(b"another"))
        kept.adopt(file, path.name)
    assert synced[-2:] == [kept.folder, path.parent]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_store_of_an_earlier_version_is_changed_into_todays(tmp_path: Path, version: int) -> None:
    made_by_version(version, tmp_path / "old")
    store = Store(tmp_path / "old")
    assert {j.name: j.status for j in store.jobs("a")} == {s: s for s in STATES} | {"left": "cancelled"}
    assert {s: {j.name for j in store.jobs("a", s)} for s in STATES} == {
        **{s: {s} for s in STATES},
        "cancelled": {"cancelled", "left"},
    }
    counts = store.counts()
    with store.database.read() as db:
        assert [tuple(row) for row in db.execute("SELECT * FROM waiting")] == [(SMALL, "a", 1, 1)]
    assert counts["tasks"] == dict.fromkeys(STATES, 1)
    assert counts["jobs"] == {"queued": 1, "running": 1, "ended": 4}
    claim(store)
    Store(tmp_path / "new")
    assert _shape(tmp_path / "old") == _shape(tmp_path / "new")


def test_a_program_of_the_version_before_may_go_on_writing(embedded: Store) -> None:
    """It was running when a newer one changed the store, and knows nothing of the columns that follow from others."""
    db = sqlite3.connect(embedded.database.path)
    write_as_version_2(db, 1, "queued")
    db.execute(
        "INSERT INTO jobs (id, tenant, name, task, created_at, fingerprint) VALUES (?, 'a', 'm', 1, 1.0, '')",
        ("1" * 32,),
    )
    db.commit()
    assert [j.name for j in embedded.jobs("a", "queued")] == ["m"]
    db.execute("UPDATE tasks SET status = 'running' WHERE id = 1")
    db.commit()
    assert [j.name for j in embedded.jobs("a", "running")] == ["m"]
    db.execute("UPDATE jobs SET left_at = 2.0, cut = 1 WHERE task = 1")
    db.execute("UPDATE tasks SET status = 'succeeded' WHERE id = 1")
    db.commit()
    db.close()
    assert [j.name for j in embedded.jobs("a", "cancelled")] == ["m"]
    counts = embedded.counts()
    assert (counts["tasks"]["succeeded"], counts["jobs"]) == (1, {"queued": 0, "running": 0, "ended": 1})


def _shape(folder: Path) -> list[tuple[str, str, str]]:
    with sqlite3.connect(folder / "store.sqlite") as db:
        found = [
            (kind, name, "".join((sql or "").split()))  # where a column was added, lines break elsewhere
            for kind, name, sql in db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name")
        ]
        version = db.execute("PRAGMA user_version").fetchone()[0]
    db.close()
    return [*found, ("version", "", str(version))]


def test_what_no_name_can_be_names_nothing(store: Store) -> None:
    for look in (store.job, store.plan, store.events, store.forget, store.cancel):
        with pytest.raises(NotFound):
            look("a", "a\0b")


def test_what_others_were_in_the_way_of_is_begun_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job = store.submit("a", task(store), name="m").job.id
    store.cancel("a", job)
    write, tries = store.database.write, iter((True, False))

    def write_behind_others(*, durable: bool = True) -> Any:
        if next(tries):
            raise StoreConflict("others wrote to the same rows")
        return write(durable=durable)

    monkeypatch.setattr(store.database, "write", write_behind_others)
    store.forget_job("a", job)
    assert store.jobs("a") == []


def test_an_artifact_that_begins_again_waits_for_the_tenant_that_asked(store: Store) -> None:
    store.ensure(task(store, kind="artifact"), "a")
    for again in (store.leases.release, store.leases.lost):
        held = claim(store)
        assert held.tenant == "a"
        again(held, "it was given back")
    assert claim(store).tenant == "a"
