"""How many layers each stage of a pipeline holds where stages stand on devices of different kinds.

What a stage takes for a micro-batch depends on which layers it holds and on its devices; what it holds, besides, on how
many micro-batches wait in it, which the schedule says of its place.  So every place has a table of seconds over (first
layer, last layer), inf where its devices have no memory for them, and the layers are cut so that

    seconds = t_1 + t_2 + … + (passes - 1) max(t_1, t_2, …)

is least (`planner.search.stages`, exactly).  Transfers between stages pass beside computing and are the same wherever
the layers are cut; what happens once a step (gradients summed, weights updated) is left to the clock, which judges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from planner.clock import Configuration
from planner.clock.exchange import Exchanges
from planner.clock.memory import chunk_activation_bytes, held_bytes
from planner.clock.passes import passes_of
from planner.clock.stages import kinds_of, layers_of
from planner.clock.step import chunk_times
from planner.cost_models.pipeline import ChunkTimes, pipeline_seconds
from planner.search.stages import layers_by_stage
from planner.trace import Workload
from planner.uniform.mixed.cluster import Kind

__all__ = ["layers_cut", "waiting"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """`units`: of each part of the model that does something else than any other; `of[a, b]`: the part that layers a to
    b are, with what stands before the first layer and behind the last."""

    units: tuple[range, ...]
    of: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """Of each part: bytes that are there whatever waits, and bytes of a micro-batch that waits."""

    there: NDArray[np.float64]
    waiting: NDArray[np.float64]


def layers_cut(workload: Workload, c: Configuration, stages: tuple[Kind, ...]) -> tuple[int, ...] | None:
    """Layers of each stage, by the kind of devices each stands on; None where no way to cut fits.

    One chunk a stage: schedules with several have no place here.
    """
    parts = _once(workload, "parts", lambda: _found_parts(workload))
    if parts.of.shape[0] < c.pp:
        return None
    held = _once(workload, ("held", _alone(c)), lambda: _held(workload, c, parts))
    fitting = []
    for kind, count in zip(stages, waiting(c.order, c.pp, c.passes), strict=True):
        sizes = np.round(held.there + count * held.waiting)
        fitting.append(np.full(len(sizes), True) if kind.memory_limit is None else sizes <= kind.memory_limit)
    if not all(f.any() for f in fitting):
        return None
    found = layers_by_stage([np.where(f, 0.0, np.inf)[parts.of] for f in fitting], 1)
    if found is None:
        return None
    seconds = {}
    for kind in dict.fromkeys(stages):
        count = stages.count(kind)
        key = "seconds", _alone(c), id(kind.profile), count
        seconds[kind] = _once(workload, key, partial(_seconds, workload, c, parts, kind, count))
    tables = [np.where(f, seconds[k], np.inf)[parts.of] for k, f in zip(stages, fitting, strict=True)]
    found = layers_by_stage(tables, c.passes)
    return None if found is None else tuple(s.end - s.first for s in found.stages)


@lru_cache(maxsize=256)
def waiting(order: str, stages: int, passes: int) -> tuple[float, ...]:
    """Micro-batches that wait in each stage at most, which depends on the order of passes alone."""
    one = ChunkTimes(1.0, 2.0, 1.0, 1.0, activation_bytes=1.0)
    return pipeline_seconds(order, [(one,)] * stages, min(passes, 4 * stages)).activation_bytes


_KNOWN: WeakKeyDictionary[Workload, dict[object, Any]] = WeakKeyDictionary()


def _once(workload: Workload, key: object, make: Callable[[], T]) -> T:
    """What was made for the workload under this key; profiles are kept by the passes that they price."""
    known = _KNOWN.setdefault(workload, {})
    if key not in known:
        known[key] = make()
    return known[key]


def _alone(c: Configuration) -> Configuration:
    """What times and bytes of a part depend on."""
    return c.with_(pp=1, stage_layers=None, schedule="1f1b")


def _found_parts(workload: Workload) -> _Parts:
    layers, kinds = layers_of(workload), kinds_of(workload)
    starts = [0, *(u + 1 for u in layers[:-1])]
    ends = [*(u + 1 for u in layers[:-1]), len(workload.units)]
    tied = {u for t in workload.tied for u in t.units}
    numbers: dict[tuple[object, ...], int] = {}
    units: list[range] = []
    of = np.zeros((len(layers), len(layers)), dtype=np.int64)
    for a, begin in enumerate(starts):
        for b in range(a, len(layers)):
            part = range(begin, ends[b])
            key = *kinds[begin : ends[b]], *(-1 - u for u in tied if u in part)
            if key not in numbers:
                numbers[key] = len(units)
                units.append(part)
            of[a, b] = numbers[key]
    return _Parts(tuple(units), of)


def _held(workload: Workload, c: Configuration, parts: _Parts) -> _Held:
    alone = _alone(c)
    there = [held_bytes(workload, alone, [part], 0, 0.0).total for part in parts.units]
    return _Held(np.array(there), np.array([chunk_activation_bytes(workload, alone, part) for part in parts.units]))


def _seconds(workload: Workload, c: Configuration, parts: _Parts, kind: Kind, stages: int) -> NDArray[np.float64]:
    """Of a micro-batch through each part, on one of so many stages of the kind."""
    passes = passes_of(workload, c.with_(pp=stages, stage_layers=None), kind.profile)
    alone = _alone(c)
    exchange = Exchanges(workload, alone, passes, parts.units)
    times = (chunk_times(workload, alone, exchange, k) for k in range(len(parts.units)))
    return np.array([t.forward_s + t.backward_s for t in times])
