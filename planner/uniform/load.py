"""What a rank does in one pass of a family of configurations (`planner.uniform.families`), at least."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from planner.clock import Configuration
from planner.clock.memory import chunk_activation_bytes, made_bytes, state_bytes
from planner.clock.passes import passes_of
from planner.clock.ranks import handover_seconds
from planner.clock.stages import (
    counted_kinds,
    counted_layers,
    kinds_of,
    layers_of,
    rank_of_last_chunk,
)
from planner.cost_models import HardwareProfile
from planner.trace import Workload
from planner.uniform.beside import Beside, Exchanged, alone, exchanged_in
from planner.uniform.inner import Inner, Pair, least_layers
from planner.uniform.once import NOTHING, Once, once_of, updated

__all__ = [
    "Exchanged",
    "Load",
    "Pair",
    "exchanged_in",
    "exchanged_once",
    "least_handover",
    "load_of",
    "room_of_ranks",
    "static_bytes",
    "weights_bytes",
]

_UNLIKE: Final = 0.02  # relative, up to which the lightest layer stands for all


@dataclass(frozen=True, slots=True)
class Load:
    """What a rank does in one pass, of all copies together, with what is exchanged in every pass.

    `lightest`: None where all layers are alike; else a layer is what passes forward in the mean time of the model's, a
    part or a multiple of one of them, of which the lightest is so much.

    Of the lightest layer, or the least that may belong to one: seconds of both passes (`layer`; `split`: back, as
    gradients of values and of weights, of a layer, of `first` and of `last`), seconds that running it `again` adds,
    bytes that it `saved` for its backward pass, and `saved_again` where it runs again or waits in the host's memory,
    where copying it there or back takes `copied` seconds beside a pass; elements of its `weights` as they are read and
    as they are `stored`, and bytes of those that are `frozen`, alike.  `beside`: bytes that a rank holds beside all
    that while it computes; `ends`: elements of weights before the first layer and behind the last one, as they are read
    and as they are stored, and `frozen_ends`: bytes of those that are frozen.

    `chunk`: seconds that a pass through a chunk waits for its first gathering, forward and back, and for its last
    scattering, unless it begins or ends with other units than layers. Seconds of the units before the first layer
    (`first`) and behind the last one (`last`), and `total` of all; of that, `of_weights` makes gradients of weights.

    `inner`: what stands between layers.  `update`: seconds in which all weights are updated, once a step; `once`: what
    is exchanged and updated then, by where it stands.
    """

    layers: int
    lightest: float | None
    layer: Pair
    again: float
    saved: float
    saved_again: float
    copied: float
    weights: float
    stored: float
    beside: float
    ends: tuple[Pair, Pair]
    chunk: tuple[float, float, float]
    first: Pair
    last: Pair
    total: Pair
    of_weights: float
    split: tuple[Pair, Pair, Pair]
    update: float
    once: Once = NOTHING
    inner: tuple[Inner, ...] = ()
    frozen: Pair = (0.0, 0.0)
    frozen_ends: tuple[Pair, Pair] = ((0.0, 0.0), (0.0, 0.0))

    @property
    def at_ends(self) -> float:
        """Seconds of a chunk forward and back beside its layers."""
        return sum(self.chunk)

    def scaled(self, factor: float) -> Load:
        """Of so many times the samples, at the same rate; without what is exchanged."""

        def pair(seconds: Pair) -> Pair:
            return seconds[0] * factor, seconds[1] * factor

        return replace(
            self,
            layer=pair(self.layer),
            again=self.again * factor,
            chunk=(0.0, 0.0, 0.0),
            first=pair(self.first),
            last=pair(self.last),
            total=pair(self.total),
            of_weights=self.of_weights * factor,
            split=(pair(self.split[0]), pair(self.split[1]), pair(self.split[2])),
            once=NOTHING,
            inner=(),
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

        def parts(read: Pair) -> Pair:
            return read[0], read[0] / divided

        return replace(
            self,
            saved=other.saved * factor,
            saved_again=other.saved_again * factor,
            copied=other.copied * factor,
            beside=other.beside * factor,
            ends=(parts(self.ends[0]), parts(self.ends[1])),
            stored=self.weights / divided,
            frozen=parts(self.frozen),
            frozen_ends=(parts(self.frozen_ends[0]), parts(self.frozen_ends[1])),
            update=self.update / divided,
        )


def exchanged_once(workload: Workload, c: Configuration, profile: HardwareProfile, exchanged: Exchanged) -> Once:
    """As `Load.once`, of this exchange."""
    passes = passes_of(workload, alone(c), profile)
    beside = Beside(workload, c, passes, exchanged)
    return once_of(workload, c, profile, (beside.sums, beside.gathers_once), passes, beside.inner(workload))


def load_of(workload: Workload, c: Configuration, profile: HardwareProfile, exchanged: Exchanged | None = None) -> Load:
    """Of `c` on its own workload, or with another exchange; where a part of the blocks runs again (`recompute_blocks`
    below 1) or waits in the host's memory, of blocks that do not, and `again` and `copied` say what doing so takes."""
    part = c.recompute == "full" and c.recompute_blocks < 1
    run = alone(c)
    passes = passes_of(workload, run, profile)
    beside = Beside(workload, run, passes, exchanged or exchanged_in((workload,), c, profile))
    times, units, layers = passes.units, workload.units, layers_of(workload)
    every = counted_kinds(workload)
    plain = run.with_(recompute="none") if part else run

    def back(u: int) -> float:
        return times[u].backward.seconds if part else times[u].back

    def spent(of: Mapping[int, int]) -> Pair:
        """Of so many of these units one after the other."""
        return beside.passes(
            of, sum(times[u].forward.seconds * n for u, n in of.items()), sum(back(u) * n for u, n in of.items())
        )

    inner, counted = beside.inner(workload), counted_layers(workload)
    kinds = list(counted)
    each = [spent({u: 1}) for u in kinds]
    alike = _alike([f for f, _ in each]) and _alike([b for _, b in each])
    shares = [1.0] * len(kinds) if alike else _shares([f for f, _ in each], list(counted.values()))

    def least(of: Iterable[float]) -> float:
        """Of a layer that is passed in the mean time."""
        return min(value / share for value, share in zip(of, shares, strict=True))

    def saved(way: Configuration) -> float:
        return least(c.copies * chunk_activation_bytes(workload, way, (u,)) for u in kinds)

    values, of_weights = zip(*(beside.split(u, b) for u, (_, b) in zip(kinds, each, strict=True)), strict=True)
    before, behind = (dict.fromkeys(ends, 1) for ends in (range(layers[0]), range(layers[-1] + 1, len(units))))
    first, last = beside.at_first(spent(before), before), beside.at_last(spent(behind), behind)
    return Load(
        layers=len(layers),
        lightest=None if alike else min(shares),
        layer=(least(f for f, _ in each), least(b for _, b in each)),
        again=least(beside.adding(u) for u in kinds) if part else 0.0,
        saved=saved(plain),
        saved_again=0.0 if c.offload else saved(run),
        copied=_copied(saved(run), profile) if c.offload else 0.0,
        weights=least(units[u].weights for u in kinds),
        stored=least(units[u].stored for u in kinds),
        beside=_beside(workload, c),
        ends=(_elements(workload, before), _elements(workload, behind)),
        chunk=beside.at_ends(kinds, inner),
        first=first,
        last=last,
        total=spent(every),
        of_weights=sum(times[u].weight_seconds * n for u, n in every.items()),
        split=(
            (least(values), least(of_weights)),
            beside.split_of(before, first[1]),
            beside.split_of(behind, last[1]),
        ),
        update=updated(workload, every, c, profile),
        once=once_of(workload, c, profile, (beside.sums, beside.gathers_once), passes, inner, least),
        inner=inner,
        frozen=(least(units[u].frozen_bytes for u in kinds), least(units[u].frozen_stored_bytes for u in kinds)),
        frozen_ends=(_frozen(workload, before), _frozen(workload, behind)),
    )


