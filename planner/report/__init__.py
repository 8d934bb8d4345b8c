"""Reports for people, made from plan.json alone.

`report_html` and `report_document`: a plan as a page and as data; `diff_html` and `diff_document`: what one plan does
otherwise than another; `trace_document`: its simulated step for trace viewers.  Imported when first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.report.diff import diff_document, diff_html
    from planner.report.document import report_document
    from planner.report.pages import report_html
    from planner.report.trace import trace_document

__all__ = ["diff_document", "diff_html", "report_document", "report_html", "trace_document"]

_WHERE = {
    "diff_document": "planner.report.diff",
    "diff_html": "planner.report.diff",
    "report_document": "planner.report.document",
    "report_html": "planner.report.pages",
    "trace_document": "planner.report.trace",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
