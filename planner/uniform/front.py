"""What less memory costs: for ever less of it, the fastest configuration that fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from planner.uniform.best import best_of
from planner.uniform.found import Scored
from planner.uniform.refine import refined
from planner.uniform.sample import Sample
from planner.uniform.space import Space

__all__ = ["time_memory_front"]

_LESS: Final = 0.1  # of the memory of one configuration, that the next one has to do without
_MOST: Final = 24  # configurations


def time_memory_front(
    sample: Sample, space: Space, best: Scored, stopped: Callable[[], bool] = lambda: False
) -> tuple[Scored, ...]:
    """From the `best` on, each slower than the one before and holding at least a tenth less; the last one is the
    fastest of those beside which nothing holds a tenth less.  Fewer where it is stopped."""
    found = [best]
    while len(found) < _MOST and not stopped():
        limit = int(found[-1].prediction.allocated_bytes * (1 - _LESS))
        met = best_of(sample, space, limit, stopped=stopped).best
        if not met:
            break
        found.append(refined(sample, space, limit, met[0], stopped, layouts=False))
    return tuple(_not_beaten(found))


def _not_beaten(found: list[Scored]) -> list[Scored]:
    """Without those that are slower than one that holds less: single changes may lead past what was found before."""
    front: list[Scored] = []
    for s in found:
        while front and front[-1].prediction.step_time_s >= s.prediction.step_time_s:
            front.pop()
        front.append(s)
    return front
