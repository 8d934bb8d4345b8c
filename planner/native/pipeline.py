"""The longest path through the passes of a pipeline (`pipeline.c`); that of `planner.cost_models.pipeline` on machines
without the compiled library."""

from __future__ import annotations

import ctypes

import numpy as np

from planner.cost_models.pipeline import longest
from planner.cost_models.pipeline.longest import Floats, Indices, Integers
from planner.native.library import library, pointer

__all__ = ["ends_of", "path_to"]


def ends_of(previous: Indices, source: Indices, lag: Floats, seconds: Floats) -> Floats:
    """As of `longest.EndsOf`."""
    native = library()
    if native is None:
        return longest.ends_of(previous, source, lag, seconds)
    count = len(previous)
    ends = np.empty(count + 1)
    floats = pointer(lag), pointer(seconds), pointer(ends)
    native.pipeline_ends(ctypes.c_int64(count), pointer(previous), pointer(source), *floats)
    return ends


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
    """As of `longest.PathTo`."""
    native = library()
    if native is None:
        return longest.path_to(
            at, ends, previous, source, lag, place, boundary, places=places, boundaries=boundaries
        )  # fmt: skip
    counts, crossed = np.zeros(places, np.int64), np.zeros(boundaries + 1, np.int64)
    native.pipeline_path(
        ctypes.c_int64(len(previous)),
        *(pointer(previous), pointer(source), pointer(lag), pointer(ends), pointer(place), pointer(boundary)),
        *(ctypes.c_int64(boundaries), ctypes.c_int64(at), pointer(counts), pointer(crossed)),
    )
    return counts, crossed[:-1]
