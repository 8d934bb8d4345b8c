"""A mesh whose glance leaves open whether anything fits still calls in recomputation when the search finds out."""

from __future__ import annotations

import pytest

from planner.cost_models import load_profile
from planner.frontends import import_bytes
from planner.planning import Request, make_plan
from planner.planning.options import Option
from planner.planning.outer import _Outer
from planner.pricing import Settings
from planner.search.control import Control
from planner.search.solve import Search
from tests.unit.semantics_model import transformer


def test_infeasibility_found_late_calls_in_recomputation(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = import_bytes(transformer())
    request = Request(2, load_profile("a100-80"), Settings(training=True))
    opened: list[bool] = []
    first: list[Search] = []
    plain_open = _Outer._open
    plain_run = Search.run

    def open_(self: _Outer, option: Option, control: Control) -> None:
        self.can_recompute = True
        opened.append(option.recompute)
        plain_open(self, option, control)
        if option.search is not None and not option.recompute:
            option.search.choice = option.search.cost = None
            option.search.bound = 0
            self.best = None
            first.append(option.search)

    def run(self: Search, *, cutoff: int | None = None) -> object:
        if self in first:
            self.infeasible = True
            return self.solution
        return plain_run(self, cutoff=cutoff)

    monkeypatch.setattr(_Outer, "_open", open_)
    monkeypatch.setattr(Search, "run", run)
    planned = make_plan(graph, request)
    assert True in opened
    assert planned.priced.machine.settings.recompute
