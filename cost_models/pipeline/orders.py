"""The order in which each device of a pipeline runs its passes.

A pass is a kind (forward F, backward or input gradient B, weight gradient W), a chunk of the device and a
micro-batch. In every schedule here the passes of one kind and chunk run in the order of the micro-batches, so the
order of a device is a row of codes kind · v + chunk; the n-th occurrence of a code is micro-batch n.

- `gpipe`: all forward passes, then all backward passes (Huang et al., GPipe, NeurIPS 2019, section 2.3). Backward
  passes run first micro-batch first, as in torch's ScheduleGPipe.
- `1f1b`: PipeDream-flush (Narayanan et al., SC 2021, arXiv 2104.04473, section 2.2.1): p - 1 - i forward passes,
  then a forward and a backward pass in turn.
- `interleaved`: v chunks per device, chunk c of device i being virtual stage c · p + i (section 2.2.2 there).
  Micro-batches go in groups (`interleaved_group`): a group runs through one chunk after the other. Warm-up is
  2 (p - 1 - i) + (v - 1) · group forward passes (NVIDIA/Megatron-LM, megatron/core/pipeline_parallel/schedules.py).
- `zb-h1`: 1F1B with the backward pass split; on device i the weight gradients lag i micro-batches behind the input
  gradients and fill the end (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv 2401.10241, section 2.1).
- `zb-v`: two chunks per device, virtual stages i and 2p - 1 - i (section 6 there); the fixed order for equal times
  of F, B and W, which torch's ScheduleZBVZeroBubble runs too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "SCHEDULES",
    "Schedule",
    "chunks_of_schedule",
    "device_order",
    "holders_of_chunks",
    "interleaved_group",
    "is_split",
    "occurrences",
    "stage_numbers",
]

Schedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"]
SCHEDULES: Final[tuple[str, ...]] = get_args(Schedule)
Codes = NDArray[np.int64]


def is_split(schedule: str) -> bool:
    """Whether the backward pass runs as input gradient and weight gradient."""
    return schedule in ("zb-h1", "zb-v")


def chunks_of_schedule(schedule: str, chunks: int) -> int:
    """Chunks per device that the schedule runs, where so many are wanted."""
    return {"zb-v": 2, "interleaved": chunks}.get(schedule, 1)


@lru_cache(maxsize=64)
def stage_numbers(schedule: str, devices: int, chunks: int) -> NDArray[np.int64]:
    """Virtual stage of every chunk: shape (devices, chunks).  Read-only: it is remembered."""
    device = np.arange(devices)[:, None]
    if schedule == "zb-v":
        numbers = np.concatenate([device, 2 * devices - 1 - device], axis=1)
    else:
        numbers = np.arange(chunks)[None, :] * devices + device
    numbers.setflags(write=False)
    return numbers


def holders_of_chunks(schedule: str, devices: int, chunks: int) -> tuple[int, ...]:
    """The device that holds each of the devices · chunks chunks of the model, from its beginning."""
    holder = np.empty(devices * chunks, np.int64)
    holder[stage_numbers(schedule, devices, chunks)] = np.arange(devices)[:, None]
    return tuple(holder.tolist())


def interleaved_group(devices: int, micro_batches: int) -> int:
    """Micro-batches that run through one chunk before the next: the least Megatron accepts.

    Megatron wants groups of at least `devices` and a last group that is whole or at least `devices` long: shorter
    ones stall, and may wait for each other for ever. Fewer micro-batches than devices, which it refuses, make one
    group.
    """
    if micro_batches < devices:
        return micro_batches
    group = devices
    while 0 < micro_batches % group < devices:
        group += 1
    return group


def device_order(schedule: str, devices: int, chunks: int, micro_batches: int, device: int) -> Codes:
    """Codes of the passes of `device` in the order they run; each of the 2v or 3v codes occurs `micro_batches` times.

    Raises:
        ValueError: unknown schedule, or a number of chunks it does not have.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule {schedule!r}: expected one of {', '.join(SCHEDULES)}")
    wanted = chunks_of_schedule(schedule, chunks)
    if chunks != wanted:
        raise ValueError(
            f"schedule {schedule}: expected {wanted} chunk(s) per device, found {chunks}; "
            "more chunks per device run as 'interleaved'"
        )
    m = micro_batches
    if schedule == "gpipe":
        return np.repeat([0, 1], m)
    if schedule == "zb-h1":
        return _zb_h1(devices, m, device)
    if schedule == "zb-v":
        return _zb_v(devices, m, device)
    if schedule == "1f1b" or chunks == 1:
        return _one_forward_one_backward(np.zeros(m, np.int64), np.ones(m, np.int64), min(m, devices - 1 - device))
    return _interleaved(devices, chunks, m, device)


def _one_forward_one_backward(forward: Codes, backward: Codes, warm_up: int) -> Codes:
    """`warm_up` forward passes, then one of each in turn, then the backward passes left."""
    steady = len(forward) - warm_up
    turns = np.stack([forward[warm_up:], backward[:steady]], axis=1).ravel()
    return np.concatenate([forward[:warm_up], turns, backward[steady:]])


def _interleaved(devices: int, chunks: int, m: int, device: int) -> Codes:
    group = interleaved_group(devices, m)
    sizes = [group] * (m // group) + ([m % group] if m % group else [])
    forward = np.concatenate([np.repeat(np.arange(chunks), size) for size in sizes])
    backward = 2 * chunks - 1 - forward
    warm_up = 2 * (devices - 1 - device) + (chunks - 1) * group
    # A group shorter than the pipeline could wait for itself if backward passes began before its forward passes end.
    return _one_forward_one_backward(forward, backward, m * chunks if m < devices else min(m * chunks, warm_up))


def _zb_h1(devices: int, m: int, device: int) -> Codes:
    order = _one_forward_one_backward(np.zeros(m, np.int64), np.ones(m, np.int64), min(m, devices - 1 - device))
    # A weight gradient follows every input gradient but the first `device`, whose number stays owed to the end.
    owed = min(m, device)
    after = np.flatnonzero(order == 1)[owed:] + 1
    return np.concatenate([np.insert(order, after, 2), np.full(owed, 2)])


def _zb_v(devices: int, m: int, device: int) -> Codes:
    f0, f1, b0, b1, w0, w1 = range(6)
    i, left = device, devices - device
    # The order is stated for 2p - 1 micro-batches or more; of fewer, what does not exist is left out.
    whole = max(m, 2 * devices - 1)
    order = np.array(
        [f0] * (2 * left - 1)
        + [f1, f0] * i
        + [f1, b1, w1] * left
        + [f0, b0, w0, f1, b1, w1] * (whole - (2 * devices - 1 - i))
        + [b0, w0, f1, b1, w1] * (left - 1)
        + [b0, b1] * i
        + [b0, w0] * left
        + [w1] * i
        + [w0] * i
    )
    if whole == m:
        return order
    return order[occurrences(order, whole) < m]


def occurrences(order: Codes, micro_batches: int) -> NDArray[np.int64]:
    """Micro-batch of each pass: how often its code came before. Every code occurs `micro_batches` times."""
    out = np.empty(len(order), np.int64)
    out[np.argsort(order, kind="stable")] = np.tile(np.arange(micro_batches), len(order) // micro_batches)
    return out
