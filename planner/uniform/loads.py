"""What a rank does in one pass, by family of configurations, each of them traced once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

from planner.clock import Configuration
from planner.cost_models import HardwareProfile
from planner.errors import InputError, UsageError
from planner.trace import Workload
from planner.uniform.beside import Exchanged, exchanged_in
from planner.uniform.each_layer import EachLayer, each_layer
from planner.uniform.load import Load, exchanged_once, load_of
from planner.uniform.sample import Sample
from planner.uniform.space import group_sizes

__all__ = ["CLOSE", "IN_GROUPS", "LARGER", "LONGER", "Loads", "laid_out_as"]

LONGER: Final = 0.01  # relative: estimated layouts may be too slow by this
CLOSE: Final = 1e-3  # relative: or by this, or hold too much, where they are its own but for rounding
IN_GROUPS: Final = 5e-4  # relative: and groups of ranks by this, if they are taken from the layouts over all ranks
_LAID_OUT: Final = attrgetter(
    "dp", "tp", "cp", "context", "ep", "shard_ranks", "sequence_parallel", "micro_batch", "precision", "optimizer"
)
_EXCHANGED: Final = attrgetter(
    "dp", "tp", "cp", "context", "ep", "sequence_parallel", "weight_bytes", "gradient_bytes",
    "scatters_every_pass",
)  # fmt: skip
LARGER: Final = 0.15  # relative: or hold too much


@dataclass(frozen=True, eq=False)
class Loads:
    """Of the configurations of one search, which agree in precision, optimizer and what overlaps."""

    sample: Sample
    profile: HardwareProfile
    _known: dict[Hashable, Load | None] = field(default_factory=dict)
    _exchanged: dict[Hashable, Exchanged] = field(default_factory=dict)

    def of(self, c: Configuration, *, exact: bool) -> Load | None:
        """By the layouts of `c` where that is to be `exact`, of groups by those over all ranks (`slack`); else as they
        are estimated, with no more memory than they may take.  None where the model does not admit it."""
        key = self._key(c), exact
        if key not in self._known:
            self._known[key] = self._made(c, exact=exact)
        return self._known[key]

    def workload(self, c: Configuration, *, exact: bool) -> Workload:
        """What the load of `c` is of.  UsageError, InputError where the model does not admit it."""
        if not exact:
            return self.sample.estimated(c)
        return self.sample.in_groups(c) if self.sample.follows(c) else self.sample.workload(c)

    def each_layer(self, c: Configuration, least_once: float, *, exact: bool) -> EachLayer | None:
        """What the load of `c` does for its layers one by one, which does `least_once` seconds of work beside the
        passes, at least; None where they are alike."""
        load = self.of(c, exact=exact)
        if load is None or load.lightest is None:
            return None
        workload = self.workload(c, exact=exact)
        exchanged = None if exact else self._exchange(c, (c.shard_ranks,))
        larger = 0.0 if exact else self.larger
        return each_layer(workload, load, c, self.profile, exchanged, least_once=least_once, larger=larger)

    @property
    def longer(self) -> float:
        """How much too slow, relative, an estimate may be."""
        return CLOSE if self.sample.estimates_closely else LONGER

    @property
    def larger(self) -> float:
        """How much too much, relative, it may hold."""
        return CLOSE if self.sample.estimates_closely else LARGER

    def slack(self, c: Configuration) -> float:
        """How much too slow, relative, a configuration may be taken to be where its load is to be exact."""
        return IN_GROUPS if self.sample.follows(c) else 0.0

    @classmethod
    def family(cls, c: Configuration) -> Hashable:
        """What tells the families of one space apart (`planner.uniform.families`)."""
        return cls._key(c), c.schedule, c.virtual_stages

    @staticmethod
    def _key(c: Configuration) -> Hashable:
        again = c.recompute, c.recompute_blocks < 1, c.offload > 0
        return laid_out_as(c), again, c.zero, c.scatters_every_pass, c.copies

    def in_groups(self, c: Configuration) -> Load | None:
        """What the configuration takes at least with ZeRO over any smaller group of ranks (`groups`), as layouts are
        estimated; None where there is none."""
        sizes = group_sizes(c)
        if not sizes:
            return None
        key = self._key(c)
        if key not in self._known:
            load = self.of(c, exact=False)
            self._known[key] = None if load is None else self._in_groups(load, c, sizes)
        return self._known[key]

    def _in_groups(self, load: Load, c: Configuration, sizes: Sequence[int]) -> Load:
        shortest = self._exchange(c, sizes)
        if c.zero == 3 or c.scatters_every_pass:
            return self._estimated(load_of(self.sample.estimated(c), c, self.profile, shortest))
        return replace(load, once=exchanged_once(self.sample.estimated(c), c, self.profile, shortest))

    def _exchange(self, c: Configuration, sizes: Sequence[int | None]) -> Exchanged:
        """The shortest exchange over groups of any of these sizes, as layouts are estimated.  Neither the size of
        micro-batches nor what runs again changes what is exchanged for weights."""
        one = c.micro_batch == 1  # sample, of which positions may lie otherwise
        key = _EXCHANGED(c), c.zero > 0, one, sizes
        if key not in self._exchanged:
            ways = [self.sample.estimated(c.with_(shard_ranks=size)) for size in sizes]
            self._exchanged[key] = exchanged_in(ways, c, self.profile)
        return self._exchanged[key]

    def _made(self, c: Configuration, *, exact: bool) -> Load | None:
        try:
            workload = self.workload(c, exact=exact)
            if exact:
                return load_of(workload, c, self.profile)
            load = load_of(workload, c, self.profile, self._exchange(c, (c.shard_ranks,)))
            return self._estimated(load)
        except (UsageError, InputError):
            return None

    def _estimated(self, load: Load) -> Load:
        less = 1 - self.larger
        return replace(load, saved=load.saved * less, saved_again=load.saved_again * less, beside=load.beside * less)


def laid_out_as(c: Configuration) -> Hashable:
    """What of a configuration its layouts, and what runs again in them, depend on (`planner.evaluate.layout_of`)."""
    return _LAID_OUT(c), c.zero > 0, c.recompute == "full" and c.recompute_blocks == 1
