"""What should be rare is counted in the transaction in which it happens, whoever asks for it later."""

from __future__ import annotations

import time

import pytest

from planner.api.jobs.leases import DEATHS
from planner.api.jobs.problems import problem
from planner.api.jobs.records import Claim
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import Task
from planner.api.jobs.totals import death
from tests.service.places import Place


def begun(store: Store, worker: str = "w") -> Claim:
    store.submit("a", Task("plan", {"model": store.blobs.put(b"a model")}, {}, code="c"), name="m")
    found = store.leases.claim(worker, (0, 1, 2))
    assert found is not None
    return found


def test_children_that_die_and_what_becomes_of_their_task(store: Store, place: Place) -> None:
    moment = time.time()
    held: Claim | None = begun(store)
    for k in range(DEATHS):
        assert held is not None
        store.leases.died(held, "SIGKILL" if k else "status 3")
        place.at(moment + 5.0 * (k + 1))
        held = store.leases.claim("w", (0, 1, 2))
    totals = place.open().totals()
    assert totals["deaths"] == {"SIGKILL": DEATHS - 1, "status": 1}
    assert totals["restarts"] == {"child-died": DEATHS - 1}
    assert totals["failures"] == {"child-died": 1}


def test_leases_that_are_lost_and_given_back(store: Store, place: Place) -> None:
    begun(store, "dead")
    store.leases.bury("dead")
    held = store.leases.claim("w", (0, 1, 2))
    assert held is not None
    store.leases.release(held)
    assert store.leases.claim("silent", (0, 1, 2)) is not None
    place.at(time.time() + 61.0)
    assert store.leases.claim("w", (0, 1, 2)) is not None
    totals = store.totals()
    assert totals["lost-leases"] == {"restarted": 2}
    assert totals["restarts"] == {"worker-lost": 2, "worker-stopped": 1}
    assert totals["deaths"] == {}


def test_problems_that_tasks_fail_with(store: Store) -> None:
    store.leases.fail(begun(store), problem("child-memory", "it wanted more"), lasting=False)
    assert store.totals()["failures"] == {"child-memory": 1}


def test_what_a_purge_removes(store: Store) -> None:
    store.leases.fail(begun(store), problem("internal", "x"), lasting=False)
    purged = store.purge(-1.0)
    assert purged.jobs == 1
    found = store.totals()["purged"]
    assert found["runs"] == 1
    assert (found["jobs"], found["tasks"]) == (purged.jobs, purged.tasks)
    store.purge(-1.0)
    assert store.totals()["purged"] == {**found, "runs": 2}


def test_children_that_stand_still(store: Store) -> None:
    held = begun(store)
    assert store.counts()["paused"] == 0
    store.leases.report(held, [], {"paused": True})
    assert store.counts()["paused"] == 1
    store.leases.report(held, [], {"paused": False})
    assert store.counts()["paused"] == 0


@pytest.mark.parametrize(
    ("how", "counted"),
    [
        ("SIGSEGV", "SIGSEGV"),
        ("status 1", "status"),
        ("its end is unknown", "unknown"),
        ("no process could be started", "not-started"),
        ("its result was not as it said", "invalid-result"),
        ("whatever a process that read a stranger's model has to say", "reader"),
    ],
)
def test_a_child_cannot_make_names_of_metrics(how: str, counted: str) -> None:
    assert death(how) == counted
