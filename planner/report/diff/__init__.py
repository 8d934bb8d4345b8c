"""What one plan does otherwise than another, and what that costs or saves."""

from planner.report.diff.details import details
from planner.report.diff.document import diff_document, document
from planner.report.diff.markdown import markdown
from planner.report.diff.model import Diff, diff
from planner.report.diff.page import diff_html, page_of
from planner.report.diff.several import Column, several, several_document, several_html, several_markdown
from planner.report.diff.text import text

__all__ = [
    "Column",
    "Diff",
    "details",
    "diff",
    "diff_document",
    "diff_html",
    "document",
    "markdown",
    "page_of",
    "several",
    "several_document",
    "several_html",
    "several_markdown",
    "text",
]
