"""What no configuration of a family takes less than.

A family holds the configurations that agree in degrees of parallelism, micro-batches, copies, schedule, ZeRO level and
what runs again, and differ in where stages begin and in which blocks run again.  Every chunk of a pipeline has at least
half of an even share of the layers.

The bound: a rank of n layers, of which some run again, computes them in every pass, waits before that for what the
ranks before it do first, and holds their weights with all that belongs to them and what the passes in flight keep.  So
within T seconds and M bytes a rank has room for so many layers at most, and T is too short as long as all ranks
together have not room for the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cost_models import HardwareProfile, optimizer_seconds
from cost_models.pipeline import device_order
from planner.clock import Configuration
from planner.clock.exchange import Exchanges
from planner.clock.memory import STATE_BYTES, chunk_activation_bytes
from planner.clock.passes import Passes, passes_of
from planner.clock.stages import chunks_of, layers_of
from planner.trace import Workload

__all__ = [
    "LEAST_CHUNK",
    "Load",
    "dealt",
    "held_evenly",
    "least_chunk",
    "least_once",
    "least_seconds",
    "load_of",
    "static_bytes",
]

LEAST_CHUNK: Final = 0.5  # of an even share of the layers, that every chunk has
_UNLIKE: Final = 0.02  # relative, up to which the lightest layer stands for all
_PASSES: Final = 4  # for each stage: more micro-batches are not in flight
_ROUNDING: Final = 1e-9
_CLOSE: Final = 5e-4  # relative, to what a bound is found
_Floats = NDArray[np.float64]


Pair = tuple[float, float]  # of the forward and of the backward pass


@dataclass(frozen=True, slots=True)
class Load:
    """What a rank does in one pass, of all copies together, with what is exchanged in every pass.

    `lightest`: None where all layers are alike; else a layer is what passes forward in the mean time of the model's, a
    part or a multiple of one of them, of which the lightest is so much.

    Of the lightest layer, or the least that may belong to one: seconds of both passes (`layer`; `split`: back, as
    gradients of values and of weights, of a layer, of `first` and of `last`), seconds that running it `again` adds,
    bytes that it `kept` for its backward pass, and `kept_again` where it runs again or waits in the host's memory,
    where copying it there or back takes `copied` seconds beside a pass; elements of its `weights` as they are read and
    as they are `stored`.

    `chunk`: seconds that the first gathering and the last scattering of a pass through a chunk are waited for, unless
    it begins or ends with other units than layers.  Seconds of the units before the first layer (`first`) and behind
    the last one (`last`), and `total` of all; of that, `of_weights` makes gradients of weights.

    `update`: seconds in which all weights are updated, once a step; `once`: in which gradients are summed and updated
    weights gathered, of all units, and of the lightest that is summed last or gathered first.
    """

    layers: int
    lightest: float | None
    layer: Pair
    again: float
    kept: float
    kept_again: float
    copied: float
    weights: float
    stored: float
    chunk: Pair
    first: Pair
    last: Pair
    total: Pair
    of_weights: float
    split: tuple[Pair, Pair, Pair]
    update: float
    once: tuple[Pair, Pair] = ((0.0, 0.0), (0.0, 0.0))

    @property
    def at_ends(self) -> float:
        """Seconds of a chunk forward and back beside its layers."""
        return 2 * self.chunk[0] + self.chunk[1]

    def scaled(self, factor: float) -> Load:
        """Of so many times the samples, at the same rate; without what is exchanged."""

        def pair(seconds: Pair) -> Pair:
            return seconds[0] * factor, seconds[1] * factor

        return replace(
            self,
            layer=pair(self.layer),
            again=self.again * factor,
            chunk=(0.0, 0.0),
            first=pair(self.first),
            last=pair(self.last),
            total=pair(self.total),
            of_weights=self.of_weights * factor,
            split=(pair(self.split[0]), pair(self.split[1]), pair(self.split[2])),
            once=((0.0, 0.0), (0.0, 0.0)),
        )

    def between(self, other: Load, share: float) -> Load:
        """With seconds between those of the other one and these."""

        def pair(a: Pair, b: Pair) -> Pair:
            return b[0] + share * (a[0] - b[0]), b[1] + share * (a[1] - b[1])

        layer, total = pair(self.layer, other.layer), pair(self.total, other.total)
        first, last = pair(self.first, other.first), pair(self.last, other.last)
        return replace(self, layer=layer, total=total, first=first, last=last)

    def holding(self, other: Load, factor: float, divided: int) -> Load:
        """With what the other one keeps, times the factor, and weights stored in so many parts."""
        return replace(
            self,
            kept=other.kept * factor,
            kept_again=other.kept_again * factor,
            copied=other.copied * factor,
            stored=self.weights / divided,
            update=self.update / divided,
        )


def load_of(workload: Workload, c: Configuration, profile: HardwareProfile) -> Load:
    """Of `c` on its own workload; where a part of the blocks runs again (`recompute_blocks` below 1) or waits in the
    host's memory, of blocks that do not, and `again` and `copied` say what doing so takes."""
    part = c.recompute == "full" and c.recompute_blocks < 1
    run = c.with_(recompute_blocks=1.0, offload=0.0, pp=1, virtual_stages=1, schedule="1f1b", stage_layers=None)
    passes = passes_of(workload, run, profile)
    exchanged = _Exchanged(workload, run, passes)
    times, units, layers = passes.units, workload.units, layers_of(workload)
    plain = run.with_(recompute="none") if part else run

    def back(of: Sequence[int]) -> float:
        return sum(times[u].backward.seconds if part else times[u].back for u in of)

    def spent(of: Sequence[int]) -> Pair:
        """Of these units one after the other."""
        return exchanged.beside(of, sum(times[u].forward.seconds for u in of), back(of))

    each = [spent([u]) for u in layers]
    alike = _alike([f for f, _ in each]) and _alike([b for _, b in each])
    if not alike:  # of a chunk, the longer of computing and exchanging is less than that of each layer
        each = [exchanged.slowed(u, times[u].forward.seconds, back([u])) for u in layers]
    shares = [1.0] * len(layers) if alike else _shares([f for f, _ in each])

    def least(of: Iterable[float]) -> float:
        """Of a layer that is passed in the mean time."""
        return min(value / share for value, share in zip(of, shares, strict=True))

    def kept(way: Configuration) -> float:
        return least(c.copies * chunk_activation_bytes(workload, way, (u,)) for u in layers)

    values, of_weights = zip(*(exchanged.split(u, b) for u, (_, b) in zip(layers, each, strict=True)), strict=True)
    before, behind = range(layers[0]), range(layers[-1] + 1, len(units))
    return Load(
        layers=len(layers),
        lightest=None if alike else min(shares),
        layer=(least(f for f, _ in each), least(b for _, b in each)),
        again=least(exchanged.adding(u) for u in layers) if part else 0.0,
        kept=kept(plain),
        kept_again=0.0 if c.offload else kept(run),
        copied=_copied(kept(run), profile) if c.offload else 0.0,
        weights=least(units[u].weights for u in layers),
        stored=least(units[u].stored for u in layers),
        chunk=exchanged.at_ends(layers),
        first=spent(before),
        last=spent(behind),
        total=spent(range(len(units))),
        of_weights=sum(u.weight_seconds for u in times),
        split=(
            (least(values), least(of_weights)),
            exchanged.split_of(before, spent(before)[1]),
            exchanged.split_of(behind, spent(behind)[1]),
        ),
        update=_update(sum(u.stored if c.zero else u.weights for u in units), c, profile),
        once=(exchanged.once(range(len(units))), exchanged.once_at_ends(layers)),
    )


