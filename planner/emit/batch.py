"""How many samples a plan's ranks take at a time."""

from __future__ import annotations

from dataclasses import dataclass

from planner.emit.scheme import Scheme
from planner.errors import InputError
from planner.planning.document import PlanDocument

__all__ = ["Batch", "batch_of"]


@dataclass(frozen=True, slots=True)
class Batch:
    """`total` samples a step, in `micro_batches` of `per_rank` on every data-parallel rank; `positions` of a sample,
    where samples are sequences of tokens."""

    total: int
    per_rank: int
    micro_batches: int
    positions: int | None

    @property
    def local(self) -> int:
        """Samples of a data-parallel rank in a step."""
        return self.per_rank * self.micro_batches


def batch_of(plan: PlanDocument, scheme: Scheme) -> Batch:
    """Sizes of a plan are those of one micro-batch of all data-parallel ranks; samples are those
    that `--batch` bound, else the first dimension of the first input that has dimensions.

    InputError where there is none, or where ranks do not take equal parts.
    """
    name, first = next(((n, x) for n, x in plan.inputs.items() if x.shape), ("", None))
    if first is None or not first.shape:
        raise InputError("plan: no input has a dimension that could count samples; bind its shapes (--bind) and search")
    shape = first.shape
    samples = plan.model.batch or shape[0]
    if samples % scheme.data:
        raise InputError(
            f"plan: input {name} holds {samples} samples, and {scheme.data} data-parallel ranks cannot share them "
            "evenly; search with another --batch"
        )
    return Batch(
        total=samples * scheme.micro_batches,
        per_rank=samples // scheme.data,
        micro_batches=scheme.micro_batches,
        positions=shape[1] if len(shape) == 2 and first.dtype.startswith("int") else None,
    )
