"""What one plan does otherwise than another."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.library.plan import Plan, plan_of
from planner.library.reporting import framed, written
from planner.library.wording import worded

if TYPE_CHECKING:
    from planner.report.diff import Diff as Found

__all__ = ["Diff", "diff"]

_GROUPS = 10  # of changes, in text


@dataclass(frozen=True, eq=False, repr=False)
class Diff:
    """Two plans, and what `b` does otherwise than `a`.  A notebook shows them side by side; `print` as text."""

    a: Plan
    b: Plan
    names: tuple[str, str] = ("A", "B")

    @cached_property
    def _found(self) -> Found:
        from planner.report.diff import diff as compared

        return compared(self.a.document, self.b.document)

    @property
    def identical(self) -> bool:
        """Whether nothing is done otherwise."""
        return self._found.identical

    @cached_property
    def html(self) -> str:
        """One page that needs nothing else."""
        from planner.report.diff import page_of

        return page_of(self._found, self.names)

    @cached_property
    def text(self) -> str:
        """Equal changes together, with what each costs or saves."""
        from planner.report.diff import text

        return text(self._found, self.names, _GROUPS)

    def to_dict(self) -> dict[str, Any]:
        """As data (docs/diff.md)."""
        from planner.report.diff import document

        return document(self._found)

    @worded
    def save(self, out: str | os.PathLike[str]) -> Path:
        """Writes the page.  InputError where it cannot be written."""
        return written(self.html, out, "diff")

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        if self.identical:
            return f"<Diff: {self.names[0]} and {self.names[1]} are the same plan>"
        a, b = self.a.step_time, self.b.step_time
        return f"<Diff: a step of {self.names[1]} takes {b:.4g} s, of {self.names[0]} {a:.4g} s>"

    def _repr_html_(self) -> str:
        return framed(self.html)


@worded
def diff(
    a: Plan | str | os.PathLike[str], b: Plan | str | os.PathLike[str], out: str | os.PathLike[str] | None = None
) -> Diff:
    """What plan `b` does otherwise than plan `a`, and what that costs or saves, as `planner diff` says it.

    Args:
        a, b: of `planner.search`, or plan.json files, or their folders.
        out: file to write the page to.

    Raises:
        InputError: one is no plan, or the file cannot be written.
    """
    names = tuple("AB"[i] if isinstance(p, Plan) else os.fspath(p) for i, p in enumerate((a, b)))
    found = Diff(plan_of(a), plan_of(b), (names[0], names[1]))
    _ = found.identical  # what cannot be compared is said here
    if out is not None:
        found.save(out)
    return found
