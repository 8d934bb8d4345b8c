"""A model with the multi-device annotations of a plan that is searched for it."""

from __future__ import annotations

from pathlib import Path

from planner.cli.main import main

__all__ = ["annotated"]


def annotated(folder: Path, model: Path, devices: int, *pins: str) -> Path:
    """The annotated model that `planner emit` writes of the plan under these pins; the plan lies in `folder`/plan."""
    options = [o for p in pins for o in ("--pin", p)]
    arguments = ["search", str(model), "--devices", str(devices), "--hardware", "cpu", "--no-cache"]
    assert main([*arguments, "--out", str(folder / "plan"), *options]) == 0
    plan = str(folder / "plan" / "plan.json")
    assert main(["emit", plan, "--target", "onnx", "--model", str(model), "--out", str(folder / "out")]) == 0
    return folder / "out" / "model.onnx"
