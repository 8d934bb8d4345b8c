"""Workload × configuration × machine → seconds and bytes of one training step.

    step = pipeline of all micro-batches + exposed exchange + optimizer update + overhead of a step

Passes of units are priced once (`passes`), chunks add them up, the schedule's simulation (`cost_models.pipeline`)
gives the time of all micro-batches and the activations in flight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cost_models import HardwareProfile, optimizer_seconds
from cost_models.pipeline import ChunkTimes, PipelineCost, pipeline_seconds
from planner.clock.configuration import Configuration
from planner.clock.exchange import Exchanges
from planner.clock.links import PIPELINE, Links
from planner.clock.memory import Held, chunk_activation_bytes, chunk_offloaded_bytes, elements, held_bytes
from planner.clock.passes import Passes
from planner.clock.stages import chunks, chunks_of
from planner.errors import UsageError
from planner.trace import Workload

__all__ = ["Prediction", "predict"]

_ROUNDING = 1e-9
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


def predict(workload: Workload, c: Configuration, profile: HardwareProfile) -> Prediction:
    """Time and memory of one step of `c` on the machine.

    Raises:
        UsageError: more pipeline chunks than blocks, or passes than can be simulated; a profile that prices no
            computing, or no products in the type asked for.
    """
    if profile.device is None:
        raise UsageError(f"hardware profile {profile.name!r} has no device to compute on; name a machine")
    if c.matrix_type in _NARROW and _NARROW[c.matrix_type] not in profile.device.matmul_flops_per_s:
        raise UsageError(f"strategy: matrix={c.matrix_type}: {profile.name} has no units for it; leave it out")
    if c.offload and profile.device.host_link_bytes_per_s is None:
        raise UsageError(
            f"strategy: offload={c.offload:g}: {profile.name} does not say how fast its host is reached "
            "(device.host_link_bytes_per_s); state it in a profile, or leave offload out"
        )
    if c.pp > 1 and c.micro_batches * c.pp * c.virtual_stages > _PASSES:
        raise UsageError(
            f"strategy: {c.micro_batches} micro-batches through {c.pp * c.virtual_stages} chunks are more than "
            f"{_PASSES:,} passes to simulate; give a smaller --batch or a larger micro_batch"
        )
    links = Links(workload.mesh, c.pp, profile)
    passes = Passes(workload, c, profile, links)
    parts = chunks(workload, c.pp * c.virtual_stages, c.stage_layers)
    exchange = Exchanges(workload, c, passes, links, parts)
    pipeline = _pipeline(workload, c, passes, exchange, links, parts)
    after = exchange.after()
    update = max(_update(workload, c, profile, parts, d) for d in range(c.pp))
    total = pipeline.total_s + after + update + profile.device.step_overhead_s
    held = max((held_bytes(workload, c, parts, d, a) for d, a in enumerate(pipeline.activation_bytes)), key=_total)
    breakdown = _breakdown(c, passes, parts, pipeline.total_s)
    breakdown |= {"exchange": after, "update": update, "overhead": profile.device.step_overhead_s}
    spread = math.exp(_Z80 * profile.device.prediction_spread)
    return Prediction(
        total,
        total / spread,
        total * spread,
        held.total,
        held.total * (1 + profile.device.allocator_slack) if held.total else 0.0,
        breakdown,
        {
            "weights": held.weights,
            "gradients": held.gradients,
            "optimizer": held.optimizer,
            "activations": held.activations,
            "transient": held.transient,
        },
        _flops(workload, c),
    )


def _flops(workload: Workload, c: Configuration) -> float:
    passed = sum(k.flops * n for u in workload.units for part in (u.forward, u.backward) for k, n in part.items())
    return passed * workload.mesh.devices * c.micro_batches


def _total(held: Held) -> float:
    return held.total


def _pipeline(
    workload: Workload,
    c: Configuration,
    passes: Passes,
    exchange: Exchanges,
    links: Links,
    parts: tuple[tuple[int, ...], ...],
) -> PipelineCost:
    """All micro-batches through all chunks."""
    times = []
    for k, part in enumerate(parts):
        units = [passes.units[i] for i in part]
        if c.zero == 3:
            forward, backward = (exchange.gathered_pass(k, backward=b) for b in (False, True))
        else:
            forward, backward = sum(u.forward.seconds for u in units), sum(u.back for u in units)
        if c.offload and passes.device.host_link_bytes_per_s:
            copied = chunk_offloaded_bytes(workload, c, part) / passes.device.host_link_bytes_per_s
            forward, backward = max(forward, copied), max(backward, copied)
        weights = min(backward, sum(u.weight_seconds for u in units))
        kept = chunk_activation_bytes(workload, c, part)
        times.append(ChunkTimes(forward, backward, backward - weights, weights, kept))
    sent = [_handover(workload, passes, links, part) for part in parts[1:]]
    rows = [[times[k] for k in chunks_of(c, d)] for d in range(c.pp)]
    if c.pp == 1 and c.virtual_stages == 1 and c.order != "gpipe":
        # One after the other: nothing to simulate.
        one = times[0]
        seconds = c.micro_batches * (one.forward_s + one.backward_s)
        return PipelineCost(seconds, (1,), (one.activation_bytes,))
    return pipeline_seconds(c.order, rows, c.micro_batches, sent, overlapped=c.overlap_pipeline)


def _handover(workload: Workload, passes: Passes, links: Links, part: tuple[int, ...]) -> float:
    """Seconds to hand activations, or their gradients, on to a chunk.

    Ranks that all hold them send a part each and gather it on the other side.
    """
    entered = workload.units[part[0]]
    sent = entered.entering_bytes / workload.mesh.size(entered.entering_axes)
    gathered = links.seconds("all_gather", entered.entering_axes, entered.entering_bytes)
    return links.seconds("permute", (PIPELINE,), sent) + gathered + passes.device.handover_s


def _update(
    workload: Workload, c: Configuration, profile: HardwareProfile, parts: tuple[tuple[int, ...], ...], device: int
) -> float:
    if c.frozen:
        return 0.0
    read, stored = elements(workload, c, parts, device)
    precision = "fp32" if c.weight_bytes == 4 else c.precision
    return float(optimizer_seconds(profile, stored if c.zero else read, precision=precision, optimizer=c.optimizer))


def _breakdown(c: Configuration, passes: Passes, parts: tuple[tuple[int, ...], ...], total: float) -> dict[str, float]:
    """Seconds of the busiest pipeline rank; what it waits for others is `bubble`, for weights alone `gathering`."""
    found: list[dict[str, float]] = []
    for d in range(c.pp):
        units = [passes.units[i] for k in chunks_of(c, d) for i in parts[k]]
        m = c.micro_batches
        found.append(
            {
                "compute": m * sum(u.forward.compute + u.backward.compute for u in units),
                "recompute": m * sum(u.again.seconds for u in units),
                "host": m * sum(u.forward.host + u.backward.host for u in units),
                "tensor_collectives": m * sum(u.forward.sent + u.backward.sent for u in units),
            }
        )
    busiest = max(found, key=lambda x: sum(x.values()))
    waiting = total - sum(busiest.values())
    if abs(waiting) < _ROUNDING * total:
        waiting = 0.0
    return {**busiest, "gathering" if c.pp == 1 and c.zero == 3 else "bubble": waiting}
