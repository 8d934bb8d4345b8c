"""How much a collective slows computing that runs beside it.

Processes that compute on every core have none left for sending and adding, so that little hides behind computing; on a
GPU a collective takes some of the multiprocessors and of the memory's bandwidth.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from planner.runtime.quiet import CLEAN, Timed, steady
from planner.runtime.workers import Context, Workers

__all__ = ["MOST", "measure_interference"]

MOST = 0.99  # what is counted at most: of a profile it is less than 1
_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}
_WIDTH = {"cpu": 768, "cuda": 4096}  # of the product that is computed
_ROUNDS, _ATTEMPTS = 9, 6
_LONGER = 2.0  # times as long as the collective is computed, so that it could hide wholly


def measure_interference(workers: Workers, *, quick: bool = False) -> float:
    """The fraction of its speed that computing loses while the workers' values are summed (`collective_interference`
    of a profile), between 0 and `MOST`."""
    timed: list[Timed] = []
    for _ in range(2 if quick else _ATTEMPTS):
        found = workers.call(_measure)
        timed.append((sum(found) / len(found), workers.disturbance))
        if workers.disturbance <= CLEAN:
            break
    return min(MOST, max(0.0, steady(timed)))


def _measure(context: Context) -> float:
    """What a sum adds to the seconds of computing beside it, over its seconds alone: the median of some rounds."""
    kind = context.device.type
    value = torch.randn(_BYTES[kind] // 4, device=context.device)
    factor = torch.randn(_WIDTH[kind], _WIDTH[kind], device=context.device)

    def compute(count: int) -> None:
        for _ in range(count):
            factor @ factor

    def begun() -> Any:
        return dist.all_reduce(value.mul_(0.5), async_op=True)

    def beside(count: int) -> None:
        work = begun()
        compute(count)
        work.wait()

    for _ in range(3):
        beside(1)
    longest = torch.tensor([_seconds(context, lambda: begun().wait()), -_seconds(context, lambda: compute(1))])
    longest = longest.to(context.device)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    count = 1 + int(_LONGER * float(longest[0]) / max(1e-9, -float(longest[1])))
    found = []
    for _ in range(_ROUNDS):
        alone = _seconds(context, lambda: begun().wait())
        computed = _seconds(context, lambda: compute(count))
        found.append((_seconds(context, lambda: beside(count)) - computed) / alone)
    return median(found)


def _seconds(context: Context, run: Callable[[], object]) -> float:
    dist.barrier()
    context.synchronize()
    begin = time.perf_counter()
    run()
    context.synchronize()
    return time.perf_counter() - begin
