"""What no configuration of some ranks, or of some family, can be faster or smaller than."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.clock import CONTEXTS, Configuration, Context
from planner.cost_models import HardwareProfile
from planner.errors import InputError, UsageError
from planner.uniform.coarse import Ranks, alone
from planner.uniform.dominance import no_better, others
from planner.uniform.families import least_in_groups, least_seconds
from planner.uniform.least import Held, Passed, Together
from planner.uniform.load import Load
from planner.uniform.loads import LONGER, Loads
from planner.uniform.sample import Sample
from planner.uniform.space import Space, levels

__all__ = ["Bounds", "step_of"]


class Bounds:
    """Bounds of configurations of a space whose devices hold at most `limit` bytes.  `coarse`: of ranks that were
    looked at, what a device holds and does in a large micro-batch."""

    def __init__(self, sample: Sample, space: Space, limit: int | None) -> None:
        self.sample, self.space, self.limit = sample, space, limit
        self.profile: HardwareProfile = sample.profile
        self.loads = Loads(sample, self.profile)
        self.coarse: dict[Ranks, tuple[Held, Mapping[int, Together]]] = {}
        self._passed: dict[Configuration, Passed | None] = {}
        self._seconds: dict[object, float] = {}  # by family
        self._seconds_in_groups: dict[object, float] = {}

    def fewest(self, c: Configuration) -> Configuration:
        """What its ranks do in a micro-batch: `alone` or, of several data-parallel ranks, on two.  From these the
        workload of `c` is estimated, so that there is one less to lay out and to trace."""
        one, ranks = alone(c), 2 * c.ep
        return one if c.dp < ranks else one.with_(dp=ranks, zero=1)

    def passes(self, c: Configuration) -> Passed | None:
        """What a rank takes for a micro-batch; None where the model does not admit it."""
        one = self.fewest(c)
        if one not in self._passed:
            try:
                self._passed[one] = Passed(self.sample.estimated(one), one, self.profile, c.micro_batch)
            except (UsageError, InputError):
                self._passed[one] = None
        return self._passed[one]

    def fits(self, held: Held, c: Configuration) -> bool:
        """Whether the device may hold it."""
        try:
            size = held.bytes(c)
        except UsageError:  # more chunks than layers
            return False
        return self.limit is None or size <= self.limit

    def together(self, large: Passed, smallest: Configuration) -> Together:
        """With the passes of one sample alone, where that is a micro-batch and ranks divide positions."""
        if smallest.micro_batch > 1 or not (smallest.cp > 1 or smallest.sequence_parallel):
            return Together(large)
        copies = large.configuration.copies
        return Together(large, self.passes(smallest.with_(micro_batches=copies, copies=copies)))

    def dominated(
        self, smallest: Configuration, held: Held, together: Mapping[int, Together], fitting: Sequence[Configuration]
    ) -> bool:
        """Whether these ranks are in no respect better than those that differ in how attention goes about the sequence;
        of two that are equal in all, the latter of the two kinds goes.  `fitting`: their configurations, of which the
        space must have the others."""
        passed = [p for t in together.values() for p in t.each]
        for other in others(smallest, self.space.contexts):
            if not all(self._has_all_levels(c, other.context) for c in fitting):
                continue
            sizes = [self.fewest(smallest), *(p.configuration.with_(micro_batch=p.samples) for p in passed)]
            mine = [held.workload, *(p.workload for p in passed)]
            theirs = [self.passes(size.with_(context=other.context)) for size in sizes]
            pairs = [(a, b.workload, c) for a, b, c in zip(mine, theirs, sizes, strict=True) if b is not None]
            if len(pairs) < len(sizes):  # a micro-batch that the other way does not admit
                continue
            later = CONTEXTS.index(smallest.context) > CONTEXTS.index(other.context)
            if all(no_better(a, b, c, self.profile) for a, b, c in pairs) and (
                later or not all(no_better(b, a, c, self.profile) for a, b, c in pairs)
            ):
                return True
        return False

    def _has_all_levels(self, c: Configuration, context: Context) -> bool:
        """Whether the space has the configuration with the other `context` at all levels of ZeRO that it has it at."""
        unsupported = self.space.unsupported
        return unsupported is None or not any(
            unsupported(level.with_(context=context)) for level in levels(self.space, c)
        )

    def least(self, load: Load, c: Configuration, step_s: float) -> float:
        """Seconds of the family of `c` by this load, found once however many of the blocks run again or wait elsewhere;
        `step_s`: from which on they are of no interest."""
        below = step_s / (1 - self.loads.longer)
        key = self.loads.family(c), below
        if key not in self._seconds:
            self._seconds[key] = least_seconds(load, c, self.profile, self.limit, below)
        return self._seconds[key]

    def least_in_groups(self, load: Load, c: Configuration, least: float, step_s: float) -> float:
        """The same with ZeRO over any smaller group, where over all ranks it is the `least`; inf if there is none."""
        below = step_s / (1 - self.loads.longer)
        key = self.loads.family(c), below
        if key not in self._seconds_in_groups:
            any_group = self.loads.in_groups(c)
            self._seconds_in_groups[key] = (
                float("inf")
                if any_group is None
                else least_in_groups(any_group, load, c, self.profile, self.limit, below, least=least)
            )
        return self._seconds_in_groups[key]


def step_of(passed: Passed, c: Configuration) -> float:
    """Seconds of a step at least, by the passes of a micro-batch; inf where the schedule does not fit the model."""
    try:
        return passed.step(c) * (1 - LONGER)
    except UsageError:  # more chunks than layers
        return float("inf")
