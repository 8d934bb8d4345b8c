"""What collectives take among the workers, from 1 KiB up, run as the interpreter runs them.

Times include the copies that joining and cutting shards in memory needs.  Before each collective every rank computes
for some milliseconds, as in a step: ranks then arrive a little apart, and the library's threads have slept.  A
collective begins when its last rank has arrived: for how long the others waited says something of what else the machine
did, nothing of the link.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from planner.cost_models.calibrate import CollectiveSample
from planner.runtime.collectives import all_gather, all_reduce, all_to_all, permute, reduce_scatter
from planner.runtime.quiet import CLEAN, Timed, steady
from planner.runtime.workers import Context, Workers

__all__ = ["measure_collectives"]

_SMALL, _LARGE = 1 << 10, 64 << 20
_WIDTH = 256  # floats: shards are joined along this dimension or along the one before
_ENOUGH_S = 0.05  # measuring one size goes on for as long,
_BUSY = {"cpu": 768, "cuda": 4096}  # width of the product that goes before
_ATTEMPTS = 6  # as often where others disturb it
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")


def measure_collectives(workers: Workers, *, largest: int = _LARGE, quick: bool = False) -> list[CollectiveSample]:
    """Seconds by kind and bytes (those of the whole tensor of the group, as `planner.cost_models.link` counts them).

    A kind that the backend lacks is left out.
    """
    factor = 8 if quick else 4
    sizes = [_SMALL]
    while sizes[-1] * factor <= (largest >> 2 if quick else largest):
        sizes.append(sizes[-1] * factor)
    out = []
    for kind in KINDS:
        for size in sizes:
            timed: list[Timed] = []
            for _ in range(_ATTEMPTS):
                found = workers.call(_measure, kind, size)
                if None in found:
                    break
                timed.append((_seconds(found), workers.disturbance))
                if workers.disturbance <= CLEAN:
                    break
            if timed:
                out.append(CollectiveSample(kind, workers.count, size, steady(timed)))
    return out


def _seconds(ranks: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Median seconds of collectives that the ranks began and ended at these times of one clock: from the last arrival
    until the ranks have their results, in the mean.

    A rank that sends may be done before another one arrives; that took none of the time after.
    """
    spent = []
    for of_one in zip(*ranks, strict=True):
        arrived = max(begin for begin, _ in of_one)
        spent.append(sum(max(0.0, end - arrived) for _, end in of_one) / len(of_one))
    return median(spent)


def _measure(context: Context, kind: str, size: int) -> list[tuple[float, float]] | None:
    """When each of a number of collectives on a tensor of `size` bytes began and ended here, in seconds of the clock
    that the processes of a machine share; None where the backend lacks it."""
    run = _runner(context, kind, size)
    try:
        for _ in range(3):
            run()
    except RuntimeError as e:
        # Backends refuse what they lack, on all ranks alike and before anything is sent; all else is a fault.
        if isinstance(e, NotImplementedError) or re.search("support|implement|No backend", str(e), re.IGNORECASE):
            return None
        raise
    times: list[tuple[float, float]] = []
    going = True
    busy = torch.randn(_BUSY[context.device.type], _BUSY[context.device.type], device=context.device)
    while going:
        dist.barrier()
        busy @ busy
        context.synchronize()
        begin = time.perf_counter()
        run()
        context.synchronize()
        times.append((begin, time.perf_counter()))
        if len(times) % 5 == 0:
            going = _agree(context, len(times) < 200 and sum(end - begin for begin, end in times) < _ENOUGH_S)
    return times


def _agree(context: Context, going: bool) -> bool:
    """Whether any rank goes on: all must stop at the same count."""
    flag = torch.tensor([float(going)], device=context.device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def _runner(context: Context, kind: str, size: int) -> Callable[[], object]:
    n, group = context.world, dist.group.WORLD
    rows = max(n * n, size // (4 * _WIDTH))

    def tensor(share: int) -> Tensor:
        return torch.randn(rows // share, min(_WIDTH, max(n, size // 4 // rows)), device=context.device)

    if kind == "all_reduce":
        whole = tensor(1)
        return lambda: all_reduce(whole, group)
    if kind == "all_gather":
        shard = tensor(n)
        return lambda: all_gather(shard, n, 1, group)
    if kind == "reduce_scatter":
        whole = tensor(1)
        return lambda: reduce_scatter(whole, n, 0, group)
    if kind == "all_to_all":
        shard = tensor(n)
        return lambda: all_to_all(shard, n, 0, 1, group)
    message = tensor(1)
    right, left = (context.rank + 1) % n, (context.rank - 1) % n
    return lambda: permute(message, left, [right], n, group)
