"""Configurations that most likely fit, to have one in hand before the fastest is found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from planner.clock import Configuration
from planner.clock.memory import state_bytes
from planner.cost_models import HardwareProfile
from planner.uniform.space import Space, levels, schedules

__all__ = ["likely"]

_SHARE: Final = 0.7  # of a device's memory that weights may take, with all that belongs to them
_ZERO: Final = 1  # the level that every schedule goes well with


def likely(
    every: Iterable[Configuration], space: Space, profile: HardwareProfile, elements: int, limit: int | None
) -> Iterator[Configuration]:
    """Of `every` configuration those of tensor parallelism within a server, few stages, the smallest micro-batches and
    all that is kept computed again; those that divide the model least first.  `elements`: of its weights."""
    server = profile.devices_per_server or space.devices
    found: dict[tuple[int, int], Configuration] = {}
    for c in every:
        if c.cp == c.ep == 1 and c.tp <= server and c.sequence_parallel == (c.tp > 1):
            known = found.get((c.pp, c.tp))
            if known is None or c.micro_batch < known.micro_batch:
                found[c.pp, c.tp] = c
    for pp, tp in sorted(found, key=lambda ranks: (ranks[0] * ranks[1], ranks[0])):
        plain = [s for s in schedules(space, found[pp, tp]) if s.order == "1f1b"]
        candidates = [v for s in plain[-1:] for v in levels(space, s)]
        if not candidates:
            continue
        c = min(candidates, key=lambda v: abs(v.zero - _ZERO))
        each = c.weight_bytes + c.gradient_bytes
        state = state_bytes(c) / (c.dp if c.zero else 1)
        if limit is None or elements / (pp * tp) * (each + state) <= _SHARE * limit:
            yield c
