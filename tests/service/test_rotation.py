"""Single decisions of a worker that is full."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest

from planner.api.jobs.rotation import SLICE_S, TRIAL_S, Move, next_move
from planner.api.jobs.sharing import Sharing
from planner.api.jobs.turns import Head, Standing

TURNS = {"much": 20_000, "little": 1_000}


@dataclass(frozen=True)
class Child:
    tenant: str
    light: bool = True
    heavy: bool = True
    paused: bool = False
    ending: bool = False
    seconds: float = TRIAL_S

    def spell(self) -> float:
        return 0.0 if self.paused else self.seconds

    def ran(self) -> float:
        return self.seconds


def decided(*held: Child, light: str | None = None, heavy: str | None = None, room: bool = True) -> object:
    heads = [None if tenant is None else Head(tenant, 9, TURNS.get(tenant, 0)) for tenant in (light, heavy)]
    return next_move(held, Standing(heads[0], heads[1], TURNS), 1, lambda _: room)


def test_what_is_ending_pushes_nobody_out() -> None:
    assert decided(Child("little"), Child("much", ending=True), light="much") is None


def test_the_tenant_with_the_most_to_its_account_is_sent_back() -> None:
    flood, small = Child("much", seconds=TRIAL_S + 1), Child("little")
    paused = Child("much", paused=True)
    assert decided(flood, small, paused, light="much") == (Move.SEND_BACK, flood)
    assert decided(small, flood, light="much", room=False) == (Move.SEND_BACK, flood)


def test_who_is_paused_has_a_free_place_before_what_waits() -> None:
    paused = Child("little", paused=True)
    assert decided(paused, Child("much", heavy=False), light="much", heavy="much") == (Move.RESUME, paused)
    assert decided(Child("much", paused=True), heavy="little") is None  # it is claimed


@pytest.mark.parametrize(("seconds", "moves"), [(SLICE_S - 1, False), (SLICE_S, True)])
def test_long_work_keeps_its_place_for_a_slice(seconds: float, moves: bool) -> None:
    running = Child("much", light=False, seconds=seconds)
    assert decided(running, heavy="little") == ((Move.PAUSE, running) if moves else None)
    assert decided(running, heavy="much") is None


def test_short_work_keeps_its_place_while_nothing_waits() -> None:
    long = Child("much", heavy=False, seconds=3600.0)
    assert decided(long, Child("much", light=False), light=None) is None
    assert decided(long, Child("much", light=False), light="little") == (Move.DEMOTE, long)


def test_a_place_that_becomes_free_is_looked_at_before_anything_is_claimed() -> None:
    leases: Any = None
    sharing = Sharing(leases, slots=1, memory_bytes=0, _looked=time.monotonic())
    paused, running = Child("little", paused=True), Child("much", seconds=1.0)
    held: Any = [paused, running]
    assert sharing._due(held)
    held += [running]
    assert not sharing._due(held)  # it is full
