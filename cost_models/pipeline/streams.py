"""Two streams of work on one device, computing and communicating, each in its own order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["StreamTask", "run_streams"]


class StreamTask(NamedTuple):
    """A piece of a stream: its seconds alone, and how many pieces of the other stream must be done before it."""

    seconds: float
    needs: int = 0


def run_streams(
    compute: Sequence[StreamTask], communication: Sequence[StreamTask], contention: float = 1.0
) -> tuple[list[float], list[float]]:
    """End of every piece of the two streams, in seconds from the start.

    Pieces of one stream run one after the other. While communication runs, computing takes `contention` times as
    long; communication is not slowed.

    Raises:
        ValueError: streams that wait for each other, or a contention below 1.
    """
    if not contention >= 1:
        raise ValueError(f"contention: expected a factor of at least 1, found {contention}")
    ends: tuple[list[float], list[float]] = ([], [])
    now = 0.0
    # Of the piece at the head of each stream, the seconds still to run alone.
    left_compute = compute[0].seconds if compute else 0.0
    left_communication = communication[0].seconds if communication else 0.0
    computed, communicated = ends
    i = j = 0
    count, others = len(compute), len(communication)
    while i < count or j < others:
        computing = i < count and compute[i].needs <= j
        communicating = j < others and communication[j].needs <= i
        if not (computing or communicating):
            raise ValueError(f"streams: after {i} compute and {j} communication pieces each waits for the other")
        slowed = left_compute * contention if communicating else left_compute
        if communicating and not (computing and slowed < left_communication):
            now += left_communication
            if computing:
                left_compute = max(0.0, left_compute - left_communication / contention)
            communicated.append(now)
            j += 1
            left_communication = communication[j].seconds if j < others else 0.0
        else:
            now += slowed
            if communicating:
                left_communication -= slowed
            computed.append(now)
            i += 1
            left_compute = compute[i].seconds if i < count else 0.0
    return ends
