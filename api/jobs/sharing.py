"""How a worker shares its places among tenants: it meters what children use, and carries out what `rotation` says."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.api.jobs.errors import LeaseLost
from planner.api.jobs.lanes import LARGE, LIGHT
from planner.api.jobs.laying import Laying
from planner.api.jobs.leases import Leases
from planner.api.jobs.rotation import PAUSED, SLICE_S, TRIAL_S, Move, next_move
from planner.api.jobs.slot import Slot
from planner.api.jobs.spells import cpu_of, memory_of
from planner.api.jobs.turns import ANY, Able

__all__ = ["Sharing"]

IDLE = 0.1  # of the time for which a place is held, what counts as used at least
LOOK_S = 0.25  # between two looks whether another has a turn

log = logging.getLogger("planner.worker")


@dataclass(slots=True)
class Sharing:
    """`memory_bytes`: what paused children may hold together; `able`: what the worker can do."""

    leases: Leases
    slots: int
    memory_bytes: int
    able: Able = ANY
    _used: dict[str, float] = field(default_factory=dict)  # seconds by tenant, not yet charged
    _looked: float = 0.0

    def lanes(self, held: Sequence[Slot | Laying]) -> tuple[int, ...]:
        """Those that there is a place for."""
        running = [s for s in held if not s.paused]
        heavy = sum(s.heavy for s in running)
        if len(running) > self.slots:
            return ()
        begun = heavy + len(held) - len(running)
        return (*LIGHT, LARGE) if heavy < self.slots and begun < self.slots * (1 + PAUSED) else LIGHT

    def meter(self, slot: Slot) -> None:
        """Notes what a child has used since the last time: processor time, and for holding a place a tenth of the time
        at least.  A child that has gone is metered as it was last seen."""
        used = max(slot.metered_s, cpu_of(slot.child.pid), IDLE * slot.spells.ran())
        self._used[slot.tenant] = self._used.get(slot.tenant, 0.0) + used - slot.metered_s
        slot.metered_s = used

    def used(self) -> dict[str, float]:
        """Seconds by tenant that have been noted and not been charged."""
        return dict(self._used)

    def charged(self, used: Mapping[str, float]) -> None:
        """These are in the store by now."""
        for tenant, seconds in used.items():
            self._used[tenant] -= seconds
            if self._used[tenant] <= 0:
                del self._used[tenant]

    def step(self, held: Sequence[Slot]) -> bool:
        """Pauses and resumes, as far as it is due; whether a place has become free.  StoreError."""
        if not self._due(held):
            return False
        self._looked = time.monotonic()
        moved = False
        for _ in range(2 * len(held) + 2):
            standing = self.leases.standing((s.claim.tenant for s in held), able=self.able)
            found = next_move(held, standing, self.slots, lambda s: self._fits(s, held))
            if found is None:
                break
            self._carry_out(*found)
            moved = True
        return moved

    def _due(self, held: Sequence[Slot]) -> bool:
        paused = sum(s.paused for s in held)
        if paused and len(held) - paused <= self.slots:
            return True  # whoever is paused has the place before short work that waits
        if time.monotonic() < self._looked + LOOK_S:
            return False
        return any(s.paused or s.spell() >= (SLICE_S if s.heavy else TRIAL_S) for s in held)

    def _fits(self, slot: Slot, held: Sequence[Slot]) -> bool:
        groups = {s.child.pid for s in held if s.paused} | {slot.child.pid}
        return memory_of(groups) <= self.memory_bytes

    def _carry_out(self, move: Move, slot: Slot) -> None:
        log.info("task %d: %s", slot.claim.task, move.value)
        try:
            match move:
                case Move.DEMOTE:
                    slot.heavy = True
                    self.leases.move(slot.claim, LARGE)
                case Move.PAUSE:
                    slot.pause()
                case Move.RESUME:
                    slot.resume()
                case Move.SEND_BACK:
                    self.leases.release(slot.claim, move.value)
                    slot.drop()
        except LeaseLost as e:
            log.warning("%s", e)
            slot.drop()
