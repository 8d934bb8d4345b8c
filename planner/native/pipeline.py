"""The longest path through the passes of a pipeline (`pipeline.c`), with the same in Python for machines without the
compiled library."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from planner.native.library import library, pointer

__all__ = ["ends_of", "path_to"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Indices = NDArray[np.int32]


def ends_of(previous: Indices, source: Indices, lag: Floats, seconds: Floats) -> Floats:
    """When every pass ends that takes so many `seconds`, and begins once the `previous` pass of its device has ended
    and, `lag` seconds after it ended, the result of its `source` has arrived; -1: none.  Passes stand behind what they
    wait for.  One entry more is 0."""
    count = len(previous)
    native = library()
    if native is not None:
        ends = np.empty(count + 1)
        floats = pointer(lag), pointer(seconds), pointer(ends)
        native.pipeline_ends(ctypes.c_int64(count), pointer(previous), pointer(source), *floats)
        return ends
    found = [0.0] * (count + 1)  # the last one is what index -1 finds
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
    """How many passes of each place the longest path to a pass has, and how many transfers over each boundary."""
    counts, crossed = np.zeros(places, np.int64), np.zeros(boundaries + 1, np.int64)  # the last one: within a device
    native = library()
    if native is not None:
        native.pipeline_path(
            ctypes.c_int64(len(previous)),
            *(pointer(previous), pointer(source), pointer(lag), pointer(ends), pointer(place), pointer(boundary)),
            *(ctypes.c_int64(boundaries), ctypes.c_int64(at), pointer(counts), pointer(crossed)),
        )
        return counts, crossed[:-1]
    end, before, giver, delay = ends.tolist(), previous.tolist(), source.tolist(), lag.tolist()
    while at >= 0:
        counts[place[at]] += 1
        if end[before[at]] >= end[giver[at]] + delay[at]:
            at = before[at]
        else:
            crossed[boundary[at]] += 1
            at = giver[at]
    return counts, crossed[:-1]
