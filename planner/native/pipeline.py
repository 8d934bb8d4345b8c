"""The longest path through the passes of a pipeline (`pipeline.c`); that of `planner.cost_models.pipeline` on machines
without the compiled library."""

from __future__ import annotations

import ctypes

import numpy as np

from planner.cost_models.pipeline import longest
from planner.cost_models.pipeline.dependencies import Dependencies
from planner.cost_models.pipeline.longest import Floats, Integers
from planner.native.library import library, pointer

__all__ = ["ends_of", "path_to"]


def ends_of(passes: Dependencies, lag: Floats, seconds: Floats) -> Floats:
    """As `longest.ends_of`."""
    native = library()
    if native is None:
        return longest.ends_of(passes, lag, seconds)
    count = len(seconds)
    ends = np.empty(count + 1)
    floats = pointer(lag), pointer(seconds), pointer(ends)
    native.pipeline_ends(ctypes.c_int64(count), pointer(passes.previous), pointer(passes.source), *floats)
    return ends


def path_to(passes: Dependencies, lag: Floats, ends: Floats, at: int, boundaries: int) -> tuple[Integers, Integers]:
    """As `longest.path_to`."""
    native = library()
    if native is None:
        return longest.path_to(passes, lag, ends, at, boundaries)
    counts = np.zeros(passes.devices * passes.kinds * passes.chunks, np.int64)
    crossed = np.zeros(boundaries + 1, np.int64)
    native.pipeline_path(
        ctypes.c_int64(len(lag)),
        *(pointer(passes.previous), pointer(passes.source), pointer(lag), pointer(ends)),
        *(pointer(passes.place), pointer(passes.boundary)),
        *(ctypes.c_int64(boundaries), ctypes.c_int64(at), pointer(counts), pointer(crossed)),
    )
    return counts, crossed[:-1]