def _alike(seconds: Sequence[float]) -> bool:
    return max(seconds) <= min(seconds) * (1 + _UNLIKE)


def _shares(seconds: Sequence[float]) -> list[float]:
    """Of each layer, how much longer it takes than the mean."""
    mean = sum(seconds) / len(seconds)
    return [s / mean for s in seconds] if min(seconds) > 0 else [1.0] * len(seconds)


def _update(elements: float, c: Configuration, profile: HardwareProfile) -> float:
    """Seconds; a part of them takes no less than its share."""
    if c.frozen:
        return 0.0
    precision = "fp32" if c.weight_bytes == 4 else c.precision
    return float(optimizer_seconds(profile, elements, precision=precision, optimizer=c.optimizer, launches=0))


def _copied(size: float, profile: HardwareProfile) -> float:
    link = profile.host.link_bytes_per_s
    return float("inf") if link is None else size / link


class _Exchanged:
    """Seconds of what data-parallel ranks exchange, and what these add to computing at least.

    Beside a collective computing runs slower by the factor of `contention`, so that of its seconds at least the share
    1 - 1 / contention is added; of the first weights that are gathered in a pass, and of the last gradients, all is.
    """

    def __init__(self, workload: Workload, c: Configuration, passes: Passes) -> None:
        exchanges = Exchanges(workload, c, passes, passes.links, (tuple(range(len(workload.units))),))
        none = [0.0] * len(workload.units)
        self.times, self.added = passes.units, 1 - 1 / passes.profile.framework.contention
        gathers = [exchanges.gather(u) for u in workload.units]
        self.gathers = gathers if c.zero == 3 else none
        self.scatters = [exchanges.scatter(u) for u in workload.units] if c.scatters_every_pass else none
        self.sums = none if c.frozen else [exchanges.summed(u) for u in workload.units]
        self.gathers_once = none if c.frozen or c.zero == 3 else gathers

    def beside(self, units: Sequence[int], forward: float, back: float) -> Pair:
        """The passes, with what is exchanged in them."""
        gathered = sum(self.gathers[u] for u in units)
        both = gathered + sum(self.scatters[u] for u in units)
        return max(forward + self.added * gathered, gathered), max(back + self.added * both, both)

    def adding(self, u: int) -> float:
        """What running a unit again adds; none where it may hide beside what is exchanged."""
        times = self.times[u]
        both = self.gathers[u] + self.scatters[u]
        return 0.0 if both * (1 - self.added) > times.backward.seconds else times.again.seconds

    def slowed(self, u: int, forward: float, back: float) -> Pair:
        """The passes of a unit, with what computing loses beside what is exchanged."""
        return forward + self.added * self.gathers[u], back + self.added * (self.gathers[u] + self.scatters[u])

    def split(self, u: int, back: float) -> Pair:
        return self.split_of((u,), back)

    def split_of(self, units: Sequence[int], back: float) -> Pair:
        """A backward pass that takes so long, as gradients of values and of weights."""
        weights = min(back, sum(self.times[u].weight_seconds for u in units))
        return back - weights, weights

    def at_ends(self, layers: Sequence[int]) -> Pair:
        gathered, scattered = min(self.gathers[u] for u in layers), min(self.scatters[u] for u in layers)
        return (1 - self.added) * gathered, (1 - self.added) * scattered

    def once(self, units: Sequence[int]) -> Pair:
        """Gradients, and weights."""
        return sum(self.sums[u] for u in units), sum(self.gathers_once[u] for u in units)

    def once_at_ends(self, layers: Sequence[int]) -> Pair:
        """The least that is summed last and gathered first: of a layer, or of what stands before them."""
        ends = {0, *layers}
        return min(self.sums[u] for u in ends), min(self.gathers_once[u] for u in ends)


