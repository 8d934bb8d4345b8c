"""`planner.Report`: a plan as a page or as text, shown in a notebook or written to a file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import InputError
from planner.library.wording import worded
from planner.terminal import plain

if TYPE_CHECKING:
    from planner.planning import PlanDocument
    from planner.report.record import SearchRecord
    from planner.report.view import View

__all__ = ["Report", "framed", "written"]

_HEIGHT = 720  # pixels of a page inside a notebook


def framed(page: str, height: int = _HEIGHT) -> str:
    """A whole page inside another: in a frame of its own origin, which nothing outside can be reached from."""
    return (
        f'<iframe srcdoc="{escape(page)}" sandbox="allow-scripts" loading="lazy" '
        f'style="width: 100%; height: {height}px; border: 1px solid #8884"></iframe>'
    )


def written(page: str, out: str | os.PathLike[str], what: str) -> Path:
    """Writes a page.  InputError where it cannot be."""
    from planner.files import write_whole

    try:
        write_whole(Path(out), page.encode("utf-8", "replace"))
    except OSError as e:
        raise InputError(f"{what} {out}: cannot be written ({e}); give another place") from e
    return Path(out)


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """What a plan is, where time and memory go, the graph coloured by how operators are split, the simulated step.

    A notebook shows it as a page; `print` as text.
    """

    document: PlanDocument
    record: SearchRecord | None = None

    @cached_property
    def _view(self) -> View:
        from planner.report.view import view

        return view(self.document)

    @cached_property
    def _words(self) -> str:
        from planner.requests.headline import words

        return words(self.document).removesuffix(" (--details)")

    @cached_property
    def html(self) -> str:
        """One page that needs nothing else."""
        from planner.report.pages import report_html

        return report_html(self.document, self.record, self._words)

    @cached_property
    def text(self) -> str:
        """One screen."""
        from planner.report.terminal import report_text

        return report_text(self._view, self.record, self._words)

    def to_dict(self) -> dict[str, Any]:
        """As data (docs/report.md)."""
        from planner.report.document import document_of

        return document_of(self._view, self.record)

    def trace(self) -> dict[str, Any]:
        """The simulated step for Perfetto or chrome://tracing."""
        from planner.report.trace import trace_document

        return trace_document(self.document)

    @worded
    def save(self, out: str | os.PathLike[str]) -> Path:
        """Writes the page.  InputError where it cannot be written."""
        return written(self.html, out, "report")

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        cluster = self.document.cluster
        return plain(f"<Report of {self.document.model.name} on {cluster.devices} x {cluster.hardware}>")

    def _repr_html_(self) -> str:
        return framed(self.html)
