"""What no configuration of a family takes less than.

A family holds the configurations that agree in degrees of parallelism, micro-batches, copies, schedule, ZeRO level and
what runs again, and differ in where stages begin and in which blocks run again.  Every chunk of a pipeline has at least
half of an even share of the layers, rounded down to whole ones.

The bound: a rank of n layers, of which some run again, computes them in every pass, waits before that for what the
ranks before it do first, and holds their weights with all that belongs to them and what the passes in flight keep.  So
within T seconds and M bytes a rank has room for so many layers at most, and T is too short as long as all ranks
together have not room for the model's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.clock import Configuration
from planner.clock.stages import chunks_of, rank_of_last_chunk
from planner.cost_models import HardwareProfile
from planner.cost_models.pipeline import device_order
from planner.uniform.inner import Pair, least_layers
from planner.uniform.load import Load, room_of_ranks, static_bytes
from planner.uniform.once import least_exposed

__all__ = [
    "dealt",
    "held_evenly",
    "least_chunk",
    "least_in_groups",
    "least_once",
    "least_seconds",
]

_PASSES: Final = 4  # for each stage: more micro-batches are not in flight
_ROUNDING: Final = 1e-9
_CLOSE: Final = 5e-4  # relative, to what a bound is found
_PARTS: Final = np.arange(1, 16) / 16  # of an interval, looked at together
_Floats = NDArray[np.float64]


def least_seconds(load: Load, c: Configuration, profile: HardwareProfile, limit: float | None, below: float) -> float:
    """Seconds that the step of every member of the family of `c` takes at least; inf where a device holds more than
    `limit` bytes in each; not looked for beyond `below`, which may be inf."""
    once = least_once(load, c, profile)
    free = max(_through(load, c), _evenly(load, c)) + once
    if free >= below:
        return free
    return max(free, _in_memory(load, c, limit, free - once, below - once) + once)


def least_in_groups(
    groups: Load,
    load: Load,
    c: Configuration,
    profile: HardwareProfile,
    limit: float | None,
    below: float,
    *,
    least: float,
) -> float:
    """As `least_seconds` of `groups`, the load of `c` with another exchange; `least`: that of its own load."""
    if c.zero < 3 and not c.scatters_every_pass:
        shorter = least + least_once(groups, c, profile) - least_once(load, c, profile)
        if least < below or shorter >= below:  # where nothing was left out, all else is the same
            return shorter
    return least_seconds(groups, c, profile, limit, below)


def least_once(load: Load, c: Configuration, profile: HardwareProfile) -> float:
    """Seconds of what happens once a step beside the passes, at least."""
    exposed = least_exposed(load.once, c, profile)
    return load.update / c.pp + profile.host.step_overhead_s + exposed


def least_chunk(load: Load, c: Configuration) -> float:
    """Layers of every chunk, or what the lightest ones come to."""
    return least_layers(load.layers, c) * (load.lightest or 1.0)


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
    if load.lightest is not None and not _goes_back(c):
        return m * total / c.pp
    parts = load.layer, load.first, load.last, *(x.passes for x in load.inner)
    w = 1.0 if _goes_back(c) else min(p[0] / sum(p) for p in parts if sum(p))
    return w * total / (1 - max(0.0, 1 - w / m) ** c.pp)


def _in_memory(load: Load, c: Configuration, limit: float | None, least: float, below: float) -> float:
    """The shortest T, of at least `least`, in which the ranks have room for all layers; `below` where there is none
    below it, inf where there is none at all."""
    pipeline = _Pipeline(load, c, limit)
    if below != float("inf"):
        ends = pipeline.most(np.array([[least], [below]])).sum(axis=1).tolist()
        if ends[0] >= load.layers:
            return least
        if ends[1] < load.layers:
            return below
        low, high = least, below
    else:
        ends = pipeline.most(np.array([[least], [2 * least]])).sum(axis=1).tolist()
        if ends[0] >= load.layers:
            return least
        low, high = least, 2 * least
        if ends[1] < load.layers:
            low, high = _between(lambda t: float(pipeline.most(t).sum()), load.layers, high)
    while high - low > _CLOSE * low and high != float("inf"):
        times = low + (high - low) * _PARTS
        enough = pipeline.most(times[:, None]).sum(axis=1) >= load.layers
        first = int(enough.argmax()) if enough.any() else len(times)
        low = float(times[first - 1]) if first else low
        high = float(times[first]) if first < len(times) else high
    return low if high != float("inf") else high


def _between(layers: Callable[[float], float], wanted: int, least: float) -> Pair:
    """Between what T ranks have room for so many layers; inf twice where they never have."""
    low = high = least
    for _ in range(11):  # until there is time for everything to run again on one rank
        high *= 2
        if layers(high) >= wanted:
            return low, high
        low = high
    return float("inf"), float("inf")


class _Pipeline:
    """What ranks have room for, within `limit` bytes."""

    def __init__(self, load: Load, c: Configuration, limit: float | None) -> None:
        static = static_bytes(load, c)
        chunk = least_chunk(load, c)
        share = min(1.0, chunk * c.pp * c.virtual_stages / load.layers)  # of an even one, that every chunk has
        flying, more = _in_flight(c.order, c.pp, c.virtual_stages, min(c.passes, _PASSES * c.pp), share)
        self.passes, self.alike = c.passes, load.lightest is None
        # Of a chunk's least share, in which it is open what runs again or waits elsewhere.
        each = load.saved_again if load.again or load.copied else load.saved
        self.held = more * (chunk * c.virtual_stages * each)
        self.room = np.array(room_of_ranks(load, c, limit)) - self.held
        self.seconds, self.again = sum(load.layer), load.again  # of a layer, in a pass
        self.copied = 2 * load.copied
        self.on_the_way = 2 * load.saved * (load.lightest or 1.0)
        # Of a layer; one byte, where it holds nothing all the time.
        self.bytes, self.bytes_again = (np.maximum(1.0, static + flying * b) for b in (load.saved, load.saved_again))
        self.most_saved = np.maximum(0.0, self.room / self.bytes)
        back = _goes_back(c)
        # Once, for the ranks before; and for each micro-batch, beside layers.
        self.waits = _numbers(c.pp) * (chunk * (load.layer[0] + (load.layer[1] if back else 0.0)))
        least = least_layers(load.layers, c)
        before = [load.first, *(x.passes for x in load.inner if x.in_first_chunk(least))]
        behind = [load.last, *(x.passes for x in load.inner if x.in_last_chunk(least))]
        self.waits[1:] += sum(p[0] + (p[1] if back else 0.0) for p in before)
        self.extra = np.zeros(c.pp)
        self.extra += c.virtual_stages * load.at_ends
        self.extra[0] += sum(map(sum, before)) - load.chunk[0] - load.chunk[2]
        self.extra[rank_of_last_chunk(c)] += sum(map(sum, behind)) - load.chunk[1]

    def most(self, t: float | _Floats) -> _Floats:
        """The most layers that each rank computes within t seconds, in its room: the best corner of what two numbers of
        layers, those that are kept and those that run again, may be.  A column of t makes a row for each."""
        seconds = np.maximum(0.0, (t - self.waits) / self.passes - self.extra)
        if self.copied:
            return self._copying(seconds)
        saved = np.minimum(seconds / self.seconds, self.most_saved)
        if not self.again:
            return self._whole(saved)
        longer, both, most_again, rooms = self._running_again
        found = np.maximum(saved, np.minimum(seconds / longer, most_again))
        if rooms is not None:
            with np.errstate(divide="ignore", invalid="ignore"):
                a = (seconds * self.bytes_again - rooms[0]) / both
                b = (rooms[1] - seconds * self.bytes) / both
                corner = a + b
            inside = (a >= 0) & (b >= 0) & (corner < float("inf"))
            np.maximum(found, corner, out=found, where=inside)
        return self._whole(found)

    @cached_property
    def _running_again(self) -> tuple[float, _Floats, _Floats, tuple[_Floats, _Floats] | None]:
        """Of both limits at once, x a + (x + r) b = t and p a + q b = room: x + r, the determinant, room / q, and the
        products of the two with the room, where there is a limit."""
        longer = self.seconds + self.again
        both = self.seconds * self.bytes_again - longer * self.bytes
        bounded = bool(np.isfinite(self.room).all())
        rooms = (longer * self.room, self.seconds * self.room) if bounded else None
        return longer, both, np.maximum(0.0, self.room / self.bytes_again), rooms

    def _whole(self, layers: _Floats) -> _Floats:
        return np.floor(layers + _ROUNDING) if self.alike else layers * (1 + _ROUNDING)

    def _copying(self, seconds: _Floats) -> _Floats:
        """The same, where activations of some layers wait in the host's memory: of as many as are copied beside, and
        with those of two layers on their way there and back; or of none."""
        room, freed, most_waiting = self._waiting
        computed = seconds / self.seconds
        mixed = (room + freed * (seconds / self.copied)) / self.bytes
        waits = np.minimum(np.minimum(computed, mixed), most_waiting)
        return self._whole(np.maximum(waits, np.minimum(computed, self.most_saved)))

    @cached_property
    def _waiting(self) -> tuple[_Floats, _Floats, _Floats]:
        """Bytes that are left beside what is on the way, bytes that a layer frees, and the most layers that wait."""
        room = np.maximum(0.0, self.room - self.on_the_way)
        return room, self.bytes - self.bytes_again, room / self.bytes_again


def layers_of_ranks(load: Load, c: Configuration, limit: float | None, t: float) -> list[float]:
    """The most layers that each rank of the pipeline has room for and passes within t seconds."""
    most: list[float] = _Pipeline(load, c, limit).most(t).tolist()
    return most


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
    beside = -np.array(room_of_ranks(load, c, 0.0, least=-float("inf")))
    return float((each * load.layers / c.pp + pipeline.held + beside).max())


@lru_cache
def _numbers(ranks: int) -> NDArray[np.int64]:
    return np.arange(ranks)


@lru_cache(maxsize=4096)
def _in_flight(order: str, ranks: int, chunks: int, passes: int, share: float) -> tuple[_Floats, _Floats]:
    """Micro-batches of which each rank keeps all its layers at once, at least, however its layers are dealt to its
    chunks; and of which it keeps the least share of its chunks beside that.  At the moment when a rank with an even
    share of the layers, whose chunks each have this `share` of an even one, holds most."""
    found, beside = np.empty(ranks), np.empty(ranks)
    for d in range(ranks):
        codes = device_order(order, ranks, chunks, passes, d)
        steps = np.zeros((len(codes), chunks))
        for k in range(chunks):
            steps[codes == k, k] = 1.0
            steps[codes == chunks + k, k] = -1.0
        held = steps.cumsum(axis=0)
        # Behind a step that frees, what runs back was held during it.
        least, more = held.min(axis=1), held.mean(axis=1) - held.min(axis=1)
        at = int((least + share * more).argmax())
        found[d], beside[d] = least[at], more[at]
    return found, beside
