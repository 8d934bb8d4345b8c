"""Whether one way for attention to go about the sequence is in no respect better than another.

The two differ in the seconds of passes and the bytes of units alone, with which the step of a schedule and what a
device holds grow: weights lie alike, and are exchanged alike.  Where the ranks of one way take
at least as long, and hold at least as much, in every unit, in a small micro-batch and in a large one, each of its
configurations is at best as good as the same one with the other way.  But beside tensor parallelism heads are exchanged
among neighbours, so that data-parallel ranks lie otherwise: an exchange of heads is compared without it alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from planner.clock import CONTEXTS, Configuration, Context
from planner.clock.memory import chunk_activation_bytes
from planner.clock.passes import passes_of
from planner.cost_models import HardwareProfile
from planner.trace import Workload

__all__ = ["no_better", "others"]

_ROUNDING: Final = 1e-9
_RECOMPUTES: Final = ("none", "selective", "full")


def others(c: Configuration, contexts: Iterable[Context] = CONTEXTS) -> Iterator[Configuration]:
    """The configuration with every other of these ways for attention to go about the sequence, with which it may be
    compared."""
    for context in contexts if c.cp > 1 else ():
        if context != c.context and (c.tp == 1 or "all-to-all" not in (context, c.context)):
            yield c.with_(context=context)


def no_better(mine: Workload, other: Workload, c: Configuration, profile: HardwareProfile) -> bool:
    """Whether a rank with the workload `mine` takes at least as long in every pass through every unit, and holds at
    least as much of it, as one with the `other`; both are run as `c`."""
    if len(mine.units) != len(other.units):
        return False
    pairs = {(id(a), id(b)): i for i, (a, b) in enumerate(zip(mine.units, other.units, strict=True))}
    for run in (c.with_(recompute=recompute) for recompute in _RECOMPUTES):
        own, theirs = _numbers(mine, run, profile, pairs.values()), _numbers(other, run, profile, pairs.values())
        if any(x < y * (1 - _ROUNDING) for x, y in zip(own, theirs, strict=True)):
            return False
    return True


def _numbers(workload: Workload, c: Configuration, profile: HardwareProfile, of: Iterable[int]) -> Iterator[float]:
    """Seconds, bytes and elements of the units with these numbers."""
    times = passes_of(workload, c, profile).units
    for i in of:
        unit = workload.units[i]
        yield from (times[i].forward.seconds, times[i].back, chunk_activation_bytes(workload, c, (i,)))
        yield from (float(unit.over_bytes), float(unit.weights))
