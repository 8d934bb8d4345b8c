"""A plan as one HTML file."""

from __future__ import annotations

from planner.planning.document import PlanDocument
from planner.report.html import page
from planner.report.html.data import page_data
from planner.report.record import SearchRecord
from planner.report.terminal import report_text
from planner.report.view import view

__all__ = ["report_html"]


def report_html(plan: PlanDocument, record: SearchRecord | None = None, words: str = "") -> str:
    """The report as a page that needs nothing else; `record`: of the search that made the plan; `words`: the plan in
    degrees of parallelism."""
    v = view(plan)
    title = f"{plan.model.name}: plan for {plan.cluster.devices} x {plan.cluster.hardware}"
    words = words.removesuffix(" (--details)")
    return page("report", title, page_data(v, record, words), report_text(v, record, words))
