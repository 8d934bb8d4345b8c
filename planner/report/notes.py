"""What a reader of a plan should know before trusting its figures."""

from __future__ import annotations

from planner.planning.document import PlanDocument
from planner.report.figures import Figures

__all__ = ["notes"]

_GAP = 0.05  # above which the search's own bound leaves much open


def notes(plan: PlanDocument, costs: Figures, *, gap: float, searched: bool) -> list[dict[str, str]]:
    """`level` is `warning` or `note`.  `gap`: what the report says, `searched`: of all that was searched."""
    out: list[tuple[str, str]] = []
    without = plan.search.operators_replicated_for_want_of_a_rule
    if without:
        count = sum(o.type in without for o in plan.operators.values())
        out.append(
            ("warning", f"{count} operators have no sharding rule and run whole on every rank: {', '.join(without)}")
        )
    limit = plan.cluster.memory_limit_bytes
    if limit is not None and plan.cost.peak_memory_bytes > limit:
        over = plan.cost.peak_memory_bytes - limit
        out.append(("warning", f"the peak is {over:,} bytes above the memory limit of a device"))
    requested = plan.search.request
    layers_alike = requested is not None and requested.strategy is not None and plan.schedule.micro_batches > 1
    if layers_alike and not searched:
        # The search over configurations has a bound of its own, which a plan cannot prove.
        own = "the bound is what this file proves, of its own stages and micro-batches"
        out.append(("note", f"{own}; `planner search` prints that of all that it searched"))
    elif gap > _GAP:
        out.append(("warning", f"a step up to {gap:.1%} shorter is not ruled out"))
    if all(set(o.strategy.values()) <= {"replicate"} for o in plan.operators.values()) and plan.devices > 1:
        out.append(("note", "nothing is split: every rank does the whole work, because communicating would cost more"))
    if plan.schedule.micro_batches > 1:
        out.append(("note", "costs of operators and redistributions are those of one micro-batch through all stages"))
    if not costs.timed:
        out.append(
            (
                "note",
                "the plan does not say when operators run: no time of single operators, no timeline, no memory by "
                "kind; search again to have them",
            )
        )
    unsolved = sum(c.objective_s is None for c in plan.search.candidates)
    if unsolved:
        out.append(
            (
                "note",
                f"{unsolved} of {len(plan.search.candidates)} searches ended without a plan: ruled out by their bound, "
                "infeasible, or out of time",
            )
        )
    if plan.verification == "none":
        out.append(("note", "not verified by execution: `planner verify PLAN MODEL` does"))
    return [{"level": level, "text": text} for level, text in out]