def _beside(workload: Workload, c: Configuration) -> float:
    """Bytes that come and go on a rank, at least, as `planner.clock.memory` counts them: of the unit that ends one of
    its chunks, which is a layer or stands behind all of them, and of some layer's weights and their gradients."""
    units, layers = workload.units, layers_of(workload)
    kinds = list(counted_layers(workload))
    ends = [*kinds, *range(layers[-1] + 1, len(units))]
    size: float = workload.constant_bytes + c.copies * min(units[u].over_bytes for u in ends)
    if not c.frozen:
        widest = (units[u].widest_weights if workload.repeated[u] else 0 for u in kinds)
        size += min(widest) * made_bytes(c)
        if c.zero == 3:
            size += min(units[u].weights for u in kinds) * (2 * c.weight_bytes + c.gradient_bytes)
    return size


def _elements(workload: Workload, of: Iterable[int]) -> Pair:
    """Of weights of these units, as they are read and as they are stored."""
    mine = [workload.units[u] for u in of]
    return float(sum(u.weights for u in mine)), float(sum(u.stored for u in mine))


def _frozen(workload: Workload, of: Iterable[int]) -> Pair:
    """Bytes of weights of these units that are never trained, as they are read and as ZeRO 3 stores them."""
    mine = [workload.units[u] for u in of]
    return float(sum(u.frozen_bytes for u in mine)), float(sum(u.frozen_stored_bytes for u in mine))


