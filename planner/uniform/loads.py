"""What a rank does in one pass, by family of configurations, each of them traced once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

from planner.clock import Configuration
from planner.cost_models import HardwareProfile
from planner.errors import InputError, UsageError
from planner.uniform.load import Load, load_of
from planner.uniform.sample import Sample

__all__ = ["LARGER", "LONGER", "Loads", "laid_out_as"]

LONGER: Final = 0.01  # relative: estimated layouts may be too slow by this
_LAID_OUT: Final = attrgetter(
    "dp", "tp", "cp", "context", "ep", "shard_ranks", "sequence_parallel", "micro_batch", "precision", "optimizer"
)
LARGER: Final = 0.15  # relative: or hold too much


@dataclass(frozen=True, eq=False)
class Loads:
    """Of the configurations of one search, which agree in precision, optimizer and what overlaps."""

    sample: Sample
    profile: HardwareProfile
    _known: dict[Hashable, Load | None] = field(default_factory=dict)

    def of(self, c: Configuration, *, exact: bool) -> Load | None:
        """By the layouts of `c` where that is to be `exact`; else as they are estimated, with no more memory than they
        may take.  None where the model does not admit the configuration."""
        again = c.recompute, c.recompute_blocks < 1, c.offload > 0
        key = laid_out_as(c), again, c.zero, c.scatters_every_pass, c.copies, exact
        if key not in self._known:
            self._known[key] = self._made(c, exact=exact)
        return self._known[key]

    def _made(self, c: Configuration, *, exact: bool) -> Load | None:
        try:
            load = load_of(self.sample.workload(c) if exact else self.sample.estimated(c), c, self.profile)
        except (UsageError, InputError):
            return None
        less = 1.0 if exact else 1 - LARGER
        return replace(load, saved=load.saved * less, saved_again=load.saved_again * less, beside=load.beside * less)


def laid_out_as(c: Configuration) -> Hashable:
    """What of a configuration its layouts, and what runs again in them, depend on (`planner.evaluate.layout_of`)."""
    return _LAID_OUT(c), c.zero > 0, c.recompute == "full" and c.recompute_blocks == 1