def least_seconds(load: Load, c: Configuration, profile: HardwareProfile, limit: float | None, below: float) -> float:
    """Seconds that the step of every member of the family of `c` takes at least; inf where a device holds more than
    `limit` bytes in each; not looked for beyond `below`, which may be inf."""
    once = least_once(load, c, profile)
    free = max(_through(load, c), _evenly(load, c)) + once
    if free >= below:
        return free
    return max(free, _in_memory(load, c, limit, free - once, below - once) + once)


def least_once(load: Load, c: Configuration, profile: HardwareProfile) -> float:
    """Seconds of what happens once a step beside the passes, at least."""
    added = 1 - 1 / profile.framework.contention
    return load.update / c.pp + profile.host.step_overhead_s + _exposed(load, c, added)


def static_bytes(load: Load, c: Configuration) -> float:
    """Of the weights of a layer, with all that belongs to them."""
    shared = [load.stored if c.zero >= level else load.weights for level in (1, 2, 3)]
    if c.frozen:
        return shared[2] * c.weight_bytes
    state = STATE_BYTES[c.optimizer] + (0 if c.weight_bytes == 4 else 4)
    return shared[2] * c.weight_bytes + shared[1] * c.gradient_bytes + shared[0] * state


def least_chunk(load: Load, c: Configuration) -> float:
    """Layers of every chunk."""
    return (load.lightest or 1.0) * max(1.0, LEAST_CHUNK * load.layers / (c.pp * c.virtual_stages))


