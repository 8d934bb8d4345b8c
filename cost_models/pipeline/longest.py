"""The longest path through the passes of a pipeline, in Python, until `use` puts something faster in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["KERNELS", "EndsOf", "PathTo", "ends_of", "path_to", "use"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Indices = NDArray[np.int32]


class EndsOf(Protocol):
    def __call__(self, previous: Indices, source: Indices, lag: Floats, seconds: Floats) -> Floats:
        """When every pass ends that takes so many `seconds`, and begins once the `previous` pass of its device has
        ended and, `lag` seconds after it ended, the result of its `source` has arrived; -1: none.  Passes stand behind
        what they wait for.  One entry more is 0."""
        ...


class PathTo(Protocol):
    def __call__(
        self,
        at: int,
        ends: Floats,
        previous: Indices,
        source: Indices,
        lag: Floats,
        place: Indices,
        boundary: Indices,
        *,
        places: int,
        boundaries: int,
    ) -> tuple[Integers, Integers]:
        """How many passes of each place the longest path to a pass has, and how many transfers over each boundary."""
        ...


def ends_of(previous: Indices, source: Indices, lag: Floats, seconds: Floats) -> Floats:
    """As of `EndsOf`."""
    found = [0.0] * (len(previous) + 1)  # the last one is what index -1 finds
    columns = previous.tolist(), source.tolist(), lag.tolist(), seconds.tolist()
    for number, (before, giver, delay, own) in enumerate(zip(*columns, strict=True)):
        free = found[before]
        arrival = found[giver] + delay
        found[number] = (free if free > arrival else arrival) + own
    return np.array(found)


def path_to(
    at: int,
    ends: Floats,
    previous: Indices,
    source: Indices,
    lag: Floats,
    place: Indices,
    boundary: Indices,
    *,
    places: int,
    boundaries: int,
) -> tuple[Integers, Integers]:
    """As of `PathTo`."""
    counts, crossed = np.zeros(places, np.int64), np.zeros(boundaries + 1, np.int64)  # the last one: within a device
    end, before, giver, delay = ends.tolist(), previous.tolist(), source.tolist(), lag.tolist()
    while at >= 0:
        counts[place[at]] += 1
        if end[before[at]] >= end[giver[at]] + delay[at]:
            at = before[at]
        else:
            crossed[boundary[at]] += 1
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
