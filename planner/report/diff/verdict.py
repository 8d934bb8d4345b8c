"""What a step of B is to one of A in one sentence, where both are the same work."""

from __future__ import annotations

from planner.report.diff.batch import same_samples, samples
from planner.report.diff.model import Diff
from planner.report.diff.summary import Summary

__all__ = ["other_work"]


def other_work(d: Diff, s: Summary) -> str:
    """Why the durations of both steps say nothing about which plan is better, with samples a second where batches alone
    are not the same; empty where a step is the same work."""
    modes = d.a.schedule.mode, d.b.schedule.mode
    if d.matching.other_models:
        return "Plans of different models"
    if modes[0] != modes[1]:
        return f"A plan of {modes[0]} and one of {modes[1]}"
    if not same_samples(d.a, d.b):
        return "Plans for inputs of other shapes"
    if samples(d.a) == samples(d.b):
        return ""
    for row in s.totals:
        if row.key == "samples":
            relative = f" ({row.relative})" if row.relative else ""
            return f"Plans for other batches: {row.a} samples/s in A, {row.b} in B{relative}"
    return "Plans for other batches"
