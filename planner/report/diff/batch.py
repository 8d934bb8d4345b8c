"""Whether a step of two plans is the same work: as many samples, of the same shapes."""

from __future__ import annotations

from planner.planning.document import PlanDocument

__all__ = ["same_samples", "samples"]


def samples(plan: PlanDocument) -> int | None:
    """Of a step; None where the model has no batch."""
    shapes = [i.shape for n, i in plan.inputs.items() if n not in plan.parameters and i.shape]
    return shapes[0][0] * plan.schedule.micro_batches if shapes and shapes[0] else None


def same_samples(a: PlanDocument, b: PlanDocument) -> bool:
    """Whether both are fed alike but for the first dimension, that of the batch, whatever inputs are called."""
    fed = [sorted(x.shape[1:] for n, x in p.inputs.items() if x.shape and n not in p.parameters) for p in (a, b)]
    return fed[0] == fed[1]
