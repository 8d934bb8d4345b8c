"""The model that was kept beside a plan, as a file to work on."""

from __future__ import annotations

from pathlib import Path

from planner.api.jobs.requests import model_file
from planner.api.jobs.work import JobInput
from planner.errors import UsageError
from planner.planning import PlanDocument

__all__ = ["lay_out_model"]


def lay_out_model(work: JobInput, plan: PlanDocument, what: str) -> Path:
    """The plan's model as a file of its name.  UsageError where it was not kept."""
    if "model.onnx" not in work.inputs:
        raise UsageError(f"{what}: needs the model, which was not kept beside this plan; send it again")
    try:
        return work.lay_out("model.onnx", str(model_file({"name": plan.model.name})))
    except UsageError:
        return work.lay_out("model.onnx", "model.onnx")
