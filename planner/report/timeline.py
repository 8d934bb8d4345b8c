"""The micro-batches of a pipeline over time, from what the plan says of its stages."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.pipeline import ChunkTimes, simulate
from planner.planning.document import PlanDocument

__all__ = ["PipelinePasses", "pipeline_run"]

MOST = 20_000  # passes that are worked out for a picture


@dataclass(frozen=True, slots=True)
class PipelinePasses:
    """`passes`: stage, `F` or `B`, micro-batch, begin and end in seconds.  `micro_batches`: how many were worked out;
    fewer than the plan has where it has very many."""

    micro_batches: int
    passes: tuple[tuple[int, str, int, float, float], ...]


def pipeline_run(plan: PlanDocument) -> PipelinePasses | None:
    """None where there are no micro-batches, or the plan does not say what its stages cost."""
    stages, parts = plan.stages, plan.schedule.micro_batches
    if (len(stages) < 2 and parts < 2) or not any(s.forward_s for s in stages):
        return None
    shown = min(parts, max(1, MOST // (2 * len(stages))))
    chunks = [[ChunkTimes(s.forward_s, s.backward_s)] for s in stages]
    sends = [s.sends_s for s in stages[:-1]]
    run = simulate(plan.schedule.order or "1f1b", chunks, shown, sends, overlapped=plan.schedule.sends_overlap)
    return PipelinePasses(shown, tuple((p.device, p.kind, p.micro_batch, p.begin_s, p.end_s) for p in run.timeline))
