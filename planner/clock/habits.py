"""What passes around kernels and collectives on a machine, which may have no device (a profile of prices of links)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cost_models import HardwareProfile

__all__ = ["Habits", "habits_of"]


@dataclass(frozen=True, slots=True)
class Habits:
    """As of `cost_models.machine.DeviceSpec`; `bytes_per_s`: at which device memory is streamed."""

    dispatch_interval_s: float = 0.0
    collective_interference: float = 0.0
    handover_s: float = 0.0
    step_overhead_s: float = 0.0
    bytes_per_s: float = math.inf
    host_link_bytes_per_s: float | None = None

    @property
    def contention(self) -> float:
        """How much longer computing takes while a collective runs beside it."""
        return 1 / (1 - self.collective_interference)


def habits_of(profile: HardwareProfile) -> Habits:
    """Of the profile's device; nothing passes where there is none."""
    d = profile.device
    if d is None:
        return Habits()
    return Habits(
        d.dispatch_interval_s,
        d.collective_interference,
        d.handover_s,
        d.step_overhead_s,
        d.memory_bandwidth_bytes_per_s * d.memory_efficiency,
        d.host_link_bytes_per_s,
    )
