"""Results that can be made again take a bounded part of the store: what is used stays, and what jobs have."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from planner.api.jobs.blobs import Blob
from planner.api.jobs.errors import NotFound
from planner.api.jobs.eviction import Eviction, evict
from planner.api.jobs.lanes import INTERACTIVE, LARGE, SMALL
from planner.api.jobs.records import Claim, TaskState
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import Task
from tests.service.http import serving

SIZE = 1000


def made(store: Store, kind: str, name: str) -> TaskState:
    """A result of `SIZE` bytes that no job refers to, last asked for long ago."""
    state = store.ensure(Task(kind, {"plan.json": store.blobs.put(b"{}")}, {"name": name}, code="code"), "a")
    finish(store, name)
    old(store, state.id)
    return store.state(state.id)


def finish(store: Store, name: str) -> None:
    held = store.leases.claim("w", (INTERACTIVE, SMALL, LARGE), 60.0)
    assert isinstance(held, Claim)
    content = name.encode().ljust(SIZE)
    store.leases.finish(held, {name: Blob(store.blobs.put(content), "text/html", SIZE)}, {}, plan=None)


def old(store: Store, task: int, seconds: float = 10_000.0) -> None:
    with store.database.write() as db:
        db.execute("UPDATE tasks SET used_at = used_at - ? WHERE id = ?", (seconds, task))


def there(store: Store, state: TaskState) -> bool:
    try:
        return store.state(state.id).status == "succeeded"
    except NotFound:
        return False


def test_what_was_unused_for_longest_goes_first_and_its_bytes_with_it(store: Store) -> None:
    first, second, third = (made(store, "artifact", name) for name in ("first", "second", "third"))
    old(store, second.id)
    digest = next(iter(second.result.values())).digest
    assert evict(store.database, store.blobs, 3 * SIZE).tasks == 0
    removed = evict(store.database, store.blobs, 2 * SIZE)
    assert (removed.tasks, removed.bytes) == (1, SIZE)
    assert [there(store, s) for s in (first, second, third)] == [True, False, True]
    assert digest not in store.blobs or store.database.remote
    assert evict(store.database, store.blobs, 2 * SIZE).tasks == 0


def test_what_somebody_has_just_asked_for_stays(store: Store) -> None:
    state = made(store, "artifact", "report.html")
    task = Task("artifact", {"plan.json": store.blobs.put(b"{}")}, {"name": "report.html"}, code="code")
    assert store.ensure(task, "b").id == state.id
    assert evict(store.database, store.blobs, 0).tasks == 0
    assert there(store, state)


def test_what_a_job_refers_to_is_not_evicted(store: Store) -> None:
    task = Task("evaluation", {"model": store.blobs.put(b"model")}, {"strategy": "ddp"}, code="code")
    job = store.submit("a", task, name="m").job
    finish(store, "evaluation.json")
    old(store, job.task)
    assert evict(store.database, store.blobs, 0).tasks == 0
    assert store.job("a", job.id).status == "succeeded"


def test_bytes_that_another_result_has_stay(store: Store) -> None:
    first, other = made(store, "artifact", "same"), made(store, "diff", "same")
    old(store, first.id)
    assert evict(store.database, store.blobs, SIZE).tasks == 1
    assert not there(store, first)
    assert all(blob.digest in store.blobs for blob in other.result.values())


def test_an_evicted_result_is_made_again(store: Store) -> None:
    state = made(store, "artifact", "report.html")
    assert evict(store.database, store.blobs, 0).tasks == 1
    task = Task("artifact", {"plan.json": store.blobs.put(b"{}")}, {"name": "report.html"}, code="code")
    again = store.ensure(task, "a")
    assert again.id != state.id
    assert not again.ended


def test_a_worker_looks_after_some_results_that_are_no_plans() -> None:
    looked = threading.Semaphore(0)
    eviction = Eviction(looked.release, every=3)
    for kind in ("artifact", "plan", "diff", "plan"):
        eviction.finished(kind)
    assert not looked.acquire(timeout=0.05)
    eviction.finished("artifact")
    assert looked.acquire(timeout=10)


@pytest.mark.parametrize("size", ["", "-1", "many"])
def test_a_size_that_is_none_is_refused(tmp_path: Path, size: str, capsys: pytest.CaptureFixture[str]) -> None:
    from planner.cli.main import main

    with pytest.raises(SystemExit) as end:
        main(["worker", "--data", str(tmp_path), "--artifact-bytes", size])
    assert end.value.code == 2
    assert "--artifact-bytes" in capsys.readouterr().err


def test_an_evicted_report_is_served_again(tmp_path: Path) -> None:
    with serving(tmp_path) as s:
        at = f"/v1/plans/{s.planned()}/artifacts/report.html"
        for content in (b"<!doctype html>first", b"<!doctype html>second"):
            worker = s.working({"report.html": content})
            answer = s.client.get(at)
            worker.join()
            assert (answer.status_code, answer.content) == (200, content)
            assert s.client.get(at).content == content
            with s.store.database.write() as db:
                db.execute("UPDATE tasks SET used_at = used_at - 10000 WHERE kind = 'artifact'")
            assert s.store.evict(1).tasks == 1
