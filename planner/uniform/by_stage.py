"""How many blocks of each stage run again, or wait in the host's memory: no more than its own devices ask for.

In 1F1B the first rank of a pipeline holds as many micro-batches as there are stages, the last rank holds one.  So the
first ranks alone may be short of memory, and with a share of blocks that is the same on all ranks the others would
compute for nothing.  What a rank runs again changes what it holds, and nothing of what other ranks hold but through the
order in which passes meet: all ranks are halved towards their fewest blocks at once, and the simulation of the schedule
has the last word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from planner.clock import Configuration, held_by_rank
from planner.clock.stages import chunks, chunks_of
from planner.clock.step import step_of
from planner.cost_models import HardwareProfile
from planner.trace import Workload

__all__ = ["blocks_of_chunks", "fewest_by_stage", "with_stage_layers"]

_MORE: Final = 4  # blocks, one by one, where a rank holds more once the others run less again


def fewest_by_stage(
    workload: Workload, c: Configuration, profile: HardwareProfile, limit: int | None
) -> Configuration | None:
    """The configuration with the fewest blocks on each rank of the pipeline that run again (`recompute=full`) or else
    wait in the host's memory, such that no rank holds more than `limit` bytes; None where it does not fit with all.

    UsageError where the configuration does not fit the model.
    """
    parts = chunks(workload, c.pp * c.virtual_stages, c.stage_layers)
    mine = [chunks_of(c, d) for d in range(c.pp)]
    blocks = blocks_of_chunks(workload, parts)
    at_once = max(blocks) if c.recompute == "full" else 1  # blocks of a chunk before those of the next one
    most = [sum(blocks[k] for k in of_rank) for of_rank in mine]

    def counted(counts: Sequence[int]) -> Configuration:
        """With so many blocks by rank.  Those of its earliest chunk run again first, whose activations wait longest;
        those that wait in the host's memory are dealt to all its chunks, each of which copies beside its own passes."""
        by_chunk = [0] * len(parts)
        for of_rank, count in zip(mine, counts, strict=True):
            left = count
            while left:
                for k in sorted(of_rank):
                    more = min(left, blocks[k] - by_chunk[k], at_once)
                    by_chunk[k] += more
                    left -= more
        if not any(by_chunk):
            return c.with_(recompute="none", recompute_blocks=1.0, recompute_layers=None, offload=0.0)
        if c.recompute == "full":
            return c.with_(recompute_blocks=1.0, recompute_layers=tuple(by_chunk))
        return c.with_(offload=0.0, offload_layers=tuple(by_chunk))

    def fits(counts: Sequence[int]) -> list[bool]:
        """Whether each rank does."""
        run = counted(counts)
        step = step_of(workload, run, profile, parts)
        held = held_by_rank(workload, run, parts, step.pipeline.activation_bytes)
        return [limit is None or h.peak <= limit for h in held]

    # One block that runs again adds what it makes again; so nothing at all may fit where a few blocks do not.
    high = [0 if enough else n for enough, n in zip(fits([0] * c.pp), most, strict=True)]
    if not all(fits(high)):
        return None
    low = [0] * c.pp
    while any(b - a > 1 for a, b in zip(low, high, strict=True)):
        middle = [(a + b) // 2 if b - a > 1 else b for a, b in zip(low, high, strict=True)]
        for d, enough in enumerate(fits(middle)):
            if middle[d] == high[d]:
                continue
            low[d], high[d] = (low[d], middle[d]) if enough else (middle[d], high[d])
    for _ in range(_MORE):
        short = [d for d, enough in enumerate(fits(high)) if not enough]
        if not short:
            return counted(high)
        for d in short:
            high[d] = min(most[d], high[d] + 1)
    return None


def blocks_of_chunks(workload: Workload, parts: Sequence[Sequence[int]]) -> list[int]:
    """How many blocks each chunk of the model has."""
    return [sum(workload.repeated[i] for i in part) for part in parts]


def with_stage_layers(workload: Workload, c: Configuration, sizes: Sequence[int]) -> Configuration:
    """The configuration with so many layers in each chunk; what a chunk gains runs again, or waits in the host's
    memory, where that is said by chunk."""
    before = blocks_of_chunks(workload, chunks(workload, len(sizes), c.stage_layers))
    after = blocks_of_chunks(workload, chunks(workload, len(sizes), sizes))
    changes: dict[str, object] = {"stage_layers": tuple(sizes)}
    for name in ("recompute_layers", "offload_layers"):
        counts = getattr(c, name)
        if counts is not None:
            changes[name] = tuple(min(b, n + max(0, b - a)) for n, a, b in zip(counts, before, after, strict=True))
    return c.with_(**changes)