def _exposed(load: Load, c: Configuration, added: float) -> float:
    """Seconds that what is exchanged once a step adds to it: of the mean rank at least."""
    found = 0.0
    ways = zip(*load.once, load.total[::-1], (c.overlap_gradients, c.overlap_parameters), strict=True)
    for total, layer, beside, overlapped in ways:
        each = total / c.pp
        least = layer + added * (each - layer) if each > layer else each
        found += max(least, each - beside / c.pp) if overlapped else each
    return found


def _goes_back(c: Configuration) -> bool:
    """Whether a rank's last pass is followed by those of the ranks before it."""
    return c.order in ("1f1b", "gpipe", "interleaved")


def _through(load: Load, c: Configuration) -> float:
    """One micro-batch through all layers and back."""
    return sum(load.total) - (0.0 if _goes_back(c) else load.of_weights)


def _evenly(load: Load, c: Configuration) -> float:
    """All micro-batches, where every rank computes as long.

    With one chunk a rank, w of what a rank computes for a micro-batch is in the way of all ranks behind it, once: in T
    seconds rank d computes x_d with w (x_0 + ... + x_{d-1}) + m x_d <= T, so that x_d <= T / m (1 - w / m)^d.
    """
    total, m = sum(load.total), c.passes
    if c.pp == 1:
        return m * total
    total += (c.pp * c.virtual_stages - 1) * load.at_ends
    if c.virtual_stages > 1:
        return m * total / c.pp
    w = 1.0 if _goes_back(c) else min(p[0] / sum(p) for p in (load.layer, load.first, load.last) if sum(p))
    return w * total / (1 - max(0.0, 1 - w / m) ** c.pp)


def _in_memory(load: Load, c: Configuration, limit: float | None, least: float, below: float) -> float:
    """The shortest T, of at least `least`, in which the ranks have room for all layers; `below` where there is none
    below it, inf where there is none at all."""
    pipeline = _Pipeline(load, c, limit)

    def layers(t: float) -> float:
        return float(pipeline.most(t).sum())

    if layers(least) >= load.layers:
        return least
    if below != float("inf"):
        if layers(below) < load.layers:
            return below
        low, high = least, below
    else:
        low, high = _between(layers, load.layers, least)
    while high - low > _CLOSE * low and high != float("inf"):
        middle = (low + high) / 2
        low, high = (low, middle) if layers(middle) >= load.layers else (middle, high)
    return low if high != float("inf") else high


def _between(layers: Callable[[float], float], wanted: int, least: float) -> Pair:
    """Between what T ranks have room for so many layers; inf twice where they never have."""
    low = high = least
    for _ in range(12):  # until there is time for everything to run again on one rank
        high *= 2
        if layers(high) >= wanted:
            return low, high
        low = high
    return float("inf"), float("inf")


def _last_rank(c: Configuration) -> int:
    return next(d for d in range(c.pp) if c.pp * c.virtual_stages - 1 in chunks_of(c, d))


