"""A configuration on a workload: seconds, and bytes of the fullest device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from planner.clock.configuration import Configuration
from planner.clock.measured import FURTHER_OFF, extrapolated
from planner.clock.memory import fullest, held_by_rank
from planner.clock.stages import chunks
from planner.clock.step import step_of
from planner.cost_models import HardwareProfile
from planner.cost_models.accelerator import DeviceSpec
from planner.errors import UsageError
from planner.trace import Workload

__all__ = ["Prediction", "check_passes", "device_for", "interval", "predict", "seconds_in_sequence", "step_flops"]

_PASSES = 4_000_000  # simulated in some seconds
_Z80 = 1.2816  # of a normal distribution, 80 % lies within so many standard deviations


# What 8- and 4-bit products need a rate of.
_NARROW = {"fp8": "fp8", "fp8-row": "fp8", "mxfp8": "fp8", "fp4": "fp4"}


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one step: seconds, with those of an 80 % interval, and peak bytes of the fullest device.

    `breakdown` gives seconds by cause on the busiest pipeline rank; they add up to `step_time_s`.  `memory` gives
    `allocated_bytes` by cause; `flops` are operations of the step, all ranks together, nothing counted that is
    computed again; `reserved_bytes` is what the framework's allocator takes for it.
    """

    step_time_s: float
    time_low_s: float
    time_high_s: float
    allocated_bytes: float
    reserved_bytes: float
    breakdown: Mapping[str, float]
    memory: Mapping[str, float]
    flops: float


def device_for(c: Configuration, profile: HardwareProfile) -> DeviceSpec:
    """The machine's device, where it can run the configuration.

    UsageError: a profile that prices no computing, no products in the type asked for, or no way to the host.
    """
    device = profile.device
    if device is None:
        raise UsageError(f"hardware profile {profile.name!r} has no device to compute on; name a machine")
    if c.matrix_type in _NARROW and _NARROW[c.matrix_type] not in device.matmul_flops_per_s:
        raise UsageError(f"strategy: matrix={c.matrix_type}: {profile.name} has no units for it; leave it out")
    if c.offloads and profile.host.link_bytes_per_s is None:
        requested = f"offload={c.offload:g}" if c.offload else "offload_layers"
        raise UsageError(
            f"strategy: {requested}: {profile.name} does not say how fast its host is reached "
            "(host.link_bytes_per_s); state it in a profile, or leave offload out"
        )
    return device


def predict(workload: Workload, c: Configuration, profile: HardwareProfile) -> Prediction:
    """Time and memory of one step of `c` on the machine.

    Raises:
        UsageError: as of `device_for`; more pipeline chunks than blocks, or passes than can be simulated.
    """
    device_for(c, profile)
    check_passes(c)
    step = step_of(workload, c, profile, chunks(workload, c.pp * c.virtual_stages, c.stage_layers))
    held = fullest(held_by_rank(workload, c, step.chunks, step.pipeline.activation_bytes))
    return Prediction(
        step.total_s,
        *interval(step.total_s, profile, extrapolated=bool(extrapolated(c))),
        held.total,
        held.total * (1 + profile.allocator.slack) if held.total else 0.0,
        step.breakdown,
        held.parts,
        step_flops(workload, c),
    )


def check_passes(c: Configuration) -> None:
    """UsageError where more passes than can be simulated go through the pipeline."""
    if c.pp > 1 and c.passes * c.pp * c.virtual_stages > _PASSES:
        raise UsageError(
            f"strategy: {c.micro_batches} micro-batches through {c.pp * c.virtual_stages} chunks are more than "
            f"{_PASSES:,} passes to simulate; give a smaller --batch or a larger micro_batch"
        )


def interval(seconds: float, profile: HardwareProfile, *, extrapolated: bool = False) -> tuple[float, float]:
    """Between what a predicted step lies in 80 of 100 cases, as far as published measurements tell; it is wider where
    the step is `extrapolated`, of a configuration unlike those that were measured."""
    spread = math.exp(_Z80 * profile.prediction.spread * (FURTHER_OFF if extrapolated else 1.0))
    return seconds / spread, seconds * spread


def seconds_in_sequence(workload: Workload, c: Configuration, profile: HardwareProfile) -> float:
    """The step with nothing overlapped, which is what the additive objective of a search counts."""
    parts = chunks(workload, c.pp * c.virtual_stages, c.stage_layers)
    return step_of(workload, c, profile, parts, overlapped=False).total_s


_PASSED: WeakKeyDictionary[Workload, float] = WeakKeyDictionary()


def step_flops(workload: Workload, c: Configuration) -> float:
    """Operations of a step, all ranks together; what is computed again counts once."""
    first = workload
    while first.like is not None:
        first = first.like
    if first not in _PASSED:
        _PASSED[first] = sum(
            k.flops * n for u in first.units for part in (u.forward, u.backward) for k, n in part.items()
        )
    return _PASSED[first] * workload.mesh.devices * c.micro_batches
