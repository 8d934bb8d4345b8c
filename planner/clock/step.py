"""Workload x configuration x machine -> seconds of one training step, or of one pass of inference.

    step = pipeline of all micro-batches + exposed exchange + optimizer update + overhead of a step

Passes of units are priced once (`passes`), chunks add them up, the schedule's simulation
(`planner.cost_models.pipeline`) gives the time of all micro-batches and the activations in flight.  The ranks of a
pipeline may be different machines (`ranks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.clock.configuration import Configuration
from planner.clock.exchange import Exchanges
from planner.clock.memory import chunk_activation_bytes, chunk_offloaded_bytes, elements
from planner.clock.passes import Part, Passes
from planner.clock.ranks import Ranks
from planner.clock.stages import alike_ranks, chunks_of, each_once, in_chunk
from planner.cost_models import HardwareProfile, optimizer_seconds
from planner.cost_models.pipeline import ChunkTimes, PipelineCost, longest, pipeline_seconds
from planner.native import pipeline as compiled
from planner.trace import Workload

__all__ = ["StepTimes", "chunk_times", "step_of"]

longest.use(compiled.ends_of, compiled.path_to)

_ROUNDING = 1e-9
_WAITING = ("bubble", "gathering", "scattering")  # one of them is what `_spent` finds


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Seconds of one step.

    `spent` gives them by what the busiest pipeline rank does; they add up to `total_s`.  Of these, `again` is what
    `recompute` consists of, and `copied_s` what copies of activations to the host and back add to the passes, beyond
    what they hide behind.  `chunks` are the numbers of the units of each chunk of the model, `rows` the times of each
    pipeline rank's chunks, `sent_s` what each chunk but the first is handed over in; `once_s`: by pipeline rank, what
    happens once a step; `passes`: on the first rank.
    """

    total_s: float
    spent: Mapping[str, float]
    again: Part
    copied_s: float
    passes: Passes
    chunks: Sequence[Sequence[int]]
    rows: Sequence[Sequence[ChunkTimes]]
    sent_s: Sequence[float]
    once_s: Sequence[float]
    pipeline: PipelineCost

    @property
    def breakdown(self) -> dict[str, float]:
        """Seconds by cause, as `spent`, but that each stands with one cause alone: of what runs again, waiting for the
        host and collectives stand with those of the other passes, and copies to the host that nothing hides are
        `offload`, and no waiting for other ranks."""
        found = dict(self.spent)
        if self.again.seconds:
            found["recompute"] = self.again.compute
            found["host"] += self.again.host
            found["tensor_collectives"] += self.again.sent
        if self.copied_s:
            waited = next(cause for cause in _WAITING if cause in found)
            found["offload"] = min(self.copied_s, max(0.0, found[waited]))
            found[waited] -= found["offload"]
        return found


def step_of(
    workload: Workload,
    c: Configuration,
    machine: HardwareProfile | Sequence[HardwareProfile],
    chunks: Sequence[Sequence[int]],
    *,
    overlapped: bool = True,
) -> StepTimes:
    """The step of `c` with these chunks of the model, pipeline rank by pipeline rank, round by round.

    `machine`: of all ranks of the pipeline, or of each; `overlapped`: what may run beside computing does, else
    everything runs one after the other.
    """
    if not overlapped:
        c = c.with_(overlap_gradients=False, overlap_parameters=False, overlap_tensor=False, overlap_pipeline=False)
    ranks = Ranks(workload, c, machine, chunks, overlapped=overlapped)
    times = each_once(ranks.alike, lambda k: chunk_times(workload, c, ranks.of_chunk(k), k))
    sent = [ranks.handover(k) for k in range(1, len(chunks))]
    rows = [[times[k] for k in chunks_of(c, d)] for d in range(c.pp)]
    pipeline = _pipeline(c, rows, sent)
    after = [x.after(d) for d, x in enumerate(ranks.exchanges)]
    kinds = list(zip(map(id, ranks.exchanges), alike_ranks(workload, c, chunks), strict=True))
    update = each_once(kinds, lambda d: _update(workload, c, ranks.exchanges[d].passes.profile, chunks, d))
    once = [a + b for a, b in zip(after, update, strict=True)]
    last = once.index(max(once))
    overhead = ranks.step_overhead_s if _trains(workload) else 0.0
    spent, busiest = _spent(c, ranks, pipeline.total_s)
    spent |= {"exchange": after[last], "update": update[last], "overhead": overhead}
    total = pipeline.total_s + once[last] + overhead
    again, copied_s = _again(c, ranks.exchanges[busiest], busiest), _copied(workload, c, ranks, rows, busiest)
    return StepTimes(total, spent, again, copied_s, ranks.exchanges[0].passes, chunks, rows, sent, once, pipeline)


def _trains(workload: Workload) -> bool:
    return any(u.backward for u in workload.units)


