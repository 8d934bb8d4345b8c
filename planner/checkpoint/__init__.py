"""Checkpoints follow the plan: from any layout to any other, between the formats of several frameworks.

    planner.checkpoint.transform("old", "new", source="plan8/plan.json", target="plan6/plan.json")

docs/checkpoints.md describes what is read and written.  Functions are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.checkpoint.api import (
        TransferPlan,
        Transformed,
        merge,
        ranks,
        split,
        transfer_plan,
        transform,
        verify,
    )

__all__ = ["TransferPlan", "Transformed", "merge", "ranks", "split", "transfer_plan", "transform", "verify"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("planner.checkpoint.api"), name)
