"""What no uniform configuration is faster than, wherever stages begin and whichever blocks run again.

Families (`planner.uniform.families`) are bounded best first, each twice: by what a rank does in a large micro-batch, as
the search itself does (`planner.uniform.best`), then by its own workload.  What may still be faster than the best is
simulated, where there is nothing left to choose in a family, or improved as the best were (`refine`).  The least bound
left over all families bounds the step of every configuration in them.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Final

from planner.clock import Configuration, predict
from planner.errors import InputError, UsageError
from planner.uniform.by_stage import fewest_by_stage
from planner.uniform.coarse import Coarse, ranks_of
from planner.uniform.cuts import QUICK, THOROUGH, Cut, Effort, Paths, best_cut
from planner.uniform.families import dealt, held_evenly, least_in_groups, least_once, least_seconds
from planner.uniform.found import Scored
from planner.uniform.load import Load, least_handover
from planner.uniform.loads import laid_out_as
from planner.uniform.once import ByRank, once_by_rank, tied_seconds
from planner.uniform.refine import least_share, refined
from planner.uniform.sample import Sample
from planner.uniform.space import FRACTIONS, Space, configurations, copied, groups, levels, scheduled

__all__ = ["Proven", "prove"]

_NEAR: Final = 0.005  # a bound so close to the best is not raised further
_OPENED: Final = 40_000  # families, on the way to a bound
_ROUNDS_ESTIMATED: Final = 20  # of the bound of a cut, by what is estimated
_CUT: Final = 64  # families whose best cut is found by what is estimated of them
_THOROUGH: Final = 2  # families that are bounded by more effort at the end
_LAID_OUT: Final = 18  # layouts that are found in search of one that is faster
_LAID_OUT_FOR_A_BOUND: Final = 30  # and where the least bound of all is raised by it
_TRIED: Final = 18  # families of which a member is improved
_LONGER_CUTS: Final = (0.001, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04)  # than the bound, that cuts are tried for
_WORTH: Final = 0.03  # of the best step, that a member may be slower for that
_LAYERS: Final = 2  # from which on a part of them may run again
_PART: Final = 0.5  # says of a family that a part of the blocks, any, runs again


@dataclass(frozen=True, slots=True)
class Proven:
    """`best`: the fastest that was met; `bound_s`: seconds that no member of any family takes less than, 0 where it was
    stopped before all were looked at; `families`: how many are in question, of which so many were `opened`."""

    best: Scored
    bound_s: float
    families: int
    opened: int


def prove(
    sample: Sample,
    space: Space,
    limit: int | None,
    best: Scored,
    coarse: Coarse,
    stopped: Callable[[], bool] = lambda: False,
    *,
    bounded: bool = True,
) -> Proven:
    """Bounds all families of the space, whose members hold at most `limit` bytes on a device, and looks for a member
    that is faster than `best`; of the family of `best` alone, and without a bound, where it is not to be `bounded`.
    `coarse`: of all ranks that may be near the best."""
    proof = _Proof(sample, space, limit, best, coarse, stopped)
    proof.recut()
    return proof.run() if bounded else Proven(proof.best, 0.0, 0, 0)


class _Proof:
    def __init__(
        self,
        sample: Sample,
        space: Space,
        limit: int | None,
        best: Scored,
        coarse: Coarse,
        stopped: Callable[[], bool],
    ) -> None:
        self.sample, self.space, self.limit, self.best, self.stopped = sample, space, limit, best, stopped
        self.coarse, self.loads, self.profile = coarse, coarse.own, sample.profile
        self._closed: list[tuple[float, int, Configuration | None]] = []  # what is bounded closely, or closer later
        self.families = self.opened = self.cut = self.thorough = 0
        self._open: list[tuple[float, int, Callable[[float, Configuration], None], Configuration]] = []
        self._number = itertools.count()
        self._rates: dict[object, float] = {}
        self._laid_out: set[Hashable] = set()
        self._tried: set[Configuration] = set()
        self._paths = Paths()

    def run(self) -> Proven:
        for c in self._families():
            self.families += 1
            if self.stopped():
                return Proven(self.best, 0.0, self.families, 0)
            load = self.coarse.load(c)
            if load is not None:
                self._push(self._least(load, c), self._look, c)
        self._search()
        while not self.stopped() and self._bound_thoroughly():
            self._search()
        bound = min(self.left, self._open[0][0] if self._open else float("inf"), self._step)
        return Proven(self.best, bound, self.families, self.opened)

    @property
    def left(self) -> float:
        """The least bound of what is not in question any more, or not yet again."""
        return self._closed[0][0] if self._closed else float("inf")

    def _search(self) -> None:
        while self._open and self._open[0][0] < self._near and self._worth_while() and not self.stopped():
            bound, _, look, c = heapq.heappop(self._open)
            look(bound, c)

    def _bound_thoroughly(self) -> bool:
        """Bounds the family with the least bound by more effort, and looks for a faster member near the cuts found so;
        whether there is one that is worth it."""
        if not self._closed or self._closed[0][0] >= self._near or self.thorough == _THOROUGH:
            return False
        bound, number, c = self._closed[0]
        if c is None:
            return False
        self.thorough += 1
        closer, cut = self._cut_exactly(c, THOROUGH)
        heapq.heapreplace(self._closed, (max(bound, closer), number, None))
        if cut is not None and closer < self._step:
            self._seek(closer, c, cut)
        return True

    def recut(self) -> None:
        """Looks for better cuts of the best, and for other blocks that run again: what is faster leaves fewer families
        in question."""
        best = self.best.configuration
        if best.pp == 1 or best.offloads:
            return
        family = best.with_(stage_layers=None, recompute_layers=None)
        part = family.with_(recompute="full", recompute_blocks=_PART)
        for c in (family, part) if self.space.recompute is None else (family,):
            if self.stopped():
                return
            bound, cut = self._cut_exactly(c)
            if cut is not None and bound < self._step:
                self._tried.add(c)
                self._seek(bound, c, cut)

    @property
    def _step(self) -> float:
        return self.best.prediction.step_time_s

    def _worth_while(self) -> bool:
        """Whether what is opened next may raise the bound, or lead to a faster member soon."""
        raises = self._open[0][0] < self.left and self.opened < _OPENED
        return raises or (len(self._tried) < _TRIED and self.opened < _OPENED / 2)

    @property
    def _near(self) -> float:
        """A bound that is as good as the best step."""
        return self._step * (1 - _NEAR)

    def _push(self, bound: float, look: Callable[[float, Configuration], None], c: Configuration) -> None:
        if bound < self._step:
            heapq.heappush(self._open, (bound, next(self._number), look, c))

    def _families(self) -> Iterator[Configuration]:
        """But for those that computing alone makes slower than the best."""
        for laid_out in configurations(self.space, self.profile):
            if all(self._computing(c) >= self._step for c in copied(self.space, laid_out)):
                continue
            # Without what is exchanged, the level that divides most bounds the others.
            for c in scheduled(self.space, laid_out, (_PART, FRACTIONS[-1])):
                if c is None or c.offload not in (_PART, 0.0):
                    continue
                if self.sample.layers < _LAYERS and _in_part(c) is not None:
                    continue
                if self._computing(c) < self._step:
                    yield c

    def _computing(self, c: Configuration) -> float:
        """Seconds that a rank computes at least, whatever runs again."""
        key = ranks_of(c), c.micro_batch, c.copies
        if key not in self._rates:
            load = self.coarse.load(c.with_(recompute="none", recompute_blocks=1.0, offload=0.0))
            self._rates[key] = float("inf") if load is None else sum(load.total)
        return self._rates[key] * c.passes / c.pp

    def _least(self, load: Load, c: Configuration, slack: float = 0.0) -> float:
        return least_seconds(load, c, self.profile, self.limit, self._step / (1 - slack)) * (1 - slack)

    def _look(self, bound: float, c: Configuration) -> None:
        """Bounds families that differ in their ZeRO level by their own workloads, as these are estimated."""
        for level in levels(self.space, c):
            self.opened += 1
            load = self.loads.of(level, exact=False)
            if load is None:
                continue
            least = self._least(load, level, self.loads.longer)
            self._push(max(bound, least), self._estimate if c.pp == 1 else self._cut, level)
            any_group = self.loads.in_groups(level)
            if any_group is not None:
                below, of_level = self._step / (1 - self.loads.longer), least / (1 - self.loads.longer)
                within = least_in_groups(any_group, load, level, self.profile, self.limit, below, least=of_level)
                if within < of_level:
                    self._push(max(bound, within * (1 - self.loads.longer)), self._in_groups, level)

    def _in_groups(self, bound: float, c: Configuration) -> None:
        """Bounds families that differ in over how many ranks ZeRO divides, as their workloads are estimated: where they
        hold more and are not bounded by less, they are left out."""
        over_all = self.loads.of(c, exact=False)
        if over_all is None:
            return
        least = self._least(over_all, c, self.loads.longer)
        for group in groups(self.space, c):
            load = self.loads.of(group, exact=False)
            if load is not None and (within := self._least(load, group, self.loads.longer)) < least:
                self._push(max(bound, within), self._estimate if c.pp == 1 else self._cut, group)

    def _cut(self, bound: float, c: Configuration) -> None:
        """Bounds a family by the best cut, as its workload is estimated."""
        load = self.loads.of(c, exact=False)
        if load is not None and self.cut < _CUT:
            self.cut += c.shard_ranks is None
            less = 1 - self.loads.longer
            beside = self._handover(c, exact=False), self._once(load, c, exact=False)
            cut = best_cut(
                load, c, self.limit, self._step / less, *beside, paths=self._paths, known=bound / less,
                rounds=_ROUNDS_ESTIMATED, each=self.loads.each_layer(c, beside[1].least, exact=False),
            )  # fmt: skip
            if cut is not None:
                bound = max(bound, cut.seconds * less)
        self._push(bound, self._exactly, c)

    def _handover(self, c: Configuration, *, exact: bool) -> tuple[float, ...]:
        over_all = c.with_(shard_ranks=None)  # whose activations lie alike
        workload = self.sample.workload(over_all) if exact else self.sample.estimated(over_all)
        return least_handover(workload, c, self.profile)

    def _once(self, load: Load, c: Configuration, *, exact: bool) -> ByRank:
        workload = self.loads.workload(c, exact=exact)
        tied = tied_seconds(workload, c, self.profile)
        least = least_once(load, c, self.profile)
        return once_by_rank(load.once, load.inner, load.layers, least, tied, c, self.profile)

    def _may_lay_out(self, bound: float, c: Configuration) -> bool:
        """Whether layouts of its own are still to be found for it, which takes longest; groups of ranks are counted
        with what they differ from in these alone."""
        key = laid_out_as(c.with_(shard_ranks=None))
        most = _LAID_OUT_FOR_A_BOUND if bound < self.left else _LAID_OUT
        if key not in self._laid_out and len(self._laid_out) >= most:
            return False
        self._laid_out.add(key)
        return True

    def _exactly(self, bound: float, c: Configuration) -> None:
        """Bounds a family by its own workload, as it is."""
        if not self._may_lay_out(bound, c):
            self._close(bound)
            return
        load = self.loads.of(c, exact=True)
        if load is not None:
            self._push(max(bound, self._least(load, c, self.loads.slack(c))), self._improve, c)

    def _close(self, bound: float, c: Configuration | None = None) -> None:
        """Leaves a family with its bound; `c`: where it may be bounded closer."""
        heapq.heappush(self._closed, (bound, next(self._number), c))

    def _estimate(self, bound: float, c: Configuration) -> None:
        """Of a family on one stage: its fastest member."""
        found = self._fastest(c, exact=False, slack=self.loads.larger)
        if found is not None:
            self._push(max(bound, found.prediction.step_time_s * (1 - self.loads.longer)), self._play, c)

    def _play(self, bound: float, c: Configuration) -> None:
        if not self._may_lay_out(bound, c):
            self._close(bound)
            return
        found = self._fastest(c)
        if found is not None:
            self._take(found)

    def _fastest(self, c: Configuration, *, exact: bool = True, slack: float = 0.0) -> Scored | None:
        """Of a family on one stage; None where none fits, or where no block has to run again or wait elsewhere."""
        part = _in_part(c)
        if part is None:
            return self._predicted(c, exact=exact, slack=slack)
        if self._predicted(c.with_(recompute="none", offload=0.0), exact=exact, slack=slack) is not None:
            return None  # the family of what runs nothing again has that one
        return self._with_fewest(c, exact=exact, slack=slack)

    def _with_fewest(self, c: Configuration, *, exact: bool = True, slack: float = 0.0) -> Scored | None:
        """With as few blocks that run again, or wait elsewhere, as memory allows, where that is open."""
        part = _in_part(c)
        if part is None:
            return self._predicted(c, exact=exact, slack=slack)
        by_stage = self._by_stage(c) if c.pp > 1 and exact else None
        if c.pp > 1 and exact and part == "recompute_blocks":  # a share of all need not be whole blocks of each stage
            return by_stage
        few = least_share(
            lambda f: self._predicted(c.with_(**{part: f}), exact=exact, slack=slack) is not None,
            self.sample.layers,
            1.0 if part == "offload" else 1 - 1 / self.sample.layers,
        )
        found = None if few is None else self._predicted(c.with_(**{part: few}), exact=exact, slack=slack)
        return min((s for s in (found, by_stage) if s is not None), key=_step, default=None)

    def _by_stage(self, c: Configuration) -> Scored | None:
        """With as few of them on each stage as its own memory allows."""
        try:
            few = fewest_by_stage(self.sample.workload(c), c, self.profile, self.limit)
        except (UsageError, InputError):
            return None
        return None if few is None else self._predicted(few)

    def _improve(self, bound: float, c: Configuration) -> None:
        """Bounds a family by the best cut, and looks for a member that is faster than the best; what is left of
        the family cannot be bounded closer."""
        closer, cut = self._cut_exactly(c) if c.pp > 1 else (0.0, None)
        bound = max(bound, closer)
        if bound >= self._step:
            return
        self._close(bound, c if cut is not None and cut.whole else None)
        if bound >= self._near or c in self._tried or len(self._tried) == _TRIED:
            return
        self._tried.add(c)
        self._seek(bound, c, cut)

    def _cut_exactly(self, c: Configuration, effort: Effort = QUICK) -> tuple[float, Cut | None]:
        """Seconds that a step of the family takes at least, by its own workload and its best cut."""
        load = self.loads.of(c, exact=True)
        if load is None:
            return 0.0, None
        less = 1 - self.loads.slack(c)
        beside = self._handover(c, exact=True), self._once(load, c, exact=True)
        each = self.loads.each_layer(c, beside[1].least, exact=True)
        cut = best_cut(load, c, self.limit, self._step / less, *beside, paths=self._paths, whole=effort, each=each)
        return (0.0, None) if cut is None else (cut.seconds * less, cut)

    def _seek(self, bound: float, c: Configuration, cut: Cut | None) -> None:
        """Looks for a member of a family that is faster than the best, where none takes less than the bound."""
        found = min(self._members(bound, c, cut), key=_step, default=None)
        if found is not None and found.prediction.step_time_s < self._step * (1 + _WORTH):
            self._take(refined(self.sample, self.space, self.limit, found, self.stopped, layouts=False))

    def _members(self, bound: float, c: Configuration, cut: Cut | None) -> Iterator[Scored]:
        """Members that fit: with an even share of the layers on every rank, and with shares that the bound leaves."""
        even, load = self._held(c), self.loads.of(c, exact=True)
        if even is None or load is None:
            return
        found = self._with_fewest(c)
        if found is not None:
            yield found
        # The bound leaves out some of what is held.
        limit = None if self.limit is None else self.limit * min(1.0, held_evenly(load, c) / even)
        cuts = {dealt(load, c, limit, bound * (1 + more)) for more in _LONGER_CUTS}
        cuts |= set() if cut is None else {cut.layers or None, *cut.others}
        for layers in sorted(layers for layers in cuts if layers is not None):
            found = self._with_fewest(c.with_(stage_layers=layers))
            if found is not None:
                yield found

    def _held(self, c: Configuration) -> float | None:
        try:
            return predict(self.sample.workload(c), c, self.profile).allocated_bytes
        except (UsageError, InputError):
            return None

    def _take(self, found: Scored) -> None:
        if found.prediction.step_time_s < self._step:
            self.best = found

    def _predicted(self, c: Configuration, *, exact: bool = True, slack: float = 0.0) -> Scored | None:
        """None where it does not fit, or the model does not admit it, or the target cannot express it."""
        if self.space.unsupported is not None and self.space.unsupported(c):
            return None
        try:
            workload = self.sample.workload(c) if exact else self.sample.estimated(c)
            prediction = predict(workload, c, self.profile)
        except (UsageError, InputError):
            return None
        fits = self.limit is None or round(prediction.allocated_bytes * (1 - slack)) <= self.limit
        return Scored(c, prediction) if fits else None


def _step(scored: Scored) -> float:
    return scored.prediction.step_time_s


def _in_part(c: Configuration) -> str | None:
    """The field that says of how many blocks, where that is open in a family."""
    if c.offload:
        return "offload"
    return "recompute_blocks" if c.recompute == "full" and c.recompute_blocks < 1 else None