def chunk_times(workload: Workload, c: Configuration, exchange: Exchanges, k: int) -> ChunkTimes:
    """Both passes of a micro-batch through chunk k of the exchange's, and what it keeps between them."""
    passes, part = exchange.passes, exchange.chunks[k]
    units = [passes.units[i] for i in part]
    if c.zero == 3:
        forward = exchange.gathered_pass(k, backward=False)
        backward = exchange.gathered_pass(k, backward=True) if _trains(workload) else 0.0
    else:
        forward, backward = sum(u.forward.seconds for u in units), sum(u.back for u in units)
        if c.scatters_every_pass and _trains(workload):
            backward = exchange.scattered_pass(k)
    c = in_chunk(workload, c, part, k)
    last = _last_collectives(passes, part)
    forward, backward = forward + last[0], backward + last[1]
    link = passes.profile.host.link_bytes_per_s
    if c.offload and link:
        copied = c.copies * chunk_offloaded_bytes(workload, c, part) / link
        forward, backward = max(forward, copied), max(backward, copied)
    weights = min(backward, sum(u.weight_seconds for u in units))
    activations = c.copies * chunk_activation_bytes(workload, c, part)
    return ChunkTimes(forward, backward, backward - weights, weights, activations)


def _last_collectives(passes: Passes, part: Sequence[int]) -> tuple[float, float]:
    """Seconds of the collective that ends each pass of interleaved copies through a chunk."""
    found = [passes.units[i].last for i in part]
    return max(f for f, _ in found), max(b for _, b in found)


def _pipeline(c: Configuration, rows: Sequence[Sequence[ChunkTimes]], sent: Sequence[float]) -> PipelineCost:
    """All passes through all chunks."""
    if c.pp == 1 and c.virtual_stages == 1 and c.order != "gpipe":
        # One after the other: nothing to simulate.
        one = rows[0][0]
        seconds = c.passes * (one.forward_s + one.backward_s)
        return PipelineCost(seconds, (1,), (one.activation_bytes,))
    return pipeline_seconds(c.order, rows, c.passes, sent, overlapped=c.overlap_pipeline)


def _update(
    workload: Workload, c: Configuration, profile: HardwareProfile, parts: Sequence[Sequence[int]], device: int
) -> float:
    if c.frozen or not _trains(workload):
        return 0.0
    read, stored = elements(workload, c, parts, device)
    precision = "fp32" if c.weight_bytes == 4 else c.precision
    return float(
        optimizer_seconds(profile, stored if c.zero else read, precision=precision, optimizer=c.optimizer, launches=0)
    )


def _spent(c: Configuration, ranks: Ranks, total: float) -> tuple[dict[str, float], int]:
    """Seconds of the busiest pipeline rank, and which one that is; what it waits for others is `bubble`, for weights
    alone `gathering`, for gradients alone `scattering`."""

    def spent(device: int) -> dict[str, float]:
        exchange = ranks.exchanges[device]
        passes = exchange.passes
        units = [passes.units[i] for i in exchange.units(device)]
        last = sum(sum(_last_collectives(passes, exchange.chunks[k])) for k in chunks_of(c, device))
        m = c.passes
        return {
            "compute": m * sum(u.forward.compute + u.backward.compute for u in units),
            "recompute": m * sum(u.again.seconds for u in units),
            "host": m * sum(u.forward.host + u.backward.host for u in units),
            "tensor_collectives": m * (last + sum(u.forward.sent + u.backward.sent for u in units)),
        }

    found = each_once(ranks.alike_ranks, spent)
    device = max(range(c.pp), key=lambda d: sum(found[d].values()))
    busiest = found[device]
    waiting = total - sum(busiest.values())
    if abs(waiting) < _ROUNDING * total:
        waiting = 0.0
    cause = "bubble" if c.pp > 1 or not c.scatters_every_pass else "gathering" if c.zero == 3 else "scattering"
    return {**busiest, cause: waiting}, device


def _again(c: Configuration, exchange: Exchanges, device: int) -> Part:
    """What a pipeline rank computes again in a step, apart from what it waits for and sends on that occasion."""
    parts = [exchange.passes.units[i].again for i in exchange.units(device)]
    return Part(*(c.passes * sum(getattr(p, name) for p in parts) for name in ("compute", "host", "sent")))


def _copied(
    workload: Workload, c: Configuration, ranks: Ranks, rows: Sequence[Sequence[ChunkTimes]], device: int
) -> float:
    """Seconds of a step by which copies of activations to the host last longer than the passes that they run beside."""
    if not c.offloads:
        return 0.0
    alone = c.with_(offload=0.0, offload_layers=None)
    seconds = 0.0
    for k, whole in zip(chunks_of(c, device), rows[device], strict=True):
        own = chunk_times(workload, alone, ranks.of_chunk(k), k)
        seconds += whole.forward_s - own.forward_s + whole.backward_s - own.backward_s
    return c.passes * seconds
