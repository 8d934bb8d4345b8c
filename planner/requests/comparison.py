"""Plans beside a baseline, each in words, and with its step by cause as exact as the model beside it allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import PlannerError
from planner.requests.model import ModelSource
from planner.requests.plan_model import MODEL_FILE

if TYPE_CHECKING:
    from planner.ir import Graph
    from planner.planning import PlanDocument
    from planner.report.diff import Column, Diff
    from planner.report.diff.text import Names

__all__ = ["Comparison", "clock_of_plan", "column_of", "column_of_file"]


def column_of_file(path: Path) -> Column:
    """InputError where it is no plan."""
    from planner.planning import read_plan

    plan = read_plan(path)
    return column_of(plan, str(path), clock_of_plan(plan, path.parent / MODEL_FILE))


def column_of(plan: PlanDocument, name: str, clock: Mapping[str, float] | None = None) -> Column:
    from planner.report.diff import Column
    from planner.requests.headline import words

    return Column(plan, name, words(plan), clock)


def clock_of_plan(plan: PlanDocument, model: Path | ModelSource | None) -> Mapping[str, float] | None:
    """The parts of its step by the clock; None where the plan says them itself, or where the model that was planned is
    not there or the plan is priced otherwise today."""
    if plan.cost.step_parts_s or model is None or (isinstance(model, Path) and not model.is_file()):
        return None
    source = ModelSource(model) if isinstance(model, Path) else model
    from planner.evaluate.plan import price_plan

    def load(batch: int | None, bind: Mapping[str, int]) -> Graph:
        return source.load(bind=bind, batch=batch)

    try:
        found = price_plan(plan, load)
    except PlannerError:  # another model lies there, or the plan is one of another version: its own figures stand
        return None
    return dict(found["step_parts_s"]) if found["step_time_s"] == plan.cost.step_time_s else None


@dataclass(frozen=True, eq=False)
class Comparison:
    """`columns`: the baseline, and one or more plans to compare with it."""

    columns: Sequence[Column]

    @cached_property
    def diffs(self) -> list[Diff]:
        from planner.report.diff import diff

        return [diff(self.columns[0].plan, c.plan) for c in self.columns[1:]]

    @property
    def identical(self) -> bool:
        return all(d.identical for d in self.diffs)

    def text(self, groups: int | None = None) -> str:
        """One screen; with so many `groups` of changes all figures below it."""
        from planner.report.diff import details, several, text

        if len(self.diffs) > 1:
            return several(self.columns, [d.identical for d in self.diffs])
        found = text(self.diffs[0], self._names, words=self._words, clocks=self._clocks)
        return found if groups is None or self.identical else f"{found}\n\n{details(self.diffs[0], groups)}"

    @property
    def markdown(self) -> str:
        from planner.report.diff import markdown, several_markdown

        if len(self.diffs) > 1:
            return several_markdown(self.columns, [d.identical for d in self.diffs])
        return markdown(self.diffs[0], self._names, words=self._words, clocks=self._clocks)

    def document(self) -> dict[str, Any]:
        """`planner.diff/1` of two plans, `planner.diffs/1` of more."""
        from planner.report.diff import document, several_document

        if len(self.diffs) > 1:
            return several_document(self.columns, self.diffs)
        return document(self.diffs[0], self._clocks)

    @property
    def html(self) -> str:
        """A page: two plans side by side, several as a table."""
        from planner.report.diff import page_of, several_html

        if len(self.diffs) > 1:
            return several_html(self.columns, [d.identical for d in self.diffs])
        return page_of(self.diffs[0], self._names, words=self._words, clocks=self._clocks)

    @property
    def _names(self) -> Names:
        return self.columns[0].name, self.columns[1].name

    @property
    def _words(self) -> Names:
        return self.columns[0].words, self.columns[1].words

    @property
    def _clocks(self) -> tuple[Mapping[str, float] | None, Mapping[str, float] | None]:
        return self.columns[0].clock, self.columns[1].clock
