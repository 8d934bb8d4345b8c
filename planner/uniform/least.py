"""What a configuration takes and holds at least, before any schedule is played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from planner.clock import Configuration
from planner.clock.memory import STATE_BYTES, chunk_activation_bytes
from planner.clock.passes import UnitTimes
from planner.trace import Workload

__all__ = ["Passed", "Pending"]


@dataclass(frozen=True, eq=False)
class Passed:
    """Seconds of the passes of `samples` samples of a rank through all units, by what is run again."""

    samples: int
    forward: float
    backward: float
    again: dict[str, float]

    @classmethod
    def of(cls, samples: int, times: dict[str, Sequence[UnitTimes]]) -> Passed:
        """`times` by what is run again: `full` of all blocks."""
        plain = times["none"]
        return cls(
            samples,
            sum(u.forward.seconds for u in plain),
            sum(u.backward.seconds for u in plain),
            {name: sum(u.again.seconds for u in units) for name, units in times.items()},
        )

    def step(self, c: Configuration) -> float:
        """Seconds that the step of `c` takes at least: an even share of all passes on each rank, and the way of one
        micro-batch through all of them; in 1F1B and GPipe a rank waits for those before it, chunk by chunk."""
        again = self.again[c.recompute]
        if c.recompute == "full":
            # Where the program runs whole blocks again, it leaves out what nothing reads.
            again *= c.recompute_blocks if c.recompute_blocks < 1 else 0.5
        one = (self.forward + self.backward + again) * c.micro_batch / self.samples
        waiting = c.pp - 1 if c.order in ("1f1b", "gpipe") else 0
        return one * max(1.0, (c.micro_batches + waiting) / c.pp)


@dataclass(frozen=True, eq=False)
class Pending:
    """What a data-parallel rank holds of a micro-batch of `samples` samples."""

    workload: Workload
    samples: int

    @cached_property
    def _blocks(self) -> list[int]:
        return [u for u, repeated in enumerate(self.workload.repeated) if repeated]

    @cached_property
    def _elements(self) -> tuple[float, float]:
        """Of weights: of all units, and of the blocks."""
        units = self.workload.units
        return sum(u.weights for u in units), sum(units[u].weights for u in self._blocks)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_kept", {})

    def _activations(self, c: Configuration) -> float:
        """Bytes of activations of a micro-batch: of all units, or of the blocks where there are several stages."""
        known: dict[tuple[str, float, bool], float] = self._kept  # type: ignore[attr-defined]
        key = c.recompute, c.recompute_blocks, c.pp > 1
        if key not in known:
            chunk = self._blocks if c.pp > 1 else range(len(self.workload.units))
            known[key] = chunk_activation_bytes(self.workload, c, chunk)
        return known[key] * c.micro_batch / self.samples

    def bytes(self, c: Configuration) -> float:
        """What the first rank of the pipeline holds at least: weights with all that belongs to them, and activations.

        It has its share of the blocks, rounded down, and as many micro-batches of them as it starts before the first
        comes back: one for each stage; the schedules of zero-bubble may have fewer.
        """
        if c.pp > 1 and not self._blocks:
            return 0.0
        share = 1.0 if c.pp == 1 else (len(self._blocks) // c.pp) / len(self._blocks)
        elements = self._elements[c.pp > 1] * share
        over = c.dp * c.cp

        def divided(level: int) -> float:
            return elements / over if c.zero >= level else elements

        master = 0 if c.weight_bytes == 4 else 4
        each = master + STATE_BYTES[c.optimizer]
        static = divided(3) * c.weight_bytes + divided(2) * c.gradient_bytes + divided(1) * each
        flying = min(c.micro_batches, c.pp) if c.order in ("1f1b", "gpipe", "interleaved") else 0.5
        return static + self._activations(c) * share * flying
