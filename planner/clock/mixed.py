"""A configuration whose pipeline ranks stand on devices of several kinds: seconds of a step, and bytes of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.clock.configuration import Configuration
from planner.clock.memory import Held, held_by_rank
from planner.clock.predict import check_passes, device_for, interval, step_flops
from planner.clock.stages import chunks
from planner.clock.step import StepTimes, step_of
from planner.cost_models import HardwareProfile
from planner.trace import Workload

__all__ = ["MixedPrediction", "predict_mixed"]


@dataclass(frozen=True, slots=True, eq=False)
class MixedPrediction:
    """Of one step: its seconds, and those of an 80 % interval (the wider of the kinds'); `held`: at the fullest moment
    of each pipeline rank; `flops` of all ranks, nothing counted that is computed again."""

    step: StepTimes
    time_low_s: float
    time_high_s: float
    held: tuple[Held, ...]
    flops: float

    @property
    def step_time_s(self) -> float:
        return self.step.total_s

    def fits(self, limits: Sequence[int | None]) -> bool:
        """Whether no rank holds more bytes than its limit."""
        return all(m is None or h.peak <= m for h, m in zip(self.held, limits, strict=True))


def predict_mixed(workload: Workload, c: Configuration, machines: Sequence[HardwareProfile]) -> MixedPrediction:
    """Time and memory of one step of `c` with a machine for each pipeline rank.

    UsageError: as of `predict`, of any of the machines.
    """
    for profile in {id(m): m for m in machines}.values():
        device_for(c, profile)
    check_passes(c)
    step = step_of(workload, c, machines, chunks(workload, c.pp * c.virtual_stages, c.stage_layers))
    held = held_by_rank(workload, c, step.chunks, step.pipeline.activation_bytes)
    intervals = [interval(step.total_s, m) for m in machines]
    return MixedPrediction(
        step, min(low for low, _ in intervals), max(high for _, high in intervals), tuple(held), step_flops(workload, c)
    )
