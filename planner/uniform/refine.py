"""A uniform configuration improved by what does not treat all ranks of a pipeline, or all data-parallel ranks, alike.

The fastest uniform configurations are the beginning of a search by single changes, each judged by the clock, as long as
one makes the step shorter and fits:

- where stages begin: a layer moves from a rank of the pipeline that computes longest to another, so that embedding and
  loss, which stand on the first and the last chunk, weigh as much as the layers there; where nothing else helps, it
  moves between chunks of one rank;
- how many blocks run again: no more than memory asks for, on all ranks or on each stage by itself; or what runs again
  is something else, or, where the space has it, waits in the host's memory instead;
- over how many ranks ZeRO divides: groups within a server exchange faster, and hold more.

So the result is never slower than the configuration that it began with.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from planner.clock import Configuration, predict
from planner.clock.passes import passes_of
from planner.clock.stages import chunks, chunks_of, in_chunk, layers_of
from planner.errors import InputError, UsageError
from planner.trace import Workload
from planner.uniform.by_stage import fewest_by_stage, with_stage_layers
from planner.uniform.found import Scored
from planner.uniform.loads import LONGER
from planner.uniform.sample import Sample
from planner.uniform.space import Space, groups

__all__ = ["least_share", "refined"]

_ROUNDS: Final = 24  # changes one after the other
_MOVES: Final = 12  # of a layer that are simulated in each round, the most promising ones
_PAIRS: Final = 32  # of chunks of one rank, between which a layer moves
_LEAST: Final = 1e-6  # of a step, that a change has to save


def refined(
    sample: Sample,
    space: Space,
    limit: int | None,
    scored: Scored,
    stopped: Callable[[], bool] = lambda: False,
    *,
    layouts: bool = True,
) -> Scored:
    """The fastest configuration that single changes lead to, whose fullest device holds at most `limit` bytes and which
    the space's framework can express; `layouts`: also by changes after which tensors are to be laid out anew."""
    for _ in range(_ROUNDS):
        changed = _changed(sample, space, limit, scored.configuration, layouts=layouts)
        best = _best(sample, space, limit, scored, changed, stopped)
        if best is scored:
            best = _best(sample, space, limit, scored, _within_ranks(sample, scored.configuration), stopped)
        if best is scored:
            break
        scored = best
    return scored


def _best(
    sample: Sample,
    space: Space,
    limit: int | None,
    scored: Scored,
    changed: Iterable[Configuration],
    stopped: Callable[[], bool],
) -> Scored:
    """The fastest that fits, of a configuration and these changes to it."""
    best = scored
    for c in changed:
        if stopped():
            break
        below = best.prediction.step_time_s * (1 - _LEAST)
        other_mesh = c.shard_ranks != scored.configuration.shard_ranks  # whose layout takes longest to find
        if other_mesh and sample.follows(c) and _estimated(sample, c) * (1 - LONGER) >= below:
            continue
        found = _simulated(sample, space, limit, c)
        if found is not None and found.prediction.step_time_s < below:
            best = found
    return best


def _estimated(sample: Sample, c: Configuration) -> float:
    """Seconds of the step, up to `LONGER` too long; inf where the model does not admit it."""
    try:
        return predict(sample.estimated(c), c, sample.profile).step_time_s
    except (UsageError, InputError):
        return float("inf")


def _simulated(sample: Sample, space: Space, limit: int | None, c: Configuration) -> Scored | None:
    if space.unsupported is not None and space.unsupported(c):
        return None
    try:
        prediction = predict(sample.workload(c), c, sample.profile)
    except (UsageError, InputError):
        return None
    fits = limit is None or round(prediction.allocated_bytes) <= limit
    return Scored(c, prediction) if fits else None


def _changed(
    sample: Sample, space: Space, limit: int | None, c: Configuration, *, layouts: bool
) -> Iterator[Configuration]:
    workload = sample.workload(c)
    if c.pp > 1:
        yield from _cuts(workload, c, sample)
    if space.recompute is None:
        yield from _run_again(sample, space, limit, c)
    if layouts:
        yield from _groups(space, c)


# Where stages begin


