"""What a configuration takes and holds at least, before any schedule is simulated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from planner.clock import Configuration
from planner.clock.memory import chunk_activation_bytes, chunk_offloaded_bytes, state_bytes
from planner.clock.passes import passes_of
from planner.clock.stages import chunks, chunks_of, each_once, kinds_of
from planner.cost_models import HardwareProfile, optimizer_seconds
from planner.trace import Workload

__all__ = ["ESTIMATED", "Held", "Passed", "Together"]

ESTIMATED = 0.1  # of activations: a micro-batch of another size may be laid out so that it holds less per sample
_Ranks = list[tuple[float, float, float]]  # seconds of each rank: before it, behind it, and of its own
_Cut = tuple[tuple[int, ...], ...]  # units of each chunk


@dataclass(frozen=True, eq=False)
class Passed:
    """The passes of a micro-batch of `samples` samples of a rank, of several copies together, through the units of the
    model."""

    workload: Workload
    configuration: Configuration
    profile: HardwareProfile
    samples: int
    _known: dict[object, list[tuple[float, float]]] = field(default_factory=dict)
    _paths: dict[object, float] = field(default_factory=dict)
    _times: dict[object, list[tuple[float, float]]] = field(default_factory=dict)
    _cuts: dict[int, tuple[_Cut, list[int]]] = field(default_factory=dict)
    _parts: dict[object, tuple[list[float], list[float], list[float]]] = field(default_factory=dict)

    @cached_property
    def seconds(self) -> float:
        """Of both passes, by the copy."""
        return sum(f + b for f, b in self._units("none", 1.0)) / self.configuration.copies

    def step(self, c: Configuration) -> float:
        """Seconds that the step of `c` takes at least.

        A rank has to pass all micro-batches through its chunks.  Before that the first one has passed the first chunk
        of each rank before it; behind that the last one goes back through these, unless gradients of weights, which
        nobody waits for, are what a rank does last.  And one micro-batch has to pass all chunks and come back.
        UsageError where there are more chunks than layers.
        """
        order = c.order
        goes_back = order in ("1f1b", "gpipe", "interleaved")
        key = c.pp, c.virtual_stages, goes_back, order == "zb-v", c.recompute, c.recompute_blocks, c.offload
        if key not in self._known:
            self._known[key] = _longest((a + behind if goes_back else a, own) for a, behind, own in self._ranks(c))
        passes = c.passes
        one = 0.0
        for waits, own in self._known[key]:  # asked for by the hundred thousand: no generator
            one = max(one, waits + passes * own)
        alone = self._alone(c.recompute, c.recompute_blocks, goes_back)
        return max(one, alone) * c.micro_batch / self.samples + self.profile.host.step_overhead_s

    def _ranks(self, c: Configuration) -> _Ranks:
        key = c.pp * c.virtual_stages, c.recompute, c.recompute_blocks, c.offload
        if key not in self._parts:
            self._parts[key] = self._chunks(c)
        before, behind, both = self._parts[key]
        if c.virtual_stages > 1:
            both = [sum(both[k] for k in chunks_of(c, d)) for d in range(c.pp)]
        return list(zip(before, behind, both, strict=False))  # of all chunks, of which each rank's first counts

    def _chunks(self, c: Configuration) -> tuple[list[float], list[float], list[float]]:
        """Seconds forward through all chunks before each, backward through these, and of both passes through each,
        however the schedule deals them to ranks."""
        units = self._units(c.recompute, c.recompute_blocks)
        cut, kinds = self._cut(c.pp * c.virtual_stages)
        parts = each_once(kinds, lambda k: self._both(c, units, cut[k]))
        before, behind = (list(accumulate((p[way] for p in parts), initial=0.0)) for way in (0, 1))
        return before, behind, [forward + back for forward, back in parts]

    def _cut(self, count: int) -> tuple[_Cut, list[int]]:
        """So many chunks, and a number for each, the same for chunks that do the same."""
        if count not in self._cuts:
            cut, numbers = chunks(self.workload, count), dict[tuple[int, ...], int]()
            alike = (tuple(self._kinds[i] for i in chunk) for chunk in cut)
            self._cuts[count] = cut, [numbers.setdefault(kinds, len(numbers)) for kinds in alike]
        return self._cuts[count]

    def _both(self, c: Configuration, units: Sequence[tuple[float, float]], part: Sequence[int]) -> list[float]:
        """Seconds of a chunk forward and backward, which what waits in the host's memory is copied beside."""
        copied, link = 0.0, self.profile.host.link_bytes_per_s
        if c.offload and link:
            copied = (1 - ESTIMATED) * c.copies * chunk_offloaded_bytes(self.workload, c, part) / link
        return [max(copied, sum(units[i][way] for i in part)) for way in (0, 1)]

    def _alone(self, recompute: str, blocks: float, whole: bool) -> float:
        """Seconds of a micro-batch through all chunks, with gradients of weights where the schedule has them on the
        way."""
        key = recompute, blocks, whole
        if key not in self._paths:
            both = sum(f + b for f, b in self._units(recompute, blocks))
            weights = sum(u.weight_seconds for u in passes_of(self.workload, self.configuration, self.profile).units)
            self._paths[key] = both - (0.0 if whole else weights)
        return self._paths[key]

    @cached_property
    def _kinds(self) -> list[int]:
        return kinds_of(self.workload)

    def _units(self, recompute: str, blocks: float) -> list[tuple[float, float]]:
        """Forward and backward seconds of each unit."""
        key = recompute, blocks
        if key not in self._times:
            self._times[key] = self._of_units(recompute, blocks)
        return self._times[key]

    def _of_units(self, recompute: str, blocks: float) -> list[tuple[float, float]]:
        run = self.configuration.with_(recompute=recompute, recompute_blocks=1.0)
        again = 1.0
        if recompute == "full":
            # Where the program runs whole blocks again, it leaves out what nothing reads.
            again = blocks if blocks < 1 else 0.5
        times = passes_of(self.workload, run, self.profile).units
        return [(u.forward.seconds, u.backward.seconds + again * u.again.seconds) for u in times]


