"""From a PyTorch module to a trained step in two lines; needs the extra `torch`.

    plan = planner.torch.plan(model, inputs, targets=targets, loss=loss_fn, devices=8, optimizer="adamw")
    model = planner.torch.parallelize(model, plan)

- `plan` captures the module's step and searches a strategy for it (`capture`, `planning`)
- `load_exported`: a plan that was made of the module's ONNX export (`exported_model`); `step`: what is known of either
- `parallelize` lets the plan's program run in the module's place (`parallel`), with state as DTensors
- `autotune` runs the plans that are predicted fastest, and keeps the fastest (`tuning`)
- `profile` measures a step beside the plan's predictions (`profiling`)
- `state_dict`, `load_state_dict`: checkpoints under plain names, whatever the plan (`state`)
- `exchange` moves tensors between live processes as a transfer plan says (`planner.runtime.exchange`)
"""

from __future__ import annotations

import importlib
from typing import Any, Final

__all__ = [
    "ModulePlan",
    "autotune",
    "clip_grad_norm_",
    "exchange",
    "load",
    "load_exported",
    "load_state_dict",
    "parallelize",
    "plan",
    "profile",
    "set_step",
    "state_dict",
    "whole_state_dict",
]

_HOME: Final = {
    "ModulePlan": "planner.torch.planning",
    "autotune": "planner.torch.tuning",
    "load": "planner.torch.planning",
    "load_exported": "planner.torch.exported_model",
    "parallelize": "planner.torch.parallel",
    "plan": "planner.torch.planning",
    "profile": "planner.torch.profiling",
    "clip_grad_norm_": "planner.torch.state",
    "exchange": "planner.runtime.exchange",
    "load_state_dict": "planner.torch.state",
    "set_step": "planner.torch.state",
    "state_dict": "planner.torch.state",
    "whole_state_dict": "planner.torch.state",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'planner.torch' has no attribute {name!r}")
    from planner.runtime.extra import require_torch

    require_torch(f"planner.torch.{name}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