class _Pipeline:
    """What ranks have room for, within `limit` bytes."""

    def __init__(self, load: Load, c: Configuration, limit: float | None) -> None:
        static = static_bytes(load, c)
        flying = _in_flight(c.order, c.pp, c.virtual_stages, min(c.passes, _PASSES * c.pp))
        self.passes, self.alike = c.passes, load.lightest is None
        self.room = float("inf") if limit is None else limit
        self.seconds, self.again = sum(load.layer), load.again  # of a layer, in a pass
        self.copied = 2 * load.copied
        self.bytes, self.bytes_again = static + flying * load.kept, static + flying * load.kept_again  # of a layer
        chunk = least_chunk(load, c)
        back = _goes_back(c)
        # Once, for the ranks before; and for each micro-batch, beside layers.
        self.waits = np.arange(c.pp) * (chunk * (load.layer[0] + (load.layer[1] if back else 0.0)))
        self.waits[1:] += load.first[0] + (load.first[1] if back else 0.0)
        self.extra = np.full(c.pp, c.virtual_stages * load.at_ends)
        self.extra[0] += sum(load.first) - sum(load.chunk)
        self.extra[_last_rank(c)] += sum(load.last) - load.chunk[0]

    def most(self, t: float) -> _Floats:
        """The most layers that each rank computes within t seconds, in its room: the best corner of what two numbers of
        layers, those that are kept and those that run again, may be."""
        seconds = np.maximum(0.0, (t - self.waits) / self.passes - self.extra)
        longer = self.seconds + self.again
        kept = np.minimum(seconds / self.seconds, self.room / self.bytes)
        if self.copied:
            return self._copying(seconds)
        if not self.again:
            return self._whole(kept)
        again = np.minimum(seconds / longer, self.room / self.bytes_again)
        found = np.maximum(kept, again)
        if self.room != float("inf"):
            # Both limits at once: x a + (x + r) b = t, p a + q b = room.
            both = self.seconds * self.bytes_again - longer * self.bytes
            with np.errstate(divide="ignore", invalid="ignore"):
                a = (seconds * self.bytes_again - longer * self.room) / both
                b = (self.seconds * self.room - seconds * self.bytes) / both
            inside = np.isfinite(a) & np.isfinite(b) & (a >= 0) & (b >= 0)
            found = np.where(inside, np.maximum(found, a + b), found)
        return self._whole(found)

    def _whole(self, layers: _Floats) -> _Floats:
        return np.floor(layers + _ROUNDING) if self.alike else layers * (1 + _ROUNDING)

    def _copying(self, seconds: _Floats) -> _Floats:
        """The same, where activations of some layers wait in the host's memory: of as many as are copied beside."""
        waiting = seconds / self.copied
        room = (self.room + (self.bytes - self.bytes_again) * waiting) / self.bytes
        return self._whole(np.minimum(np.minimum(seconds / self.seconds, room), self.room / self.bytes_again))


def dealt(load: Load, c: Configuration, limit: float | None, t: float) -> tuple[int, ...] | None:
    """Layers of each chunk such that every rank is done within t seconds and holds `limit` bytes at most, as far as the
    bound tells; None where there is no such cut."""
    most = _Pipeline(load, c, limit).most(t)
    over = int(most.sum()) - load.layers
    if over < 0:
        return None
    layers = np.minimum(most, load.layers).astype(int)
    over = int(layers.sum()) - load.layers
    for _ in range(over):
        layers[layers.argmax()] -= 1
    if layers.min() < c.virtual_stages:
        return None
    found = [0] * (c.pp * c.virtual_stages)
    for d, n in enumerate(layers.tolist()):
        each, more = divmod(n, c.virtual_stages)
        for place, k in enumerate(chunks_of(c, d)):
            found[k] = each + (place < more)
    return tuple(found)


def held_evenly(load: Load, c: Configuration) -> float:
    """Bytes of the fullest rank with an even share of the layers, as far as the bound tells."""
    pipeline = _Pipeline(load, c, None)
    part = c.offload or (c.recompute == "full" and c.recompute_blocks < 1)
    each = pipeline.bytes_again if part else pipeline.bytes
    return float(each.max()) * load.layers / c.pp


@lru_cache(maxsize=4096)
def _in_flight(order: str, ranks: int, chunks: int, passes: int) -> _Floats:
    """Micro-batches of which each rank keeps all its layers at once, at least, however its layers are dealt to its
    chunks, each of which has its least share."""
    found = np.empty(ranks)
    for d in range(ranks):
        codes = device_order(order, ranks, chunks, passes, d)
        steps = np.zeros((len(codes), chunks))
        for k in range(chunks):
            steps[codes == k, k] = 1.0
            steps[codes == chunks + k, k] = -1.0
        held = steps.cumsum(axis=0)
        # Behind a step that frees, what runs back was held during it.
        least = LEAST_CHUNK * held.mean(axis=1) + (1 - LEAST_CHUNK) * held.min(axis=1)
        found[d] = least.max()
    return found
