"""Whoever comes and whatever it takes: nobody starves, short work is soon answered, and long work is shared evenly.

Time passes as the simulation says, so that an hour of a busy service takes a second."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from planner.api.jobs.rotation import PAUSED, SLICE_S, TRIAL_S
from planner.api.jobs.store import Store
from planner.api.jobs.turns import LAG_MS
from tests.service.simulated import Machine

LAG_S = LAG_MS / 1000


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(Store(tmp_path, queue=10**6), slots=1)


def test_a_small_job_is_answered_within_thirty_seconds_while_another_holds_every_slot_for_hours(
    machine: Machine,
) -> None:
    for _ in range(3):
        machine.submit("a", 3600.0, long=True)
        machine.submit("a", 3600.0, long=False)  # as large, and expected to be small
    machine.run(300.0)
    for _ in range(5):
        found = [machine.submit("b", 3.0, long=False), machine.submit("b", 10.0, long=True)]
        machine.run(30.0)
        assert [made.ended is not None for made in found] == [True, True]


def test_small_jobs_that_run_for_longer_than_expected_are_not_set_aside_for_those_of_a_flood(machine: Machine) -> None:
    for _ in range(30):
        machine.submit("a", 60.0, long=False)
    machine.run(40.0)
    for _ in range(4):
        made = machine.submit("b", 9.0, long=False)  # and not the five seconds that short work has
        machine.run(20.0)
        assert made.ended is not None


def test_a_newcomer_is_not_shut_out_by_small_jobs_of_many_tenants(machine: Machine) -> None:
    for k in range(8):
        for _ in range(6):
            machine.submit(f"t{k}", 2.0, long=False)
    machine.run(10.0)
    made = machine.submit("b", 1.0, long=False)
    machine.run(8 * TRIAL_S)
    assert made.ended is not None


def test_long_work_is_shared_evenly_by_processor_time_not_by_tasks(machine: Machine) -> None:
    for _ in range(40):
        machine.submit("many", 20.0, long=True)
    machine.submit("one", 2000.0, long=True)
    machine.submit("another", 2000.0, long=True)
    for _ in range(8):
        machine.run(60.0)
        assert max(machine.used.values()) - min(machine.used[t] for t in ("many", "one", "another")) <= LAG_S + SLICE_S
    assert sum(machine.used.values()) == pytest.approx(480.0)  # nothing is lost by turns


def test_one_who_comes_back_after_long_neither_owns_the_machine_nor_waits_for_it(machine: Machine) -> None:
    machine.submit("a", 10_000.0, long=True)
    machine.run(1000.0)
    machine.submit("b", 10_000.0, long=True)
    machine.run(100.0)
    assert 50.0 - LAG_S / 2 <= machine.used["b"] <= 50.0 + LAG_S
    before = machine.used["a"]
    machine.run(100.0)
    assert machine.used["a"] - before == pytest.approx(50.0, abs=SLICE_S)


@pytest.mark.parametrize("seed", range(6))
def test_nobody_starves(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    machine = Machine(Store(tmp_path, queue=10**6), slots=draw.choice((1, 1, 2, 3)), room=draw.random() < 0.7)
    tenants = [f"t{k}" for k in range(draw.randint(2, 12))]
    for _ in range(40):
        tenant = draw.choice(tenants[:1] * 5 + tenants)
        long = draw.random() < 0.5
        work = draw.uniform(0.5, 4.0) if draw.random() < 0.5 else draw.uniform(20.0, 120.0)
        machine.submit(tenant, work, long=long)
        machine.run(draw.uniform(0.0, 8.0))
    total = sum(made.work for made in machine.made.values())
    sent_back = TRIAL_S * len(machine.made)  # at most once each, for what that had used
    machine.run(total + sent_back)
    assert [made for made in machine.made.values() if made.ended is None] == []
    assert machine.most_paused <= PAUSED * machine.slots
    for made in machine.made.values():
        if not made.long and made.work <= TRIAL_S - 0.5:
            assert made.ended is not None
            # Behind the short work of the others, which may be as much as turns may differ.
            assert made.ended - made.came <= len(tenants) * (LAG_S + TRIAL_S), made
