"""What a plan file says of its proof: the label, and the record of what was executed, bound to the plan by a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final, Literal

from planner.planning import PlanDocument, plan_text
from planner.planning.document import ExecutedDocument
from planner.verify.fields import Difference

__all__ = ["Label", "label_of", "labelled", "plan_digest", "unlabelled", "verification_differences"]

Label = Literal["none", "sibling", "forward", "full"]
_NONE: Final[Label] = "none"


def label_of(plan: PlanDocument, executed: ExecutedDocument | None) -> Label:
    """`full` where all that the plan says was run as it says: every operator, its stages and micro-batches, and the
    gradients in training.  What is left of that without the gradients is `forward`.  Anything smaller is a `sibling`:
    fewer blocks, or a pipeline run as one stage with one micro-batch."""
    if executed is None:
        return _NONE
    schedule = plan.schedule
    as_it_is = (executed.stages, executed.micro_batches) == (schedule.stages, schedule.micro_batches)
    if not executed.whole or not as_it_is:
        return "sibling"
    return "full" if executed.gradients else "forward"


def plan_digest(plan: PlanDocument) -> str:
    """Of all that the plan says but of its proof."""
    return hashlib.sha256(plan_text(unlabelled(plan)).encode()).hexdigest()


def unlabelled(plan: PlanDocument) -> PlanDocument:
    """The plan before anything was executed."""
    return plan.model_copy(update={"verification": _NONE, "executed": None})


def labelled(
    plan: PlanDocument, *, whole: bool, gradients: bool, stages: int = 1, micro_batches: int = 1, seed: int = 0
) -> PlanDocument:
    """The plan after an execution that agreed with the model: of the `whole` graph or a smaller sibling, with
    `gradients`, in so many stages and micro-batches, on numbers drawn by `seed`."""
    record = ExecutedDocument(
        plan_digest=plan_digest(plan),
        whole=whole,
        gradients=gradients,
        stages=stages,
        micro_batches=micro_batches,
        seed=seed,
    )
    return plan.model_copy(update={"verification": label_of(plan, record), "executed": record})


def verification_differences(plan: PlanDocument) -> Iterator[Difference]:
    """Where label, record and plan do not agree."""
    record = plan.executed
    expected = label_of(plan, record)
    if plan.verification != expected:
        yield Difference("verification", f"{expected}, as `executed` says", plan.verification)
    if record is None:
        return
    digest, schedule = plan_digest(plan), plan.schedule
    if record.plan_digest != digest:
        yield Difference("executed.plan_digest", f"{digest}, as of the plan here", record.plan_digest)
    if record.gradients and schedule.mode == "inference":
        yield Difference("executed.gradients", "false: the plan has none", "true")
    for name, most, found in (
        ("stages", schedule.stages, record.stages),
        ("micro_batches", schedule.micro_batches, record.micro_batches),
    ):
        if found > most:
            yield Difference(f"executed.{name}", f"at most {most}", str(found))
