"""`plan.explain`: what a plan's choices cost, and their alternatives."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.explain import ExplanationDocument

__all__ = ["Explanation"]


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """What limits a plan and what its choices cost; of an operator, its best alternatives.  `print` shows it."""

    document: ExplanationDocument

    @property
    def text(self) -> str:
        """As `planner explain` prints it."""
        from planner.explain import explanation_text

        return explanation_text(self.document)

    def to_dict(self) -> dict[str, Any]:
        """As data (docs/explain.md)."""
        return self.document.model_dump(mode="json", by_alias=True)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Explanation: {self.text.partition(chr(10))[0]}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text)}</pre>"
