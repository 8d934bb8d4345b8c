"""What happens once a step on each rank of a pipeline, beside the passes: at least, and linear in the rank's layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from planner.clock import Configuration
from planner.clock.passes import Passes, passes_of
from planner.clock.stages import counted_kinds, counted_layers, layers_of, rank_of_last_chunk
from planner.cost_models import HardwareProfile, optimizer_seconds
from planner.cost_models.memory import Optimizer, Precision
from planner.trace import Workload
from planner.uniform.inner import Inner, Pair, least_layers

__all__ = [
    "NOTHING",
    "ByRank",
    "Once",
    "added_share",
    "least_exposed",
    "not_hidden",
    "once_by_rank",
    "once_of",
    "shares_added",
    "tied_seconds",
    "updated",
    "updates_of",
]


@dataclass(frozen=True, slots=True)
class Once:
    """Seconds in which gradients are summed, and updated weights gathered: of all units (`total`), of a layer, of what
    stands before the first layer and behind the last one (`ends`); of what is summed last and gathered first on the
    first rank of a pipeline (`first`), on one that begins with a layer (`begun`), and on any (`least`). `update`:
    seconds in which the weights of a layer, and of both ends, are updated; `hiding`: seconds of all backward, and
    forward, passes, at most, with what may run again."""

    total: Pair = (0.0, 0.0)
    layer: Pair = (0.0, 0.0)
    ends: tuple[Pair, Pair] = ((0.0, 0.0), (0.0, 0.0))
    first: Pair = (0.0, 0.0)
    begun: Pair = (0.0, 0.0)
    least: Pair = (0.0, 0.0)
    hiding: Pair = (0.0, 0.0)
    update: tuple[float, float, float] = (0.0, 0.0, 0.0)


NOTHING: Final = Once()


@dataclass(frozen=True, slots=True)
class ByRank:
    """Seconds, at least: `least` of the rank that takes longest, and of each rank `layer` for each of its layers and
    what it has `beside` them."""

    least: float
    layer: float
    beside: tuple[float, ...]

    def seconds(self, layers: Sequence[float]) -> float:
        """Of a pipeline whose ranks have so many layers."""
        return max(self.least, *(n * self.layer + b for n, b in zip(layers, self.beside, strict=True)))


def once_of(
    workload: Workload,
    c: Configuration,
    profile: HardwareProfile,
    exchanged: tuple[Sequence[float], Sequence[float]],
    passes: Passes,
    inner: Sequence[Inner],
    least: Callable[[Iterable[float]], float] | None = None,
) -> Once:
    """`exchanged`: seconds in which gradients of each unit are summed, and its weights gathered; `least`: what of each
    kind of layers is that of a layer (None: nothing is said of layers)."""
    units, kinds, layers = counted_kinds(workload), counted_layers(workload), layers_of(workload)
    ends = [dict.fromkeys(of, 1) for of in (range(layers[0]), range(layers[-1] + 1, len(workload.units)))]

    def of_layer(each: Callable[[int], float]) -> float:
        return 0.0 if least is None else least(map(each, kinds))

    def summed(of: Mapping[int, int]) -> Pair:
        sums, gathers = (sum(way[u] * n for u, n in of.items()) for way in exchanged)
        return sums, gathers

    updates = updates_of(workload, c, profile)

    layer_sums, layer_gathers = (of_layer(way.__getitem__) for way in exchanged)
    begun = (min(exchanged[0][u] for u in kinds), min(exchanged[1][u] for u in kinds))
    hidden = not_hidden(begun, inner, profile)
    return Once(
        total=summed(units),
        layer=(layer_sums, layer_gathers),
        ends=(summed(ends[0]), summed(ends[1])),
        first=(exchanged[0][0], exchanged[1][0]),
        begun=begun,
        hiding=(
            sum(passes.units[u].back * n for u, n in units.items()),
            sum(passes.units[u].forward.seconds * n for u, n in units.items()),
        ),
        least=(min(exchanged[0][0], hidden[0]), min(exchanged[1][0], hidden[1])),
        update=(of_layer(lambda u: updates({u: 1})), updates(ends[0]), updates(ends[1])),
    )


def updates_of(workload: Workload, c: Configuration, profile: HardwareProfile) -> Callable[[Mapping[int, int]], float]:
    """Seconds in which the weights of so many of these units are updated at least, wherever they stand: fewer elements
    take as long each as those of the whole model, or longer."""
    every = counted_kinds(workload)
    elements = _elements(workload, every, c)
    rate = updated(workload, every, c, profile) / elements if elements else 0.0
    return lambda units: rate * _elements(workload, units, c)


def updated(workload: Workload, of: Mapping[int, int], c: Configuration, profile: HardwareProfile) -> float:
    """Seconds in which the weights of so many of these units are updated, all together."""
    if c.frozen:
        return 0.0
    return _updated(_elements(workload, of, c), "fp32" if c.weight_bytes == 4 else c.precision, c.optimizer, profile)


def _elements(workload: Workload, of: Mapping[int, int], c: Configuration) -> float:
    """That a rank updates, of the weights of so many of these units."""
    units = workload.units
    return float(sum((units[u].stored if c.zero else units[u].weights) * n for u, n in of.items()))


@lru_cache(maxsize=65536)
def _updated(elements: float, precision: Precision, optimizer: Optimizer, profile: HardwareProfile) -> float:
    return float(optimizer_seconds(profile, elements, precision=precision, optimizer=optimizer, launches=0))


def least_exposed(once: Once, c: Configuration, profile: HardwareProfile) -> float:
    """Seconds that sums and gathering add to a step of the mean rank.

    Beside a collective computing runs slower by the factor of `contention`, so that of its seconds at least the share
    1 - 1 / contention is added; of the first weights that are gathered, and of the last gradients, all is.
    """
    found = 0.0
    for total, least, beside, added in zip(once.total, once.least, once.hiding, shares_added(c, profile), strict=True):
        each = total / c.pp
        if added == 1.0:
            found += each
        else:
            found += max(least + added * (each - least) if each > least else each, each - beside / c.pp)
    return found


def not_hidden(begun: Pair, inner: Iterable[Inner], profile: HardwareProfile) -> Pair:
    """Of what is summed last and gathered first, where that is of a layer which may stand behind one of these: what is
    not exchanged beside their passes, which take longer for it; sums run beside the backward pass."""
    slowed = profile.framework.contention
    sums, gathers = (slowed * max((x.longest[way] for x in inner), default=0.0) for way in (1, 0))
    return max(0.0, begun[0] - sums), max(0.0, begun[1] - gathers)


def once_by_rank(
    once: Once,
    inner: Sequence[Inner],
    layers: int,
    least: float,
    tied: float,
    c: Configuration,
    profile: HardwareProfile,
) -> ByRank:
    """Of a model of so many `layers`, with these units between them; `least`: seconds that are known of the rank that
    takes longest, the overhead of a step included; `tied`: of weights that the first and the last rank both read
    (`tied_seconds`)."""
    last, fewest = rank_of_last_chunk(c), least_layers(layers, c)
    count = c.pp * c.virtual_stages
    first = [once.first] + [
        not_hidden(once.begun, [x for x in inner if x.begins(k, count, fewest)], profile) for k in range(1, c.pp)
    ]
    layer = once.update[0]
    beside = [profile.host.step_overhead_s] * c.pp
    for rank, update in zip((0, last), once.update[1:], strict=True):
        beside[rank] += update + (tied if last else 0.0)
    for way, added in enumerate(shares_added(c, profile)):
        layer += added * once.layer[way]
        for rank, begun in enumerate(first):
            beside[rank] += (1 - added) * begun[way]
        for rank, end in zip((0, last), once.ends, strict=True):
            beside[rank] += added * end[way]
    return ByRank(least, layer, tuple(beside))


def shares_added(c: Configuration, profile: HardwareProfile) -> Pair:
    """The share of its seconds that a sum, and a gathering, adds to a step at least."""
    shared = added_share(profile)
    return shared if c.overlap_gradients else 1.0, shared if c.overlap_parameters else 1.0


def added_share(profile: HardwareProfile) -> float:
    """Of the seconds of a collective, what it adds to computing that runs beside it, at least."""
    return 1 - 1 / profile.framework.contention


def tied_seconds(workload: Workload, c: Configuration, profile: HardwareProfile) -> float:
    """Seconds in which the first and the last rank of a pipeline sum gradients of weights that units before the first
    layer and behind the last one read, as of an embedding that is the output layer too."""
    last = rank_of_last_chunk(c)
    if not workload.tied or not last or c.frozen:
        return 0.0
    layers, links = layers_of(workload), passes_of(workload, c, profile).exchanging(workload)

    def both(units: Iterable[int]) -> bool:
        """Whether they stand before the layers and behind them, and none stands elsewhere."""
        return {(u < layers[0]) - (u > layers[-1]) for u in units} == {1, -1}

    return sum(links.across((0, last), t.stored * c.gradient_bytes) for t in workload.tied if both(t.units))
