"""The longest path through the passes of a pipeline, in Python, until `use` puts something faster in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .dependencies import Dependencies

__all__ = ["KERNELS", "EndsOf", "PathTo", "ends_of", "path_to", "use"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
EndsOf = Callable[[Dependencies, Floats, Floats], Floats]
PathTo = Callable[[Dependencies, Floats, Floats, int, int], tuple[Integers, Integers]]


def ends_of(passes: Dependencies, lag: Floats, seconds: Floats) -> Floats:
    """When every pass ends that takes so many `seconds`, and begins once the pass before it on its device has ended
    and, `lag` seconds after it ended, the result of its source has arrived.  One entry more is 0: what index -1 finds.
    """
    found = [0.0] * (len(seconds) + 1)
    columns = passes.previous.tolist(), passes.source.tolist(), lag.tolist(), seconds.tolist()
    for number, (before, giver, delay, own) in enumerate(zip(*columns, strict=True)):
        free = found[before]
        arrival = found[giver] + delay
        found[number] = (free if free > arrival else arrival) + own
    return np.array(found)


def path_to(passes: Dependencies, lag: Floats, ends: Floats, at: int, boundaries: int) -> tuple[Integers, Integers]:
    """How many passes of each place the longest path to pass `at` has, and how many transfers over each boundary."""
    places = passes.devices * passes.kinds * passes.chunks
    counts, crossed = np.zeros(places, np.int64), np.zeros(boundaries + 1, np.int64)  # the last one: within a device
    columns = passes.previous.tolist(), passes.source.tolist(), lag.tolist(), ends.tolist()
    before, giver, delay, end = columns
    while at >= 0:
        counts[passes.place[at]] += 1
        if end[before[at]] >= end[giver[at]] + delay[at]:
            at = before[at]
        else:
            crossed[passes.boundary[at]] += 1
            at = giver[at]
    return counts, crossed[:-1]


@dataclass(slots=True)
class _Kernels:
    ends_of: EndsOf = ends_of
    path_to: PathTo = path_to


KERNELS = _Kernels()


def use(ends_of: EndsOf, path_to: PathTo) -> None:
    """From here on simulations go by these, which have to give the same to the last bit."""
    KERNELS.ends_of, KERNELS.path_to = ends_of, path_to
