"""Which of a worker's children run: short work does not wait for long work, and tenants' long work runs in slices.

A worker has `slots` places for long work and one more, which short work alone may have.  What outstays the lanes of
short work counts as long from then on.  Where more is begun than there are places, children are paused and resumed, so
that tenants have the places in turns.  This is arithmetic on what the worker holds: it touches no process and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol, TypeVar

from planner.api.jobs.turns import Standing

__all__ = ["PAUSED", "SLICE_S", "TRIAL_S", "Held", "Move", "next_move"]

TRIAL_S = 5.0  # what short work has before it counts as long, where other work waits
SLICE_S = 10.0  # what long work has before another tenant's has its place
PAUSED = 8  # children that a worker may keep paused for each of its places, memory permitting


class Held(Protocol):
    """A child of the worker.  `light`: it came by a lane of short work; `heavy`: it counts as long; `ending`: it is
    to end."""

    @property
    def tenant(self) -> str: ...
    @property
    def light(self) -> bool: ...
    @property
    def heavy(self) -> bool: ...
    @property
    def paused(self) -> bool: ...
    @property
    def ending(self) -> bool: ...
    def spell(self) -> float: ...
    def ran(self) -> float: ...


class Move(Enum):
    DEMOTE = "it counts as long from now on"
    PAUSE = "it gives its place to another"
    RESUME = "it goes on"
    SEND_BACK = "it begins again among the long ones, as there is no room to keep it paused"


H = TypeVar("H", bound=Held)


def next_move(held: Sequence[H], now: Standing, slots: int, fits: Callable[[H], bool]) -> tuple[Move, H] | None:
    """What to do next, until there is nothing; `fits`: whether there is memory to keep one more paused."""
    running = [h for h in held if not h.paused]
    heavy = [h for h in running if h.heavy]
    paused = [h for h in held if h.paused]

    def turn(h: H) -> tuple[int, float]:
        return now.turns.get(h.tenant, 0), h.spell()

    def may_pause(h: H) -> bool:
        return len(paused) < slots * PAUSED and fits(h)

    movable = [h for h in heavy if not h.ending]
    if len(movable) > slots:
        victim = max(movable, key=lambda h: (now.turns.get(h.tenant, 0), h.light, -h.ran()))
        # A flood of short work that is none must not fill the room that there is for paused children.
        if sum(p.tenant == victim.tenant for p in paused) < slots and may_pause(victim):
            return Move.PAUSE, victim
        light = [h for h in movable if h.light]
        sent = max(light, key=lambda h: (now.turns.get(h.tenant, 0), -h.ran()), default=None)
        return None if sent is None else (Move.SEND_BACK, sent)

    lacking = len(heavy) < slots
    if len(running) > slots and (now.light is not None or (lacking and (paused or now.heavy is not None))):
        outstaying = [h for h in running if not h.heavy and not h.ending and h.spell() >= TRIAL_S]
        if outstaying:
            return Move.DEMOTE, max(outstaying, key=turn)

    resumable = min(paused, key=turn, default=None)
    # Another begins only where it may be paused in its turn: what is begun is bounded.
    head = now.heavy if len(heavy) + len(paused) < slots * (1 + PAUSED) else None
    if lacking:
        if resumable is None or len(running) > slots:
            return None
        waits = head is not None and head.tenant != resumable.tenant and head.turn < turn(resumable)[0]
        return None if waits else (Move.RESUME, resumable)

    contenders = [(turn(resumable)[0], resumable.tenant)] if resumable is not None else []
    contenders += [(head.turn, head.tenant)] if head is not None else []
    ready = [h for h in movable if h.spell() >= SLICE_S]
    if contenders and ready:
        victim = max(ready, key=turn)
        least, tenant = min(contenders)
        if tenant != victim.tenant and least < turn(victim)[0] and may_pause(victim):
            return Move.PAUSE, victim
    return None
