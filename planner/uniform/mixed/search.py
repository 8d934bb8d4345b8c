"""The fastest uniform configurations on a cluster of several kinds of devices, best first.

Whatever could be the fastest is tried next: each configuration is bounded (`bound`), in every order of the kinds; then
its layers are cut (`cut`) and its step is simulated, first by the layout of few data-parallel ranks, then by its own.
The search ends when no bound is below the steps found.  Of the fastest, layers move one by one between stages as long
as the clock says that the step gets shorter.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from planner.clock import Configuration, MixedPrediction, predict_mixed
from planner.errors import InputError, UsageError
from planner.trace import Workload
from planner.uniform.coarse import Ranks, ranks_of
from planner.uniform.loads import LONGER
from planner.uniform.mixed.bound import Alone
from planner.uniform.mixed.cluster import Cluster, Kind, stands
from planner.uniform.mixed.cut import layers_cut
from planner.uniform.sample import Sample
from planner.uniform.space import Space, configurations, levels, schedules

__all__ = ["FoundMixed", "Mixed", "best_mixed", "changed"]

_ROUNDS: Final = 24  # of moves, one after the other
_LEAST: Final = 1e-6  # of a step, that a move has to save


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """A configuration with its layers cut, the kind of devices of each stage, and what is predicted of it."""

    configuration: Configuration
    stages: tuple[Kind, ...]
    prediction: MixedPrediction

    @property
    def step_time_s(self) -> float:
        return self.prediction.step_time_s

    @property
    def layers(self) -> tuple[int, ...]:
        """Of each stage."""
        assert self.configuration.stage_layers is not None
        return self.configuration.stage_layers


@dataclass(frozen=True, slots=True)
class FoundMixed:
    """`best`: the shortest step first; `considered`: configurations and orders in all, of which `simulated` were;
    `refused`: by reason, those that are not in question; `bound_s`: what none of the space takes less than, by the
    passes of their layouts (0 where the search was stopped)."""

    best: tuple[Mixed, ...]
    considered: int
    simulated: int
    refused: Mapping[str, int]
    bound_s: float


def best_mixed(
    sample: Sample, space: Space, cluster: Cluster, count: int = 1, stopped: Callable[[], bool] = lambda: False
) -> FoundMixed:
    """The `count` fastest of the space whose every stage fits its devices; of those met until `stopped`.

    `sample`: of the graph; how tensors travel within a stage is decided by its machine, for all kinds.
    """
    return _Search(sample, space, cluster, count, stopped).run()


class _Search:
    def __init__(self, sample: Sample, space: Space, cluster: Cluster, count: int, stopped: Callable[[], bool]) -> None:
        self.sample, self.space, self.cluster, self.count, self.stopped = sample, space, cluster, count, stopped
        self.best: list[Mixed] = []
        self.refused: Counter[str] = Counter()
        self.considered = self.simulated = 0
        self._open: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
        self._number = itertools.count()
        self._known: dict[Configuration, Alone | None] = {}

    def run(self) -> FoundMixed:
        groups: dict[Ranks, list[Configuration]] = defaultdict(list)
        for c in configurations(self.space, self.sample.profile):
            if c.pp > 1 and self.cluster.most_per_stage % (c.devices // c.pp) == 0:
                groups[ranks_of(c)].append(c)
        least = float("inf")
        for group in groups.values():
            least = min(least, self._group(group))
        while self._open and not self.stopped():
            bound, _, look, item = heapq.heappop(self._open)
            if bound >= self._last():
                break
            look(bound, item)
        if self.stopped() or not self.best:
            least = 0.0
        return FoundMixed(tuple(self.best), self.considered, self.simulated, dict(self.refused), least)

    def _group(self, group: Sequence[Configuration]) -> float:
        """Bounds all configurations of some ranks by the largest micro-batch, which is passed at the best rate; the
        least bound."""
        largest = sorted({c.micro_batch: c for c in group}.items(), reverse=True)
        alone = next((a for a in (self._alone(c) for _, c in largest) if a is not None), None)
        orders = list(self.cluster.orders())
        least = float("inf")
        for c in (s for g in group for s in schedules(self.space, g) if s.virtual_stages == 1):
            self.considered += len(orders)
            if alone is None:
                self.refused["model"] += len(orders)
                continue
            for order in orders:
                stages = stands(order, c.devices // c.pp)
                bound = alone.step(c, stages) * (1 - LONGER)
                if any(alone.may_fit(level, stages) for level in levels(self.space, c)):
                    least = min(least, bound)
                    self._push(bound, self._schedule, (c, stages))
                else:
                    self.refused["memory"] += 1
        return least

    def _alone(self, c: Configuration) -> Alone | None:
        """What a rank does in a micro-batch of `c`; None where the model does not admit it."""
        one = c.with_(dp=c.ep, pp=1, micro_batches=1, zero=0, schedule="1f1b", recompute="none", recompute_blocks=1.0)
        if one not in self._known:
            try:
                self._known[one] = Alone(self.sample.estimated(one), one, self.cluster, c.micro_batch)
            except (UsageError, InputError):
                self._known[one] = None
        return self._known[one]

    def _schedule(self, bound: float, item: tuple[Configuration, tuple[Kind, ...]]) -> None:
        """Bounds it by its own micro-batch."""
        c, stages = item
        alone = self._alone(c)
        if alone is None:
            self.refused["model"] += 1
            return
        bound = max(bound, alone.step(c, stages) * (1 - LONGER))
        for level in levels(self.space, c):
            whole = alone.whole_layers(level, stages) * (1 - LONGER)
            if whole < float("inf"):
                self._push(max(bound, whole), self._estimate, (level, stages))
            else:
                self.refused["memory"] += 1

    def _push(self, bound: float, look: Callable[[float, Any], None], item: Any) -> None:
        if bound < self._last():
            heapq.heappush(self._open, (bound, next(self._number), look, item))

    def _last(self) -> float:
        """The step from which on a configuration is not among those asked for."""
        return self.best[-1].step_time_s if len(self.best) == self.count else float("inf")

    def _estimate(self, bound: float, item: tuple[Configuration, tuple[Kind, ...]]) -> None:
        found = self._cut(*item, self.sample.estimated)
        if found is not None:
            self._push(max(bound, found.step_time_s * (1 - LONGER)), self._play, item)

    def _play(self, _: float, item: tuple[Configuration, tuple[Kind, ...]]) -> None:
        found = self._cut(*item, self.sample.workload)
        if found is not None:
            self.best.append(found)
            self.best.sort(key=lambda m: m.step_time_s)
            del self.best[self.count :]

    def _cut(
        self, c: Configuration, stages: tuple[Kind, ...], workload: Callable[[Configuration], Workload]
    ) -> Mixed | None:
        """With its layers cut; None where the model does not admit it, or nothing fits."""
        try:
            found = workload(c)
            layers = layers_cut(found, c, stages)
            if layers is None:
                self.refused["memory"] += 1
                return None
            self.simulated += 1
            return _simulated(found, c.with_(stage_layers=layers), stages)
        except (UsageError, InputError):
            self.refused["model"] += 1
            return None


def _simulated(workload: Workload, c: Configuration, stages: tuple[Kind, ...]) -> Mixed:
    return Mixed(c, stages, predict_mixed(workload, c, [k.profile for k in stages]))


def changed(sample: Sample, mixed: Mixed, stopped: Callable[[], bool] = lambda: False) -> Mixed:
    """The fastest that moves of single layers between stages lead to, each judged by the clock; it fits as well."""
    workload = sample.workload(mixed.configuration)
    limits = [k.memory_limit for k in mixed.stages]
    for _ in range(_ROUNDS):
        best = mixed
        for layers in _moves(mixed):
            if stopped():
                return best
            found = _simulated(workload, mixed.configuration.with_(stage_layers=layers), mixed.stages)
            if found.prediction.fits(limits) and found.step_time_s < best.step_time_s * (1 - _LEAST):
                best = found
        if best is mixed:
            break
        mixed = best
    return mixed


def _moves(mixed: Mixed) -> Iterator[tuple[int, ...]]:
    """A layer moved from one of the stages that take longest to any other, or from any to one of the fastest."""
    sizes = mixed.layers
    loads = [sum(t.forward_s + t.backward_s for t in row) for row in mixed.prediction.step.rows]
    by_load = sorted(range(len(sizes)), key=loads.__getitem__)
    ends = {*by_load[:2], *by_load[-2:]}
    for a, b in itertools.permutations(range(len(sizes)), 2):
        if sizes[a] > 1 and (a in ends or b in ends):
            yield tuple(n - (k == a) + (k == b) for k, n in enumerate(sizes))
