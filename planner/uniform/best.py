"""The fastest uniform configurations that fit, best first.

What is tried next is what could be the fastest.  A configuration is bounded four times, each time closer: devices never
do more per second when tensors are divided further or micro-batches are smaller, so that what a rank does in a large
micro-batch bounds, per sample, what it does in a smaller one; then the passes of its own micro-batch bound every
schedule over them; then these with what data-parallel ranks exchange bound every cut into stages.  Then its step is
simulated, first as of few data-parallel ranks and, where it may be among the best, as it is.  The search ends when no
bound is below the steps that were found.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from planner.clock import Configuration, Prediction, predict
from planner.errors import InputError, UsageError
from planner.planning.execution import runs_blocks_again
from planner.trace import Workload
from planner.uniform.bounding import Bounds, step_of
from planner.uniform.coarse import Coarse, Ranks, divides, ranks_of
from planner.uniform.first import likely
from planner.uniform.found import ONE_BY_ONE, ONE_BY_ONE_LESS, Found, Scored
from planner.uniform.least import Held, Together
from planner.uniform.loads import IN_GROUPS
from planner.uniform.sample import Sample
from planner.uniform.space import Space, configurations, groups, levels, scheduled

__all__ = ["best_of"]

_Groups = Mapping[int, Sequence[Configuration]]  # by samples of a micro-batch
_PROMISING: Final = 100  # that are simulated where there is no time for more
_ALL_KINDS: Final = 16  # of these, whose kinds may be the same
_LAID_OUT: Final = 16  # of these, until one fits
_TRIES: Final = 6  # at a first configuration that fits


def best_of(
    sample: Sample,
    space: Space,
    limit: int | None,
    count: int = 1,
    stopped: Callable[[], bool] = lambda: False,
    first: Callable[[Scored], None] = lambda scored: None,
    improved: Callable[[Scored], float] | None = None,
) -> Found:
    """The `count` fastest configurations of the space whose fullest device holds at most `limit` bytes; of those met
    until `stopped`.  `first` is called with one that fits, soon; `improved` with each that is the fastest so far: the
    seconds of a step that changes to it lead to, from which on no more than one other is looked for."""
    return _Search(sample, space, limit, count, stopped, improved).run(first)


class _Search:
    def __init__(
        self,
        sample: Sample,
        space: Space,
        limit: int | None,
        count: int,
        stopped: Callable[[], bool],
        improved: Callable[[Scored], float] | None,
    ) -> None:
        self.sample, self.space, self.limit, self.count, self.stopped = sample, space, limit, count, stopped
        self.improved, self._enough = improved, float("inf")
        self.profile = sample.profile
        self.best: list[Scored] = []
        self.refused: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self._looked_at = 0  # of those considered, at their own micro-batch
        self.considered = self.simulated = 0
        self._at_once: list[tuple[float, Configuration]] = []  # in one pass on one stage, with a bound
        self._open: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
        self._number = itertools.count()
        self._rates: dict[Ranks, float] = {}  # device-seconds of a sample, at least
        self._estimates: dict[Configuration, float] = {}  # seconds of steps
        self._shortest: dict[Configuration, float] = {}  # of those simulated, whatever their groups of ranks
        self._bounds = Bounds(sample, space, limit)

    def run(self, tell: Callable[[Scored], None]) -> Found:
        groups: dict[Ranks, dict[int, list[Configuration]]] = defaultdict(lambda: defaultdict(list))
        every = list(configurations(self.space, self.profile))
        for c in every:
            groups[ranks_of(c)][c.micro_batch].append(c)
        first = self._first(every)
        if first is not None:
            tell(first)
        for ranks in sorted(groups, key=lambda r: (r[0] * r[1] * r[2], r)):
            self._push(0.0, self._ranks, (ranks, groups[ranks]))
        while self._open and not self.stopped():
            if self._open[0][0] >= self._last():
                self.refused["bound"] += len(self._open)
                break
            bound, _, look, item = heapq.heappop(self._open)
            look(bound, item)
        if self._enough < float("inf"):
            self._take_another()
        self.best = [s for s in map(self._laid_out, self.best) if s is not None]
        self.best.sort(key=lambda s: s.prediction.step_time_s)
        if not self.best and self._open:
            first = self._promising(first)
        best = tuple(self.best) or (() if first is None else (first,))
        coarse = Coarse(self._bounds.coarse, self.profile, self._bounds.loads)
        ended = not self.stopped()
        bounded = self.considered - self.rejected.total() - self._looked_at
        rejected = {**self.rejected, **({"bound": bounded} if ended else {})}  # else some were never looked at
        found = Found(best, self.considered, self.simulated, dict(self.refused), 0.0, coarse, ended, rejected)
        # Nothing is known yet of the whole batch at once where the first that fits is all there is.
        return replace(found, at_once_s=self._seconds_at_once()) if self.best or not self._open else found

    def _first(self, every: Sequence[Configuration]) -> Scored | None:
        """Some configuration that fits.  Where one holds too much, those are next that divide the model further."""
        tried = divided = 0
        for c in likely(every, self.space, self.profile, self.sample.elements, self.limit):
            if c.pp * c.tp <= divided:
                continue
            if (tried := tried + 1) > _TRIES:
                break
            try:
                prediction = predict(self.sample.workload(c), c, self.profile)
            except (UsageError, InputError):
                continue
            if self.limit is None or round(prediction.allocated_bytes) <= self.limit:
                return Scored(c, prediction)
            divided = c.pp * c.tp
        return None

    def _promising(self, first: Scored | None) -> Scored | None:
        """Where the search was stopped before it simulated anything: of those that are estimated to be the fastest, the
        first that fits, if it is faster than the `first`."""
        met: set[object] = set()  # kinds of which one fits: others are much like it
        estimates: list[tuple[float, Configuration]] = []
        looked_at = 0
        for look in (self._play, self._estimate, self._exchange, self._schedule):  # the closest bounds first
            for place, (bound, c) in enumerate(self._of_look(look)):
                if look == self._play:  # its bound is what was estimated
                    estimates.append((bound / (1 - self._bounds.loads.longer), c))
                    continue
                if place >= _ALL_KINDS and look != self._estimate and _kind(c) in met:
                    continue
                if looked_at >= _PROMISING:
                    break
                for level in levels(self.space, c) if look == self._schedule else (c,):
                    looked_at += 1
                    prediction = self._simulated(level, self.sample.estimated)
                    if prediction is not None:
                        estimates.append((prediction.step_time_s, level))
                        met.add(_kind(c))
        for estimate, c in sorted(estimates, key=lambda e: e[0])[:_LAID_OUT]:
            if first is not None and estimate >= first.prediction.step_time_s:
                break
            prediction = self._simulated(c, self.sample.workload)
            if prediction is not None:
                return Scored(c, prediction)
        return first

    def _take_another(self) -> None:
        """Where changes to the fastest ended the search: the next one by its estimate, to which changes may lead
        further."""
        for bound, c in self._of_look(self._play)[:_TRIES]:
            if len(self.best) > 1 or self.stopped():
                return
            self._play(bound, c)

    def _of_look(self, look: Callable[[float, Any], None]) -> list[tuple[float, Configuration]]:
        """What waits for a look, with its bound, the least first."""
        return [(b, c) for b, _, c in sorted((b, n, c) for b, n, next_look, c in self._open if next_look == look)]

    def _push(self, bound: float, look: Callable[[float, Any], None], item: Any) -> None:
        if bound < self._last():
            heapq.heappush(self._open, (bound, next(self._number), look, item))
        else:
            self.refused["bound"] += 1

    def _last(self) -> float:
        """The step from which on a configuration is not among those asked for."""
        last = self.best[-1].prediction.step_time_s if len(self.best) == self.count else float("inf")
        return min(last, self._enough)

    def _ranks(self, bound: float, item: tuple[Ranks, _Groups]) -> None:
        """Bounds all configurations of some ranks by a large micro-batch."""
        ranks, groups = item
        nearest = [rate for known, rate in self._rates.items() if divides(known, ranks)]
        least = max(nearest, default=0.0) * self.space.batch / self.space.devices + self.profile.host.step_overhead_s
        if nearest and least > bound:
            self._push(least, self._ranks, item)
            return
        there: list[Configuration] = []  # which divide as much as can be
        for most in (s for group in groups.values() for m in group for s in scheduled(self.space, m)):
            self.considered += 1
            if most is None:
                self._reject("target", 1)
            else:
                there.append(most)
        if not there:
            return
        smallest = groups[min(groups)][0]
        try:
            held = Held(self.sample.estimated(self._bounds.fewest(smallest)), smallest.micro_batch)
        except (UsageError, InputError):
            self._reject("model", len(there))
            return
        fitting = [c for c in there if self._bounds.fits(held, c)]
        self._reject("memory", len(there) - len(fitting))
        sizes = [self.space.batch, *sorted({c.micro_batch for c in fitting}, reverse=True)]
        together: dict[int, Together] = {}
        for n in {c.copies for c in fitting}:
            passes = (self._bounds.passes(smallest.with_(micro_batch=m, micro_batches=n, copies=n)) for m in sizes)
            passed = next((p for p in passes if p is not None), None)
            if passed is not None:
                together[n] = self._bounds.together(passed, smallest)
        self._reject("model", sum(c.copies not in together for c in fitting))
        if not together:
            return
        if self._bounds.dominated(smallest, held, together, fitting):
            self.refused["bound"] += len(fitting)
            return
        self._rates[ranks] = min(t.seconds_per_sample for t in together.values()) * ranks[0] * ranks[1]
        self._bounds.coarse[ranks] = held, together
        for c in (c for c in fitting if c.copies in together):
            least = step_of(together[c.copies].of(c.micro_batch), c)
            if c.pp == c.micro_batches == 1:
                self._at_once.append((least, c))
            self._push(least, self._schedule, c)

    def _reject(self, reason: str, count: int) -> None:
        """Of configurations that are not looked at closer."""
        self.refused[reason] += count
        self.rejected[reason] += count

    def _seconds_at_once(self) -> float:
        """Of the fastest that passes the whole batch at once, as plans of single operators do (`Found.at_once_s`)."""
        steps = [s.prediction.step_time_s for s in self.best] or [float("inf")]
        # Not by what changes to the fastest lead to: operators, too, are laid out otherwise.
        few = len(self.best) < self.count and self._enough == float("inf")
        enough = min(float("inf") if few else steps[-1], steps[0] / (1 - ONE_BY_ONE))
        found = float("inf")
        for least, c in sorted(self._at_once, key=lambda a: a[0]):
            if least >= min(found, enough):
                break
            # Plans of single operators have no words for what waits in the host's memory, nor to run some blocks again.
            if c.offloads or (c.recompute != "none" and not runs_blocks_again(c)):
                continue
            held, _ = self._bounds.coarse[ranks_of(c)]
            for level in levels(self.space, c):
                if not self._bounds.fits(held, level):
                    continue
                prediction = self._simulated(level, self.sample.estimated, slack=ONE_BY_ONE_LESS)
                if prediction is not None:
                    found = min(found, prediction.step_time_s)
        return found

    def _schedule(self, bound: float, c: Configuration) -> None:
        """Bounds it by its own micro-batch."""
        passed = self._bounds.passes(c)
        if passed is None:
            self._reject("model", 1)
            return
        self._looked_at += 1
        least = step_of(passed, c)
        held, _ = self._bounds.coarse[ranks_of(c)]
        for level in levels(self.space, c):
            if self._bounds.fits(held, level):
                self._push(max(bound, least + held.update(level, self.profile)), self._exchange, level)

    def _exchange(self, bound: float, c: Configuration) -> None:
        """Bounds it with what data-parallel ranks exchange, as all cuts of the model at its level of ZeRO."""
        load = self._bounds.loads.of(c, exact=False)
        if load is None:
            return
        least = self._bounds.least(load, c, self._last())
        self._push(max(bound, least * (1 - self._bounds.loads.longer)), self._estimate, c)
        within = self._bounds.least_in_groups(load, c, least, self._last())
        if within < least:
            self._push(max(bound, within * (1 - self._bounds.loads.longer)), self._in_groups, c)

    def _in_groups(self, bound: float, c: Configuration) -> None:
        """Bounds the same with ZeRO over smaller groups, each by what is exchanged in it; those that are not bounded
        by less are left out, since they hold more."""
        held, _ = self._bounds.coarse[ranks_of(c)]
        over_all = self._bounds.loads.of(c, exact=False)
        least = float("inf") if over_all is None else self._bounds.least(over_all, c, self._last())
        for group in groups(self.space, c):
            load = self._bounds.loads.of(group, exact=False) if self._bounds.fits(held, group) else None
            if load is not None and (within := self._bounds.least(load, group, self._last())) < least:
                self._push(max(bound, within * (1 - self._bounds.loads.longer)), self._estimate, group)

    def _estimate(self, bound: float, c: Configuration) -> None:
        """Bounds it by its step as it is estimated.  Groups that are not faster than all ranks are left out."""
        estimate = self._estimated(c)
        if estimate < (float("inf") if c.shard_ranks is None else self._estimated(_over_all(c))):
            self._push(max(bound, estimate * (1 - self._bounds.loads.longer)), self._play, c)

    def _estimated(self, c: Configuration) -> float:
        """Seconds of the step; inf where it does not fit."""
        if c not in self._estimates:
            prediction = self._simulated(c, self.sample.estimated, slack=self._bounds.loads.larger)
            self._estimates[c] = float("inf") if prediction is None else prediction.step_time_s
        return self._estimates[c]

    def _play(self, _: float, c: Configuration) -> None:
        # Of those that differ in groups of ranks alone, estimates tell which is faster, but for very near ones.
        estimate, alike = self._estimates[c], _over_all(c)
        follows = self.sample.follows(c)
        longer = IN_GROUPS if follows else self._bounds.loads.longer
        if self._shortest.get(alike, float("inf")) <= estimate * (1 - longer):
            return
        prediction = self._simulated(c, self.sample.in_groups if follows else self.sample.workload)
        if prediction is None:
            return
        self._shortest[alike] = min(estimate, self._shortest.get(alike, float("inf")))
        slower = [s for s in self.best if _over_all(s.configuration) == alike]
        if any(s.prediction.step_time_s <= prediction.step_time_s for s in slower):
            return
        simulated = Scored(c, prediction)
        self.best = [*(s for s in self.best if s not in slower), simulated]
        self.best.sort(key=lambda s: s.prediction.step_time_s)
        del self.best[self.count :]
        if self.improved is not None and self.best[0] is simulated and (own := self._laid_out(simulated)) is not None:
            self._enough = min(self._enough, self.improved(own))

    def _laid_out(self, scored: Scored) -> Scored | None:
        """By its own layout, where that was taken from another; None where it does not fit after all."""
        if not self.sample.follows(scored.configuration):
            return scored
        prediction = self._simulated(scored.configuration, self.sample.workload)
        return None if prediction is None else Scored(scored.configuration, prediction)

    def _simulated(
        self, c: Configuration, workload: Callable[[Configuration], Workload], slack: float = 0.0
    ) -> Prediction | None:
        """None where the model does not admit the configuration, or where it does not fit even if it held less by
        `slack`."""
        try:
            prediction = predict(workload(c), c, self.profile)
        except (UsageError, InputError):
            self.refused["model"] += 1
            return None
        self.simulated += 1
        if self.limit is not None and round(prediction.allocated_bytes * (1 - slack)) > self.limit:
            self.refused["memory"] += 1
            return None
        return prediction


def _over_all(c: Configuration) -> Configuration:
    """The same with ZeRO over all ranks: of those that differ in the groups alone, the fastest is enough."""
    return c.with_(shard_ranks=None)


def _kind(c: Configuration) -> object:
    """What configurations that behave much alike have in common."""
    return c.tp, c.cp, c.pp, c.order, c.recompute
