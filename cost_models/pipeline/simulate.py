"""Seconds and memory of one step of a pipeline, by event simulation.

Each device runs its passes in the fixed order of the schedule. A pass begins when its device is free and what it
receives has arrived:

    begin = max(end of the pass before it on the device, end of its source + transfer)

which is the longest path through the passes: no term is fitted, and a longer pass never makes the step shorter.
Transfers are either overlapped (a delay; links carry any number at once) or blocking (the sender is held up for the
transfer's seconds; the receiver waits for the arrival). Chunks on one device exchange nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .chunk import ChunkTimes
from .dependencies import Dependencies, dependencies
from .longest import KERNELS
from .run import PipelineCost, PipelineRun, Timeline

__all__ = ["longest_path", "pipeline_seconds", "simulate"]

Chunks = tuple[tuple[ChunkTimes, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Timed:
    """Seconds by pass: `compute` and `sending` by place (p · kinds · v), `lag` by pass, `ends` by pass."""

    passes: Dependencies
    compute: NDArray[np.float64]
    sending: NDArray[np.float64]
    lag: NDArray[np.float64]
    ends: NDArray[np.float64]  # and a 0, which index -1 finds


def simulate(
    schedule: str,
    chunks: Sequence[Sequence[ChunkTimes]],
    micro_batches: int,
    transfer_s: float | Sequence[float] = 0.0,
    *,
    overlapped: bool = True,
) -> PipelineRun:
    """One step of `micro_batches` through a pipeline.

    Args:
        schedule: one of `SCHEDULES`.
        chunks: per device, the chunks it holds; all devices hold equally many. Chunk c of device i of p is virtual
            stage c · p + i; for `zb-v`, i and 2p - 1 - i.
        micro_batches: at least 1.
        transfer_s: seconds to send one micro-batch's activations, or their gradient, to the next device: one
            figure, or one for each boundary between virtual stages.
        overlapped: whether a device computes while it sends.

    Raises:
        ValueError: unknown schedule, ragged chunks, a chunk without the split a zero-bubble schedule needs, or a
            figure out of range.
    """
    timed = _simulate(schedule, *_checked(chunks, micro_batches, transfer_s), overlapped)
    passes, compute = timed.passes, timed.compute
    ends = timed.ends
    begins = np.maximum(ends[passes.previous], ends[passes.source] + timed.lag)
    seconds = compute[passes.place]
    order = np.argsort(passes.place // (passes.kinds * passes.chunks), kind="stable")
    place = passes.place[order].astype(np.int64)
    timeline = Timeline(
        device=place // (passes.kinds * passes.chunks),
        kind=place // passes.chunks % passes.kinds,
        micro_batch=passes.micro_batch[order].astype(np.int64),
        chunk=place % passes.chunks,
        begin_s=begins[order],
        end_s=(begins + seconds)[order],
    )
    total = float(ends.max())
    busy = compute.reshape(passes.devices, -1).sum(axis=1) * micro_batches
    sending = timed.sending.reshape(passes.devices, -1).sum(axis=1) * micro_batches
    peaks = [_peak(passes, device, tuple(row)) for device, row in enumerate(chunks)]
    return PipelineRun(
        total_s=total,
        busy_s=tuple(busy.tolist()),
        sending_s=tuple(sending.tolist()),
        bubble_s=tuple(np.maximum(0.0, total - busy - sending).tolist()),
        in_flight=passes.in_flight,
        activation_bytes=tuple(size for size, _ in peaks),
        waiting_backward=tuple(tuple(row[: passes.chunks]) for _, row in peaks),
        waiting_weight=tuple(tuple(row[passes.chunks :]) or (0,) * passes.chunks for _, row in peaks),
        timeline=timeline,
    )


def pipeline_seconds(
    schedule: str,
    chunks: Sequence[Sequence[ChunkTimes]],
    micro_batches: int,
    transfer_s: float | Sequence[float] = 0.0,
    *,
    overlapped: bool = True,
) -> PipelineCost:
    """`simulate` without its timeline, kept for equal arguments; the same figures to the last bit."""
    return _cost(schedule, *_checked(chunks, micro_batches, transfer_s), overlapped)


def longest_path(
    schedule: str,
    chunks: Sequence[Sequence[ChunkTimes]],
    micro_batches: int,
    transfer_s: float | Sequence[float] = 0.0,
) -> tuple[float, NDArray[np.int64], NDArray[np.int64]]:
    """The seconds of a step whose transfers run beside computing, and the longest path through it: how many passes it
    has of each kind of each chunk, (devices, kinds, chunks), kinds F and B, or F, B and W where the schedule splits
    the backward pass; and how many transfers over each boundary between virtual stages, (boundaries,). A step with
    other chunks takes at least what the passes and the transfers of the path take there. Arguments and errors as of
    `simulate`."""
    rows, m, transfers = _checked(chunks, micro_batches, transfer_s)
    timed = _simulate(schedule, rows, m, transfers, True)
    passes, ends = timed.passes, timed.ends
    last = max(passes.last, key=lambda last: float(ends[last]))
    counts, crossed = KERNELS.path_to(passes, timed.lag, ends, last, len(transfers))
    return float(ends.max()), counts.reshape(passes.devices, passes.kinds, passes.chunks), crossed


@lru_cache(maxsize=4096)
def _cost(schedule: str, chunks: Chunks, m: int, transfers: tuple[float, ...], overlapped: bool) -> PipelineCost:
    timed = _simulate(schedule, chunks, m, transfers, overlapped)
    sizes = tuple(_peak(timed.passes, device, row)[0] for device, row in enumerate(chunks))
    return PipelineCost(float(timed.ends.max()), timed.passes.in_flight, sizes)


def _checked(
    chunks: Sequence[Sequence[ChunkTimes]], micro_batches: int, transfer_s: float | Sequence[float]
) -> tuple[Chunks, int, tuple[float, ...]]:
    rows = tuple(tuple(row) for row in chunks)
    if not rows or not rows[0] or len({len(row) for row in rows}) > 1:
        raise ValueError(
            "pipeline: chunks: expected equally many, at least one, on each of one or more devices, "
            f"found {[len(row) for row in rows]}"
        )
    if micro_batches < 1:
        raise ValueError(f"pipeline: micro_batches: expected at least 1, found {micro_batches}")
    boundaries = len(rows) * len(rows[0]) - 1
    given = np.asarray(transfer_s, dtype=np.float64)
    if not bool(np.all(np.isfinite(given) & (given >= 0))):
        raise ValueError(f"pipeline: transfer_s: expected finite seconds of at least 0, found {transfer_s}")
    transfers: tuple[float, ...] = tuple((given if given.ndim else np.full(boundaries, given)).tolist())
    if len(transfers) != boundaries:
        raise ValueError(
            f"pipeline: transfer_s: expected one figure or {boundaries}, one for each boundary between virtual "
            f"stages, found {len(transfers)}"
        )
    return rows, micro_batches, transfers


def _simulate(schedule: str, chunks: Chunks, m: int, transfers: tuple[float, ...], overlapped: bool) -> _Timed:
    passes = dependencies(schedule, len(chunks), len(chunks[0]), m)
    compute = _compute_table(schedule, chunks, passes)
    sending = np.zeros_like(compute)
    lag = np.zeros(len(passes.place))
    if overlapped:
        lag = np.append(transfers, 0.0)[passes.boundary]
    else:
        sending = _sending_table(passes, transfers)
    held_up = (compute + sending).ravel()[passes.place]
    ends = KERNELS.ends_of(passes, lag, held_up)
    return _Timed(passes, compute.ravel(), sending.ravel(), lag, ends)


def _compute_table(schedule: str, chunks: Chunks, passes: Dependencies) -> NDArray[np.float64]:
    """Seconds of every pass of one micro-batch: (p, kinds, v)."""
    table = np.empty((passes.devices, passes.kinds, passes.chunks))
    for d, row in enumerate(chunks):
        for c, chunk in enumerate(row):
            if passes.kinds == 2:
                table[d, :, c] = chunk.forward_s, chunk.backward_s
            elif chunk.backward_input_s is None or chunk.backward_weight_s is None:
                raise ValueError(
                    f"schedule {schedule}: device {d}, chunk {c}: expected backward_input_s and backward_weight_s, "
                    "found neither; give them, or take a schedule that does not split the backward pass"
                )
            else:
                table[d, :, c] = chunk.forward_s, chunk.backward_input_s, chunk.backward_weight_s
    return table


def _sending_table(passes: Dependencies, transfers: tuple[float, ...]) -> NDArray[np.float64]:
    """Seconds a blocking send holds up its device after each pass of one micro-batch: (p, kinds, v)."""
    table = np.zeros((passes.devices, passes.kinds, passes.chunks))
    holder = {int(s): place for place, s in np.ndenumerate(passes.stages)}
    for s, seconds in enumerate(transfers):
        (d0, c0), (d1, c1) = holder[s], holder[s + 1]
        if d0 != d1:
            table[d0, 0, c0] = table[d1, 1, c1] = seconds
    return table


def _peak(passes: Dependencies, device: int, chunks: tuple[ChunkTimes, ...]) -> tuple[float, list[int]]:
    """The most activation bytes on a device, and the counts (as `Dependencies.held`) at that moment."""
    each = [c.activation_bytes for c in chunks] + [c.weight_bytes for c in chunks] * (passes.kinds - 2)
    rows = passes.held[device]
    sizes = rows @ np.array(each, dtype=np.float64)
    at = int(np.argmax(sizes if any(each) else rows[:, : passes.chunks].sum(axis=1)))
    return float(sizes[at]), rows[at].tolist()
