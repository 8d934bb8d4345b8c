"""What one plan does otherwise than another, and what that costs or saves."""

from planner.report.diff.document import document
from planner.report.diff.model import Diff, diff
from planner.report.diff.text import text

__all__ = ["Diff", "diff", "document", "text"]
