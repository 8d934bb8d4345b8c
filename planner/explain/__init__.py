"""Why a plan is as it is: what a choice costs, what its alternatives would cost as searches that have them pinned, and
which limit keeps a better plan away."""

from __future__ import annotations

from planner.explain.case import Case, Found
from planner.explain.document import SCHEMA, ExplanationDocument
from planner.explain.explain import explain
from planner.explain.text import explanation_text

__all__ = ["SCHEMA", "Case", "ExplanationDocument", "Found", "explain", "explanation_text"]
