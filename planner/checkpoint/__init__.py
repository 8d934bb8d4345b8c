"""Checkpoints follow the plan: from any layout to any other, between the formats of several frameworks.

    planner.checkpoint.transform("old", "new", source="plan8/plan.json", target="plan6/plan.json")

docs/checkpoints.md describes what is read and written.
"""

from planner.checkpoint.api import Transformed, merge, ranks, split, transform, verify

__all__ = ["Transformed", "merge", "ranks", "split", "transform", "verify"]
