"""A worker's places without processes, and without a clock: time passes where the test says so."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from planner.api.jobs.lanes import LARGE
from planner.api.jobs.records import Claim
from planner.api.jobs.rotation import Move, next_move
from planner.api.jobs.sharing import Sharing
from planner.api.jobs.spells import Spells
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import Task

__all__ = ["Machine", "Made"]

TICK_S = 0.5
LEASE_S = 1e9
WIDE = {"mesh": "2x2x2x2"}


@dataclass(slots=True)
class Made:
    """A task of `work` seconds, as the simulation knows it; moments are those of the simulation."""

    tenant: str
    work: float
    came: float
    long: bool
    ended: float | None = None


@dataclass(slots=True)
class Fake:
    """What `rotation` sees of a child."""

    machine: Machine
    claim: Claim
    left: float
    heavy: bool
    spells: Spells
    ending: bool = False

    @property
    def tenant(self) -> str:
        return self.claim.tenant

    @property
    def light(self) -> bool:
        return self.claim.lane != LARGE

    @property
    def paused(self) -> bool:
        return self.spells.paused

    def spell(self) -> float:
        return self.spells.spell(self.machine.now)

    def ran(self) -> float:
        return self.spells.ran(self.machine.now)


@dataclass(slots=True)
class Machine:
    """`room`: whether there is memory for paused children."""

    store: Store
    slots: int
    room: bool = True
    now: float = 0.0
    held: list[Fake] = field(default_factory=list)
    made: dict[int, Made] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)
    most_paused: int = 0

    def submit(self, tenant: str, work: float, *, long: bool) -> Made:
        """`long`: it is expected to be; what it takes is another matter."""
        options = {"n": len(self.made), **(WIDE if long else {})}
        task = self.store.ensure(Task("plan", {}, options, code="c"), tenant).id
        self.made[task] = made = Made(tenant, work, self.now, long)
        return made

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.tick()

    def tick(self) -> None:
        self._move()
        self._claim()
        used: Counter[str] = Counter()
        self.now += TICK_S
        self.held = [c for c in self.held if not c.ending]
        for child in [c for c in self.held if not c.paused]:
            used[child.tenant] += TICK_S
            child.left -= TICK_S
            if child.left <= 0:
                self.held.remove(child)
                self.made[child.claim.task].ended = self.now
                self.store.leases.fail(child.claim, None, lasting=False)
        self.used.update(used)
        self.store.leases.heartbeat("w", [], used=used)
        self.most_paused = max(self.most_paused, sum(c.paused for c in self.held))

    def _move(self) -> None:
        for _ in range(100):
            standing = self.store.leases.standing(c.tenant for c in self.held)
            found = next_move(self.held, standing, self.slots, lambda _: self.room)
            if found is None:
                return
            move, child = found
            match move:
                case Move.DEMOTE:
                    child.heavy = True
                    self.store.leases.move(child.claim, LARGE)
                case Move.PAUSE:
                    child.spells.pause(self.now)
                case Move.RESUME:
                    child.spells.resume(self.now)
                case Move.SEND_BACK:
                    self.store.leases.release(child.claim)
                    child.ending = True  # its process is there for a moment still
        raise AssertionError(f"after a hundred moves there is still one: {found}")

    def _claim(self) -> None:
        seen: Any = self.held
        while lanes := Sharing(self.store.leases, self.slots, 0).lanes(seen):
            claim = self.store.leases.claim("w", lanes, LEASE_S)
            if claim is None:
                return
            work = self.made[claim.task].work
            self.held.append(Fake(self, claim, work, claim.lane == LARGE, Spells(self.now)))
        running = [c for c in self.held if not c.paused]
        assert len(running) <= self.slots + 1
        assert sum(c.heavy and not c.ending for c in running) <= self.slots
