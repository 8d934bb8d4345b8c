"""The micro-batches of a pipeline over time, from what the plan says of its stages."""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost_models.pipeline import ChunkTimes, simulate, stage_numbers
from planner.planning.document import PlanDocument, StageDocument

__all__ = ["PipelinePasses", "pipeline_run"]

MOST = 20_000  # passes that are worked out for a picture


@dataclass(frozen=True, slots=True)
class PipelinePasses:
    """`passes`: stage, `F`, `B` or (gradients of weights, where they run apart) `W`, micro-batch, begin and end in
    seconds, and which of the stage's chunks of the model.  `micro_batches`: how many were worked out; fewer than the
    plan has where it has very many.  Of `copies` that pass together the first one's number stands."""

    micro_batches: int
    copies: int
    passes: tuple[tuple[int, str, int, float, float, int], ...]


def pipeline_run(plan: PlanDocument) -> PipelinePasses | None:
    """None where there are no micro-batches, or the plan does not say what its stages cost."""
    stages, copies = plan.stages, plan.schedule.copies
    parts = plan.schedule.passes
    if (len(stages) < 2 and parts * copies < 2) or not any(s.forward_s for s in stages):
        return None
    order = plan.schedule.pass_order
    shown = min(parts, max(1, MOST // (3 * len(stages) * plan.schedule.chunks)))
    chunks = [_chunks(s) for s in stages]
    sends = {
        int(k): (s.chunks[c].sends_s if s.chunks else s.sends_s)
        for s, numbers in zip(stages, stage_numbers(order, len(stages), plan.schedule.chunks), strict=True)
        for c, k in enumerate(numbers)
    }
    between = [sends[k] for k in range(len(sends) - 1)]
    run = simulate(order, chunks, shown, between, overlapped=plan.schedule.sends_overlap)
    passes = tuple((p.device, p.kind, p.micro_batch * copies, p.begin_s, p.end_s, p.chunk) for p in run.timeline)
    return PipelinePasses(shown * copies, copies, passes)


def _chunks(stage: StageDocument) -> list[ChunkTimes]:
    if not stage.chunks:
        return [ChunkTimes(stage.forward_s, stage.backward_s)]
    return [ChunkTimes(x.forward_s, x.backward_s, x.backward_s - x.weights_s, x.weights_s) for x in stage.chunks]
