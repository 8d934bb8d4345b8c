"""What data-parallel ranks exchange for a unit in its passes and once a step, and what that adds to computing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner.clock import Configuration
from planner.clock.exchange import Exchanges
from planner.clock.passes import Passes, passes_of
from planner.clock.stages import counted_kinds, each_once, kinds_of, layers_of
from planner.cost_models import HardwareProfile
from planner.trace import Unit, Workload
from planner.uniform.inner import Inner, Pair
from planner.uniform.once import added_share, not_hidden

__all__ = ["Beside", "Exchanged", "alone", "exchanged_in"]


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Seconds of what data-parallel ranks exchange for each unit: its weights gathered, its gradients scattered in a
    pass, and what is left of them to be summed once a step."""

    gathers: list[float]
    scatters: list[float]
    sums: list[float]


def exchanged_in(ways: Sequence[Workload], c: Configuration, profile: HardwareProfile) -> Exchanged:
    """Of workloads of `c` that differ in how weights are exchanged: of each unit the shortest."""
    run = alone(c)
    every = (tuple(range(len(ways[0].units))),)
    exchanges = [Exchanges(way, run, passes_of(way, run, profile), every) for way in ways]
    kinds = kinds_of(ways[0])

    def each(seconds: Callable[[Exchanges, Unit], float]) -> list[float]:
        return each_once(kinds, lambda k: min(seconds(x, x.w.units[k]) for x in exchanges))

    return Exchanged(each(Exchanges.gather), each(Exchanges.scatter), each(Exchanges.summed))


def alone(c: Configuration) -> Configuration:
    """On one stage, with all of what runs again or waits elsewhere."""
    return c.with_(recompute_blocks=1.0, offload=0.0, pp=1, virtual_stages=1, schedule="1f1b", stage_layers=None)


class Beside:
    """Seconds of what data-parallel ranks exchange, and what these add to computing at least.

    A pass through a chunk takes as long as what is exchanged in it, or longer.  It also takes as long as computing, of
    which collectives slow what runs beside them by the factor of `contention`, so that the share 1 - 1 / contention of
    their seconds is added; and of the first weights that are gathered in it, and of the last gradients, all is.  Of all
    chunks the one or the other bounds the forward passes, and the backward passes, whichever is more in sum: the longer
    of both unit by unit may be longer than a chunk, where one unit hides beside another.
    """

    def __init__(self, workload: Workload, c: Configuration, passes: Passes, exchanged: Exchanged) -> None:
        none = [0.0] * len(workload.units)
        self.times, self.profile, self.added = passes.units, passes.profile, added_share(passes.profile)
        self.gathers = exchanged.gathers if c.zero == 3 else none
        self.scatters = exchanged.scatters if c.scatters_every_pass and not c.frozen else none
        self.sums = none if c.frozen else exchanged.sums
        self.gathers_once = none if c.frozen or c.zero == 3 else exchanged.gathers
        every = counted_kinds(workload)
        gathered, both = self._exchanged(every)
        self.sent = tuple(
            (1 - self.added) * seconds > sum(self._computed(u)[way] * n for u, n in every.items())
            for way, seconds in enumerate((gathered, both))
        )

    def _computed(self, u: int) -> Pair:
        return self.times[u].forward.seconds, self.times[u].backward.seconds

    def _exchanged(self, units: Mapping[int, int]) -> Pair:
        gathered = sum(self.gathers[u] * n for u, n in units.items())
        return gathered, gathered + sum(self.scatters[u] * n for u, n in units.items())

    def _of_weights(self, u: int) -> float:
        return self.times[u].weight_seconds

    def passes(self, units: Mapping[int, int], forward: float, back: float) -> Pair:
        """The passes of so many of these units, which compute so long, with what is exchanged in them."""
        gathered, both = self._exchanged(units)
        return (
            gathered if self.sent[0] else forward + self.added * gathered,
            both if self.sent[1] else back + self.added * both,
        )

    def adding(self, u: int) -> float:
        """What running a unit again adds; none where exchanging bounds the pass."""
        return 0.0 if self.sent[1] else self.times[u].again.seconds

    def split(self, u: int, back: float) -> Pair:
        return self.split_of((u,), back)

    def split_of(self, units: Iterable[int], back: float) -> Pair:
        """A backward pass that takes so long, as gradients of values and of weights.  Where exchanges bound the passes
        of a chunk, those of some units may take less than their gradients of weights compute: these run beside what
        others exchange, whose gradients of values take less for it, so that the seconds may be negative."""
        mine = list(units)
        weights, computed = (sum(of(u) for u in mine) for of in (self._of_weights, lambda u: self._computed(u)[1]))
        return back - weights, min(weights, computed)

    def inner(self, workload: Workload) -> tuple[Inner, ...]:
        """What stands between layers, with its passes as they are whatever runs again."""
        layers, found = layers_of(workload), list[Inner]()
        for before, (layer, following) in enumerate(pairwise(layers), 1):
            for u in range(layer + 1, following):
                both = self.passes({u: 1}, *self._computed(u))
                longest = self.times[u].forward.seconds, self.times[u].back
                found.append(Inner(before, len(layers) - before, both, self.split_of((u,), both[1]), longest))
        return tuple(found)

    def at_ends(self, layers: Sequence[int], inner: Sequence[Inner]) -> tuple[float, float, float]:
        """What a chunk waits for first, forward and back, and last: of a layer, beside which nothing is computed but
        what may stand at the end of a chunk before it."""
        gathered, scattered = min(self.gathers[u] for u in layers), min(self.scatters[u] for u in layers)
        last, first = not_hidden((scattered, gathered), inner, self.profile)
        return self._waited(0, first), self._waited(1, gathered), self._waited(1, last)

    def _waited(self, way: int, seconds: float) -> float:
        return 0.0 if self.sent[way] else (1 - self.added) * seconds

    def at_first(self, both: Pair, units: Mapping[int, int]) -> Pair:
        """The passes of what stands before the first layer, of which the first weights and the last gradients are."""
        first = min(units, default=None)
        if first is None:
            return both
        return both[0] + self._waited(0, self.gathers[first]), both[1] + self._waited(1, self.scatters[first])

    def at_last(self, both: Pair, units: Mapping[int, int]) -> Pair:
        """The passes of what stands behind the last layer, of which the first weights are on the way back."""
        last = max(units, default=None)
        return both if last is None else (both[0], both[1] + self._waited(1, self.gathers[last]))