def _alike(seconds: Sequence[float]) -> bool:
    return max(seconds) <= min(seconds) * (1 + _UNLIKE)


def _shares(seconds: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Of each kind of layer, of which there are so many, how much longer it takes than the mean."""
    mean = sum(s * n for s, n in zip(seconds, counts, strict=True)) / sum(counts)
    return [s / mean for s in seconds] if min(seconds) > 0 else [1.0] * len(seconds)


def _copied(size: float, profile: HardwareProfile) -> float:
    link = profile.host.link_bytes_per_s
    return float("inf") if link is None else size / link


def least_handover(workload: Workload, c: Configuration, profile: HardwareProfile) -> tuple[float, ...]:
    """Seconds that handing activations to each chunk but the first takes at least, beside computing; 0 where the sender
    waits."""
    count = c.pp * c.virtual_stages
    if c.pp == 1 or not c.overlap_pipeline:
        return (0.0,) * (count - 1)
    layers, passes = layers_of(workload), passes_of(workload, c, profile)
    least = least_layers(len(layers), c)

    def handed(k: int) -> float:
        """To chunk k, before which there are at least so many layers, and behind which."""
        begins = {kinds[layers[n - 1] + 1]: n for n in range(k * least, len(layers) - (count - k) * least + 1)}
        units = (workload.units[layers[n - 1] + 1] for n in begins.values())
        return min((handover_seconds(workload, u, c.copies, passes) for u in units), default=0.0)

    kinds = kinds_of(workload)
    return tuple(handed(k) for k in range(1, count))


def static_bytes(load: Load, c: Configuration) -> float:
    """Of the weights of a layer, with all that belongs to them."""
    return weights_bytes(load.weights, load.stored, c) + load.frozen[c.zero == 3]


def room_of_ranks(load: Load, c: Configuration, limit: float | None, least: float = 0.0) -> list[float]:
    """Bytes that each rank of the pipeline has for its layers, at least `least`: without what comes and goes, and
    without the weights before the first layer, which are on the rank of the first chunk, and behind the last one, on
    that of the last."""
    if limit is None:
        return [float("inf")] * c.pp
    room = [limit - load.beside] * c.pp
    for rank, (weights, stored), frozen in zip((0, rank_of_last_chunk(c)), load.ends, load.frozen_ends, strict=True):
        room[rank] -= weights_bytes(weights, stored, c) + frozen[c.zero == 3]
    return [max(least, r) for r in room]


def weights_bytes(weights: float, stored: float, c: Configuration) -> float:
    """Of so many weights, as they are read and as they are stored, with their gradients and the optimizer's state."""
    shared = [stored if c.zero >= level else weights for level in (1, 2, 3)]
    if c.frozen:
        return shared[2] * c.weight_bytes
    state = state_bytes(c)
    return shared[2] * c.weight_bytes + shared[1] * c.gradient_bytes + shared[0] * state