def _cuts(workload: Workload, c: Configuration, sample: Sample) -> Iterator[Configuration]:
    """With one layer moved, or a layer of several ranks at once, from where the pipeline is slowest."""
    sizes = _sizes(workload, c)
    seconds = _seconds(workload, c, sample, sizes)
    layers = layers_of(workload)
    typical = sorted(seconds[u] for u in layers)[len(layers) // 2]
    loads = _loads(workload, c, sizes, seconds)
    rank_of = {k: d for d in range(c.pp) for k in chunks_of(c, d)}
    moves: list[tuple[float, tuple[int, ...]]] = []
    for a, b in ((a, b) for a in rank_of for b in rank_of if rank_of[a] != rank_of[b] and sizes[a] > 1):
        slowest = max(loads)
        after = max(loads[rank_of[a]] - typical, loads[rank_of[b]] + typical)
        if loads[rank_of[a]] > loads[rank_of[b]] and after < slowest * (1 + _LEAST):
            # Of equal moves the one that leaves a rank's chunks alike.
            uneven = max(sizes[b] + 1 - sizes[k] for k in chunks_of(c, rank_of[b])) - (sizes[a] - 1)
            moves.append((loads[rank_of[b]] - loads[rank_of[a]] + uneven * typical * 1e-3, _moved(sizes, a, b)))
    level = _levelled(c, sizes, loads, typical)
    if level is not None:
        yield with_stage_layers(workload, c, level)
    for _, moved in sorted(moves)[:_MOVES]:
        yield with_stage_layers(workload, c, moved)


def _within_ranks(sample: Sample, c: Configuration) -> Iterator[Configuration]:
    """With one layer moved to the next chunk of the same rank, or back: it computes as long, and at other times."""
    if c.pp == 1 or c.virtual_stages == 1:
        return
    workload = sample.workload(c)
    sizes = _sizes(workload, c)
    pairs = (pair for d in range(c.pp) for pair in itertools.pairwise(chunks_of(c, d)))
    for one, next_one in itertools.islice(pairs, _PAIRS):
        for a, b in ((one, next_one), (next_one, one)):
            if sizes[a] > 1:
                yield with_stage_layers(workload, c, _moved(sizes, a, b))


def _seconds(workload: Workload, c: Configuration, sample: Sample, sizes: Sequence[int]) -> list[float]:
    """Of both passes of each unit, with what runs again in its chunk."""
    times = passes_of(workload, c, sample.profile).units
    seconds = [u.forward.seconds + u.back for u in times]
    if c.recompute_layers is not None:
        for k, part in enumerate(chunks(workload, len(sizes), sizes)):
            share = in_chunk(workload, c, part, k).recompute_blocks
            for i in part:
                seconds[i] -= (1 - share) * times[i].again.seconds
    return seconds


def _moved(sizes: Sequence[int], a: int, b: int) -> tuple[int, ...]:
    return tuple(n - (k == a) + (k == b) for k, n in enumerate(sizes))


def _levelled(c: Configuration, sizes: Sequence[int], loads: Sequence[float], typical: float) -> tuple[int, ...] | None:
    """Layers moved from the slowest rank to the fastest as long as that makes the slowest faster."""
    found, now = list(sizes), list(loads)
    for _ in range(sum(sizes)):
        slow, fast = now.index(max(now)), now.index(min(now))
        a = max(chunks_of(c, slow), key=lambda k: found[k])
        b = min(chunks_of(c, fast), key=lambda k: found[k])
        if found[a] < 2 or now[fast] + typical >= now[slow] * (1 - _LEAST):
            break
        found[a], found[b] = found[a] - 1, found[b] + 1
        now[slow], now[fast] = now[slow] - typical, now[fast] + typical
    return tuple(found) if found != list(sizes) else None


def _sizes(workload: Workload, c: Configuration) -> list[int]:
    """Layers of each chunk."""
    layers = set(layers_of(workload))
    return [len(layers.intersection(part)) for part in chunks(workload, c.pp * c.virtual_stages, c.stage_layers)]


def _loads(workload: Workload, c: Configuration, sizes: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """Seconds that each rank of the pipeline computes for a micro-batch."""
    parts = chunks(workload, len(sizes), sizes)
    return [sum(seconds[u] for k in chunks_of(c, d) for u in parts[k]) for d in range(c.pp)]


# What runs again


def _run_again(sample: Sample, space: Space, limit: int | None, c: Configuration) -> Iterator[Configuration]:
    """With less that runs again, or something else, or something that waits in the host's memory instead."""
    if c.recompute == "none" and not c.offloads:
        return
    plain = c.with_(recompute="none", recompute_blocks=1.0, recompute_layers=None, offload=0.0, offload_layers=None)
    for kind in ("none", "selective", "products"):
        if kind != c.recompute or c.offloads:
            yield plain.with_(recompute=kind)
    if sample.layers < 2:
        return
    waits = space.offload and sample.profile.host.link_bytes_per_s is not None
    if c.pp > 1:
        workload = sample.workload(plain)
        ways = [plain.with_(recompute="full")] + ([plain.with_(offload=1.0)] if waits else [])
        yield from (few for way in ways if (few := fewest_by_stage(workload, way, sample.profile, limit)) is not None)
    else:  # in a pipeline the same share of all blocks need not be whole blocks of every stage
        most = c.recompute_blocks if c.recompute == "full" else 1.0
        again = plain.with_(recompute="full")
        least = least_share(lambda f: _fits(sample, limit, again.with_(recompute_blocks=f)), sample.layers, most)
        if least is not None:
            yield again.with_(recompute_blocks=least)
    if waits:
        waiting = least_share(lambda f: _fits(sample, limit, plain.with_(offload=f)), sample.layers, c.offload or 1.0)
        if waiting is not None:
            yield plain.with_(offload=waiting)


def _fits(sample: Sample, limit: int | None, c: Configuration) -> bool:
    try:
        return limit is None or round(predict(sample.workload(c), c, sample.profile).allocated_bytes) <= limit
    except (UsageError, InputError):
        return False


def least_share(fits: Callable[[float], bool], layers: int, most: float) -> float | None:
    """The least number of layers, as a fraction of all, with which it fits; None where `most` does not fit."""
    low, high = 0, round(most * layers)
    if not high or not fits(high / layers):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle / layers) else (middle, high)
    return high / layers


# Over how many ranks ZeRO divides


def _groups(space: Space, c: Configuration) -> Iterator[Configuration]:
    over_all = c.with_(shard_ranks=None)
    yield from (x for x in (over_all, *groups(space, over_all)) if x.shard_ranks != c.shard_ranks)
