"""What a rank does at least, by one large micro-batch of those that share tensors, the sequence and experts with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.clock import Configuration
from planner.cost_models import HardwareProfile
from planner.uniform.least import ESTIMATED, Held, Together
from planner.uniform.load import Load, load_of
from planner.uniform.loads import Loads

__all__ = ["Coarse", "Ranks", "alone", "divides", "ranks_of"]

# That share tensors, the sequence, experts; whether positions between tensor-parallel ranks, too; how attention goes
# about the sequence.
Ranks = tuple[int, int, int, bool, str]
_AGAIN = (
    0.5  # of what blocks compute again: where the program runs whole blocks again, it leaves out what nothing reads
)


@dataclass(frozen=True, eq=False)
class Coarse:
    """`known`: by ranks, what one of them holds for a small micro-batch, and, by the number of copies, its passes of a
    large one: devices are taken to do no more per second in a smaller one; `own`: what is known by micro-batches of
    their own size."""

    known: Mapping[Ranks, tuple[Held, Mapping[int, Together]]]
    profile: HardwareProfile
    own: Loads
    _loads: dict[object, tuple[Load, Load]] = field(default_factory=dict)
    _scaled: dict[object, Load] = field(default_factory=dict)

    def load(self, c: Configuration) -> Load | None:
        """Of the family of `c`, without what data-parallel ranks exchange; None where its ranks are not known."""
        ranks = ranks_of(c)
        if ranks not in self.known or c.copies not in self.known[ranks][1]:
            return None
        held, passed = self.known[ranks][0], self.known[ranks][1][c.copies].of(c.micro_batch)
        key = ranks, passed.samples, c.copies, c.recompute, c.recompute_blocks < 1, c.offload > 0
        if key not in self._loads:
            one = alone(c).with_(recompute=c.recompute, recompute_blocks=c.recompute_blocks, offload=c.offload)
            large = load_of(passed.workload, one, self.profile)
            if c.recompute == "full" and c.recompute_blocks == 1:
                large = large.between(load_of(passed.workload, alone(c), self.profile), _AGAIN)
            self._loads[key] = large, load_of(held.workload, one, self.profile)
        divided = (c.shard_ranks or c.dp * c.cp) if c.zero else 1
        size = key, c.micro_batch, divided  # whatever the schedule
        if size not in self._scaled:
            large, small = self._loads[key]
            bytes_each = (1 - ESTIMATED) * c.micro_batch / held.samples
            self._scaled[size] = large.scaled(c.micro_batch / passed.samples).holding(small, bytes_each, divided)
        return self._scaled[size]


def ranks_of(c: Configuration) -> Ranks:
    return c.tp, c.cp, c.ep, c.sequence_parallel, c.context


def alone(c: Configuration) -> Configuration:
    """What its ranks do in a micro-batch, on as few of them as there may be."""
    return c.with_(
        dp=c.ep,
        pp=1,
        micro_batches=c.copies,
        zero=0,
        shard_ranks=None,
        virtual_stages=1,
        schedule="1f1b",
        recompute="none",
        recompute_blocks=1.0,
        offload=0.0,
    )


def divides(a: Ranks, b: Ranks) -> bool:
    """Whether ranks `b` divide tensors, positions and experts further than `a`, or as far, in the same ways."""
    # Without tensor parallelism there are no positions to divide between ranks; without context parallelism, no heads.
    alike = (a[3] == b[3] or a[0] == 1) and (a[4] == b[4] or a[1] == 1)
    return alike and all(y % x == 0 for x, y in zip(a[:3], b[:3], strict=True))
