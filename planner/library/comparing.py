"""What one plan does otherwise than another."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.library.reporting import framed, written
from planner.library.wording import worded

if TYPE_CHECKING:
    from planner.planning import PlanDocument
    from planner.report.diff import Diff as Found

__all__ = ["Diff"]


@dataclass(frozen=True, eq=False, repr=False)
class Diff:
    """Two plans, and what `b` does otherwise than `a`.  A notebook shows them side by side; `print` as text."""

    a: PlanDocument
    b: PlanDocument
    names: tuple[str, str] = ("A", "B")
    _clocks: tuple[Mapping[str, float] | None, Mapping[str, float] | None] = (None, None)

    @cached_property
    def _found(self) -> Found:
        from planner.report.diff import diff as compared

        return compared(self.a, self.b)

    @cached_property
    def _words(self) -> tuple[str, str]:
        from planner.requests.headline import words

        return words(self.a), words(self.b)

    @property
    def identical(self) -> bool:
        """Whether nothing is done otherwise."""
        return self._found.identical

    @cached_property
    def html(self) -> str:
        """One page that needs nothing else."""
        from planner.report.diff import page_of

        return page_of(self._found, self.names, words=self._words, clocks=self._clocks)

    @cached_property
    def text(self) -> str:
        """One screen: totals, the step by cause, and changes by rule, which add up as printed."""
        from planner.report.diff import text

        return text(self._found, self.names, words=self._words, clocks=self._clocks)

    @cached_property
    def markdown(self) -> str:
        """The same for the comment of a pull request."""
        from planner.report.diff import markdown

        return markdown(self._found, self.names, words=self._words, clocks=self._clocks)

    def to_dict(self) -> dict[str, Any]:
        """As data (docs/diff.md)."""
        from planner.report.diff import document

        return document(self._found, self._clocks)

    @worded
    def save(self, out: str | os.PathLike[str]) -> Path:
        """Writes the page.  InputError where it cannot be written."""
        return written(self.html, out, "diff")

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        if self.identical:
            return f"<Diff: {self.names[0]} and {self.names[1]} are the same plan>"
        a, b = self.a.cost.step_time_s, self.b.cost.step_time_s
        return f"<Diff: a step of {self.names[1]} takes {b:.4g} s, of {self.names[0]} {a:.4g} s>"

    def _repr_html_(self) -> str:
        return framed(self.html)