@dataclass(frozen=True, eq=False)
class Together:
    """What bounds the passes of micro-batches of any size: of those of several samples, a `large` one, and of those of
    one sample that sample `alone`, which is laid out otherwise: positions that ranks divide stay divided in it where
    they do not in several (`Sample.estimated`).  None where no positions are divided, or one sample is no
    micro-batch."""

    large: Passed
    alone: Passed | None = None

    def of(self, samples: int) -> Passed:
        """Those that bound a micro-batch of so many samples."""
        return self.large if self.alone is None or samples > 1 else self.alone

    @property
    def each(self) -> tuple[Passed, ...]:
        return (self.large,) if self.alone is None else (self.large, self.alone)

    @property
    def seconds_per_sample(self) -> float:
        """At least, in a micro-batch of any size."""
        return min(p.seconds / p.samples for p in self.each)


def _longest(ranks: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of what ranks wait and compute, those that none waits as long as and computes as long as."""
    found: list[tuple[float, float]] = []
    most = -1.0
    for waits, own in sorted(ranks, key=lambda r: (-r[1], -r[0])):
        if waits > most:
            found.append((waits, own))
            most = waits
    return found


@dataclass(frozen=True, eq=False)
class Held:
    """What a data-parallel rank holds for a micro-batch of `samples` samples."""

    workload: Workload
    samples: int
    _units: dict[object, tuple[int, ...]] = field(default_factory=dict)
    _activations: dict[object, float] = field(default_factory=dict)
    _weights: dict[tuple[int, ...], float] = field(default_factory=dict)
    _frozen: dict[tuple[int, ...], float] = field(default_factory=dict)
    _updates: dict[object, float] = field(default_factory=dict)

    def update(self, c: Configuration, profile: HardwareProfile) -> float:
        """Seconds in which the first rank updates its blocks.  UsageError where there are more chunks than layers."""
        if c.frozen:
            return 0.0
        elements = self._elements(c)
        divided = elements / (c.shard_ranks or c.dp * c.cp) if c.zero else elements
        precision = "fp32" if c.weight_bytes == 4 else c.precision
        key = divided, precision, c.optimizer
        if key not in self._updates:
            seconds = optimizer_seconds(profile, divided, precision=precision, optimizer=c.optimizer, launches=0)
            self._updates[key] = float(seconds)
        return self._updates[key]

    def _mine(self, c: Configuration) -> tuple[int, ...]:
        """Units on the first rank: all, or its blocks where there are several ranks."""
        key = c.pp, c.virtual_stages, c.order == "zb-v"
        if c.pp == 1:
            return self._units.setdefault(key, tuple(range(len(self.workload.units))))
        if key not in self._units:
            parts = chunks(self.workload, c.pp * c.virtual_stages)
            self._units[key] = tuple(u for k in chunks_of(c, 0) for u in parts[k] if self.workload.repeated[u])
        return self._units[key]

    def _elements(self, c: Configuration) -> float:
        """Of their weights."""
        mine = self._mine(c)
        if mine not in self._weights:
            self._weights[mine] = sum(self.workload.units[u].weights for u in mine)
        return self._weights[mine]

    def _frozen_bytes(self, c: Configuration) -> float:
        """Of those of their weights that are never trained."""
        mine = self._mine(c)
        if mine not in self._frozen:
            self._frozen[mine] = sum(self.workload.units[u].frozen_bytes for u in mine)
        return self._frozen[mine]

    def bytes(self, c: Configuration) -> float:
        """What the first rank of the pipeline holds at least: weights with all that belongs to them, and activations.

        Of its blocks it keeps as many micro-batches as it starts before the first comes back: one for each stage; the
        schedules of zero-bubble may have fewer.  UsageError where there are more chunks than layers.
        """
        elements, over = self._elements(c), c.shard_ranks or c.dp * c.cp

        def divided(level: int) -> float:
            return elements / over if c.zero >= level else elements

        static = divided(3) * c.weight_bytes + self._frozen_bytes(c) / (over if c.zero == 3 else 1)
        if not c.frozen:
            static += divided(2) * c.gradient_bytes + divided(1) * state_bytes(c)
        flying = c.copies * min(c.passes, c.pp) if c.order in ("1f1b", "gpipe", "interleaved") else 0.5
        return static + (1 - ESTIMATED) * self._saved_bytes(c) * c.micro_batch / self.samples * flying

    def _saved_bytes(self, c: Configuration) -> float:
        """Bytes of activations of its units."""
        key = c.recompute, c.recompute_blocks, c.offload, self._mine(c)
        if key not in self._activations:
            self._activations[key] = chunk_activation_bytes(self.workload, c, self._mine(c))
        return self._activations[key]
