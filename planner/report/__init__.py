"""Reports for people, made from plan.json alone.

`report_html` and `report_document`: a plan as a page and as data; `trace_document`: its simulated step for
trace viewers.  Imported when first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.report.document import report_document
    from planner.report.pages import report_html
    from planner.report.trace import trace_document

__all__ = ["report_document", "report_html", "trace_document"]

_WHERE = {
    "report_document": "planner.report.document",
    "report_html": "planner.report.pages",
    "trace_document": "planner.report.trace",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
