"""A rank's step with the time of every instruction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from planner.lowering import Event, Redistribute, Run
from planner.lowering.program import StageInstruction
from planner.runtime.cells import Taken
from planner.runtime.stage import Feed, Stage
from planner.runtime.timed import Timed

__all__ = ["watched_step", "watched_steps"]

_CYCLES_PER_S = 2.0e9  # of a GPU's clock, about: none runs much faster
_Stamp = Any  # seconds, or an event of a GPU's stream


def watched_step(stage: Stage, feed: Feed, ahead_s: float = 0.0) -> tuple[Taken, list[Timed]]:
    """One step of the stage, and what it did when, in order.

    On a GPU the device's own clock counts, between events in its stream.  The device first idles for `ahead_s`, so that
    the host has handed over everything before and no operator waits for it: give what an interpreted step takes.
    """
    on_gpu = stage.context.device.type == "cuda"
    if on_gpu and ahead_s > 0:
        torch.cuda._sleep(round(ahead_s * _CYCLES_PER_S))
    watch = _Watch(on_gpu)
    stage.received = watch.received
    try:
        taken = stage.step(feed, watch)
    finally:
        stage.received = None
    return taken, list(watch.found())


def watched_steps(stage: Stage, feed: Feed, count: int) -> list[list[Timed]]:
    """What a rank does when in each of `count` steps behind one that warms up; all ranks begin each together."""
    found: list[list[Timed]] = []
    ahead = 0.0
    for n in range(1 + count):
        dist.barrier()
        begin = time.perf_counter()
        _, timed = watched_step(stage, feed, ahead)
        if n:
            found.append(timed)
        else:  # what the host takes to hand over a step
            ahead = 1.5 * (time.perf_counter() - begin)
    return found


class _Watch:
    """Stamps behind everything that a stage does."""

    def __init__(self, on_gpu: bool) -> None:
        self.on_gpu = on_gpu
        self.event = Event("begin")
        self.begin = self._now()
        self.stamps: list[tuple[StageInstruction | None, Event, _Stamp]] = []

    def _now(self) -> _Stamp:
        if not self.on_gpu:
            return time.perf_counter()
        stamp = torch.cuda.Event(enable_timing=True)
        stamp.record()
        return stamp

    def received(self, event: Event) -> None:
        """A pass has what it receives, and begins."""
        self.event = event
        self.stamps.append((None, event, self._now()))

    def __call__(self, i: StageInstruction) -> None:
        self.stamps.append((i, self.event, self._now()))

    def found(self) -> Iterator[Timed]:
        if self.on_gpu:
            torch.cuda.synchronize()
        before = 0.0
        for i, event, stamp in self.stamps:
            after = self._since(stamp)
            yield _timed(i, event, before, after)
            before = after

    def _since(self, stamp: _Stamp) -> float:
        """Seconds since the step began."""
        return float(self.begin.elapsed_time(stamp) / 1e3 if self.on_gpu else stamp - self.begin)


def _timed(i: StageInstruction | None, event: Event, begin: float, end: float) -> Timed:
    match i:
        case None:
            return Timed("received", f"{event.phase} {event.chunk}", "", event.micro_batch, begin, end)
        case Run(op, backward, part):
            return Timed("backward" if backward else "forward", op, part, event.micro_batch, begin, end)
        case Redistribute(tensor, gradient):
            return Timed("gradient" if gradient else "value", tensor, "", event.micro_batch, begin, end)
        case _:
            return Timed("other", type(i).__name__.lower(), "", event.micro_batch, begin, end)
