"""Checkpoints follow the plan: from any layout to any other, between the formats of several frameworks.

    planner.checkpoint.transform("old", "new", source="plan8/plan.json", target="plan6/plan.json")

docs/checkpoints.md describes what is read and written.
"""

from planner.checkpoint.api import TransferPlan, Transformed, merge, ranks, split, transfer_plan, transform, verify

__all__ = ["TransferPlan", "Transformed", "merge", "ranks", "split", "transfer_plan", "transform", "verify"]
