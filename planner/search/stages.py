"""Layers dealt to the stages of a pipeline, exactly, as plain arrays.

A pipeline of stages that take t_1, t_2, … seconds for a micro-batch, both passes together, needs for B micro-batches

    seconds = t_1 + t_2 + … + (B - 1) max(t_1, t_2, …)

Source: Zheng et al., Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning, OSDI 2022,
section 5 (formulas 2 to 5).  Once no stage may take longer than some t, the least sum is a dynamic programme over the
layers still to be placed and the devices still to be used; the optimum is the least of (sum within t) + (B - 1) t over
all t that stages take.

Alpa tries these t one after the other.  Here the least sum within t is known to fall as t grows, so that between two
of them, `low` and `high`, nothing is cheaper than (sum within `high`) + (B - 1) (the next t above `low`): intervals
whose bound is no better than the best found are closed, the others halved.  Nothing is rounded: the optimum is exact.

`stages_on_devices` is Alpa's problem: each stage takes a submesh, all devices are used.  Devices may be of several
kinds: a way to run a stage says how many it takes of each.  `layers_by_stage` is the problem where it is settled on
which devices the first stage stands, and the second, and so on; only where the layers are cut is open.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Stage", "Stages", "layers_by_stage", "stages_on_devices"]

Floats = NDArray[np.float64]
_MOST_STATES: Final = 1 << 22  # counts of devices left, by kind
_MOST_CELLS: Final = 1 << 25  # of these, times layers and ways: 256 MB


class Stage(NamedTuple):
    """Layers `first` to `end` - 1, run in this `way`: an index into the last axis of the table of seconds, and 0 where
    there is no such axis."""

    first: int
    end: int
    way: int


@dataclass(frozen=True, slots=True)
class Stages:
    """`seconds` of all micro-batches with these stages, recomputed from the table; `tried`: how often the least sum
    within a limit was found."""

    seconds: float
    stages: tuple[Stage, ...]
    tried: int


def stages_on_devices(seconds: ArrayLike, takes: ArrayLike, devices: ArrayLike, micro_batches: int) -> Stages | None:
    """The fastest pipeline that uses all devices.

    Args:
        seconds: [i, j, w] of a stage that holds layers i to j (both included) and runs in way w, for one micro-batch;
            inf where there is no such stage.  What lies below the diagonal is not read.
        takes: [w, k], devices of kind k that way w takes; or [w] where all devices are of one kind.
        devices: of each kind; or one figure.
        micro_batches: of a step.

    Returns:
        None where no way to use all devices has finite seconds.

    Raises:
        ValueError: tables whose shapes do not go together, counts out of range, or more states than fit in memory.
    """
    table, each, counts = _checked(seconds, takes, devices, micro_batches)
    shifts = _Shifts(each, counts)
    layers, _, ways = table.shape
    if shifts.states * (layers + 1) * ways > _MOST_CELLS:
        raise ValueError(
            f"stages: {layers} layers, {ways} ways and {shifts.states:,} counts of devices left are more states than "
            "are kept; merge layers, or leave ways out"
        )

    def within(limit: float) -> tuple[float, list[Stage]]:
        return _least_sum(np.where(table <= limit, table, np.inf), shifts)

    return _best(within, table, lambda s: float(table[s.first, s.end - 1, s.way]), micro_batches)


def layers_by_stage(seconds: Sequence[ArrayLike], micro_batches: int) -> Stages | None:
    """The fastest pipeline of as many stages as there are tables, in their order.

    Args:
        seconds: of each stage a table [i, j] as of `stages_on_devices`: of the stage at this place if it holds layers i
            to j.  What a place adds (a device that is slow, or that has no memory for so many) stands in its table.
        micro_batches: of a step.

    Returns, Raises: as `stages_on_devices`.
    """
    if not seconds:
        raise ValueError("stages: expected at least one table, found none")
    stacked = np.stack([np.asarray(s, dtype=np.float64) for s in seconds], axis=-1)
    table = _above(stacked, len(seconds), micro_batches).transpose(2, 0, 1)

    def within(limit: float) -> tuple[float, list[Stage]]:
        return _least_cut(np.where(table <= limit, table, np.inf))

    def own(s: Stage) -> float:
        return float(table[s.way, s.first, s.end - 1])

    found = _best(within, table, own, micro_batches)
    return found and Stages(found.seconds, tuple(s._replace(way=0) for s in found.stages), found.tried)


# The slowest stage


def _best(
    within: Callable[[float], tuple[float, list[Stage]]],
    values: Floats,
    own: Callable[[Stage], float],
    micro_batches: int,
) -> Stages | None:
    """The least of (sum within t) + (B - 1) t; `within`: the least sum of stages that take at most t each, and these
    stages; `values`: all that stages may take; `own`: what one takes."""
    limits = np.unique(values[np.isfinite(values)])
    if not len(limits):
        return None
    best: Stages | None = None
    tried = 0

    def look(at: int) -> float:
        nonlocal best, tried
        tried += 1
        total, stages = within(float(limits[at]))
        if stages:
            times = [own(s) for s in stages]
            cost = sum(times) + (micro_batches - 1) * max(times)
            if best is None or cost < best.seconds:
                best = Stages(cost, tuple(stages), tried)
        return total

    last = len(limits) - 1
    least = look(last)  # nothing is cheaper than without a limit
    if best is None:
        return None
    # Intervals: a bound of all limits in it, its ends, and the least sum within the upper one, which is looked at.
    open_ = [(least + (micro_batches - 1) * float(limits[0]), 0, last, least)]
    while open_:
        bound, low, high, least = heapq.heappop(open_)
        if bound >= best.seconds or low == high:
            continue
        middle = (low + high) // 2
        total = look(middle)
        if np.isfinite(total):
            heapq.heappush(open_, (total + (micro_batches - 1) * float(limits[low]), low, middle, total))
        after = least + (micro_batches - 1) * float(limits[middle + 1])
        heapq.heappush(open_, (after, middle + 1, high, least))
    return Stages(best.seconds, best.stages, tried)


# The least sum within a limit


class _Shifts:
    """Devices left, as one number each: by kind, the last kind fastest."""

    def __init__(self, takes: NDArray[np.int64], devices: NDArray[np.int64]) -> None:
        sizes = devices + 1
        self.states = int(np.prod(sizes, dtype=np.float64)) if len(sizes) else 1
        if self.states > _MOST_STATES:
            raise ValueError(
                f"stages: {self.states:,} counts of devices left by kind are more than are kept; count in units that "
                "divide all submeshes"
            )
        left = np.stack(np.unravel_index(np.arange(self.states), tuple(sizes)), axis=1)
        strides = np.append(np.cumprod(sizes[::-1])[::-1][1:], 1)
        enough = (left[None, :, :] >= takes[:, None, :]).all(axis=2)
        # From so many devices left, the number of those that are left when a stage has taken its own: (ways, states);
        # where there are not enough, the place behind the last, which stays inf.
        self.after = np.where(enough, np.arange(self.states)[None, :] - (takes @ strides)[:, None], self.states)


def _least_sum(table: Floats, shifts: _Shifts) -> tuple[float, list[Stage]]:
    """The least sum of seconds of stages that hold all layers and use all devices; inf and none without such."""
    layers, _, ways = table.shape
    # least[k, d]: of layers k and behind on exactly the devices d; moved[w, k, d]: once way w took its own of them.
    least = np.full((layers + 1, shifts.states + 1), np.inf)
    moved = np.full((ways, layers + 1, shifts.states), np.inf)
    least[layers, 0] = 0.0
    for k in range(layers, -1, -1):
        if k < layers:
            ahead = table[k, k:, :].T[:, :, None] + moved[:, k + 1 :, :]
            least[k, :-1] = ahead.min(axis=(0, 1))
        moved[:, k, :] = least[k][shifts.after]
    total = float(least[0, shifts.states - 1])
    stages: list[Stage] = []
    k, d = 0, shifts.states - 1
    while np.isfinite(total) and k < layers:
        ahead = table[k, k:, :] + moved[:, k + 1 :, d].T
        j, way = np.unravel_index(int(np.argmin(ahead)), ahead.shape)
        stages.append(Stage(k, k + int(j) + 1, int(way)))
        k, d = stages[-1].end, int(shifts.after[way, d])
    return total, stages


def _least_cut(table: Floats) -> tuple[float, list[Stage]]:
    """As `_least_sum`, the stage at place p by table[p]; the place stands where the way does."""
    places, layers, _ = table.shape
    # least[p, k]: of layers k and behind on places p and behind.
    least = np.full((places + 1, layers + 1), np.inf)
    least[places, layers] = 0.0
    for p in range(places - 1, -1, -1):
        least[p, :layers] = (table[p] + least[p + 1, None, 1:]).min(axis=1)
    total, stages, k = float(least[0, 0]), [], 0
    for p in range(places if np.isfinite(total) else 0):
        end = int(np.argmin(table[p, k] + least[p + 1, 1:])) + 1
        stages.append(Stage(k, end, p))
        k = end
    return total, stages


# Arguments


def _checked(
    seconds: ArrayLike, takes: ArrayLike, devices: ArrayLike, micro_batches: int
) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    table = np.asarray(seconds, dtype=np.float64)
    each, counts = np.asarray(takes, dtype=np.int64), np.atleast_1d(np.asarray(devices, dtype=np.int64))
    if each.ndim == 1 and len(counts) == 1:
        each = each[:, None]
    if each.ndim != 2 or each.shape[1] != len(counts):
        raise ValueError(f"stages: takes: expected (ways, {len(counts)} kinds of devices), found shape {each.shape}")
    table = _above(table, len(each), micro_batches)
    if (each < 0).any() or (each.sum(axis=1) < 1).any() or (counts < 0).any():
        raise ValueError("stages: expected at least one device for every way, and no count below 0")
    return table, each, counts


def _above(table: Floats, ways: int, micro_batches: int) -> Floats:
    """The table [i, j, w], checked, with inf below its diagonal."""
    layers = table.shape[0] if table.ndim else 0
    shape = (layers, layers, ways)
    if table.shape != shape or 0 in shape:
        raise ValueError(f"stages: seconds: expected shape {shape} of at least 1 each, found {table.shape}")
    table = np.where(np.triu(np.ones((layers, layers), dtype=np.bool_))[:, :, None], table, np.inf)
    if np.isnan(table).any() or (table < 0).any():
        raise ValueError("stages: seconds: expected figures of at least 0, or inf, found others")
    if micro_batches < 1:
        raise ValueError(f"stages: micro_batches: expected at least 1, found {micro_batches}")
    return table
