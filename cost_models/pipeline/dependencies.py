"""What each pass of a schedule waits for, and what its order alone tells: passes in flight.

All of it depends on the schedule and on three numbers, not on times; it is found once and kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from .orders import Codes, device_order, is_split, occurrences, stage_numbers

__all__ = ["Dependencies", "dependencies"]

IntArray = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Dependencies:
    """The passes of a schedule, each after everything it waits for.

    Attributes:
        devices, chunks, kinds: p, v, and 2 or 3 (F, B, and W where the backward pass is split).
        stages: (p, v) virtual stage of every chunk.
        previous: (passes,) the pass before it on its device; -1: none.
        source: (passes,) the pass whose result it receives from another chunk; -1: none.
        boundary: (passes,) stage boundary that result crosses between devices, s for s and s + 1; -1: none.
        place: (passes,) index into a table (p, kinds, v) of what the pass is.
        micro_batch: (passes,).
        in_flight: (p,) most micro-batch-chunks between the begin of F and the end of B.
        held: per device, (moments, (kinds - 1) · v) counts per chunk of micro-batches waiting for B, then for W,
            at every moment that may be a peak of memory, each distinct row once.
    """

    devices: int
    chunks: int
    kinds: int
    stages: NDArray[np.int64]
    previous: IntArray
    source: IntArray
    boundary: IntArray
    place: IntArray
    micro_batch: IntArray
    in_flight: tuple[int, ...]
    held: tuple[NDArray[np.int64], ...]

    @cached_property
    def last(self) -> tuple[int, ...]:
        """By device, its last pass."""
        each = self.kinds * self.chunks
        found = {place // each: at for at, place in enumerate(self.place.tolist())}
        return tuple(found[d] for d in range(self.devices))


@lru_cache(maxsize=64)
def dependencies(schedule: str, devices: int, chunks: int, micro_batches: int) -> Dependencies:
    """The passes of `schedule` in an order that respects what they wait for.

    Raises:
        ValueError: what `device_order` refuses, or passes that wait for each other.
    """
    p, v, m = devices, chunks, micro_batches
    orders = [device_order(schedule, p, v, m, d) for d in range(p)]
    codes = np.stack(orders)
    count = codes.shape[1]
    kinds = 3 if is_split(schedule) else 2
    stages = stage_numbers(schedule, p, v)
    numbers = np.stack([occurrences(order, m) for order in orders])
    # identity[d, kind, chunk, micro-batch]: d * count + position on the device.
    identity = (
        np.argsort(codes, axis=1, kind="stable").reshape(p, kinds, v, m) + (np.arange(p) * count)[:, None, None, None]
    )

    source = np.full(p * count, -1)
    boundary = np.full(p * count, -1)
    holder = {int(s): (d, c) for (d, c), s in np.ndenumerate(stages)}
    for s in range(p * v - 1):
        (d0, c0), (d1, c1) = holder[s], holder[s + 1]
        source[identity[d1, 0, c1]] = identity[d0, 0, c0]
        source[identity[d0, 1, c0]] = identity[d1, 1, c1]
        if d0 != d1:
            boundary[identity[d1, 0, c1]] = s
            boundary[identity[d0, 1, c0]] = s
    sequence = _sequence(source, p, count)
    if len(sequence) < p * count:
        raise ValueError(
            f"schedule {schedule}: {p} devices, {v} chunks, {m} micro-batches: {p * count - len(sequence)} passes "
            "wait for each other"
        )
    rank = np.empty(p * count + 1, np.int64)
    rank[sequence] = np.arange(p * count)
    rank[-1] = -1  # what -1 finds
    previous = np.arange(p * count) - 1
    previous[::count] = -1
    place = codes + (np.arange(p) * kinds * v)[:, None]
    held = tuple(_held(order, kinds, v) for order in orders)
    return Dependencies(
        devices=p,
        chunks=v,
        kinds=kinds,
        stages=stages,
        previous=rank[previous[sequence]].astype(np.int32),
        source=rank[source[sequence]].astype(np.int32),
        boundary=boundary[sequence].astype(np.int32),
        place=place.ravel()[sequence].astype(np.int32),
        micro_batch=numbers.ravel()[sequence].astype(np.int32),
        in_flight=tuple(int(rows[:, :v].sum(axis=1).max()) for rows in held),
        held=held,
    )


def _sequence(source: NDArray[np.int64], devices: int, count: int) -> NDArray[np.int64]:
    """Passes, each behind its source and the one before it on its device; without those that wait for each other."""
    sources = source.tolist()
    position = [d * count for d in range(devices)]
    done = bytearray(len(sources) + 1)
    done[-1] = True  # what -1 finds
    waiting = [-1] * len(sources)  # by pass the device whose next one waits for it: one receives its result
    sequence: list[int] = []
    free = list(range(devices))
    while free:
        device = free.pop()
        at, end = position[device], (device + 1) * count
        while at < end and done[sources[at]]:
            done[at] = True
            sequence.append(at)
            if waiting[at] >= 0:
                free.append(waiting[at])
            at += 1
        position[device] = at
        if at < end:
            waiting[sources[at]] = device
    return np.array(sequence, np.int64)


def _held(order: Codes, kinds: int, chunks: int) -> NDArray[np.int64]:
    """`Dependencies.held` of one device: memory peaks where a run of forward passes ends."""
    forward = order < chunks
    peaks = np.flatnonzero(forward & ~np.append(forward[1:], False))
    ran = np.stack([np.cumsum(order == code)[peaks] for code in range(kinds * chunks)], axis=1)
    return np.array(sorted(set(map(tuple, (ran[:, :-chunks] - ran[:, chunks:]).tolist()))))
