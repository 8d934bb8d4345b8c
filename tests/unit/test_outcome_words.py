"""What a search says of a mesh on which it found no plan is no more than was proven."""

from __future__ import annotations

from types import SimpleNamespace as Values
from typing import Any

import pytest

from planner.planning.outer import _Outer


@pytest.mark.parametrize(
    ("bound", "best", "said"),
    [(90, 100, "no plan was found"), (100, 100, "no plan can be cheaper"), (120, 100, "no plan can be cheaper")],
)
def test_a_mesh_is_closed_only_by_a_bound_that_reaches_the_best_plan(bound: int, best: int, said: str) -> None:
    option: Any = Values(bound=bound, candidate=lambda unit: Values(objective_s=None, bound_s=bound * unit))
    search: Any = Values(unit_s=1e-3, best=Values(solution=Values(cost=best)))
    assert _Outer._outcome(search, option) == f"bound {bound * 1e-3:.6g} s, {said}"


def test_without_any_plan_nothing_is_closed() -> None:
    option: Any = Values(bound=5, candidate=lambda unit: Values(objective_s=None, bound_s=5 * unit))
    search: Any = Values(unit_s=1.0, best=None)
    assert _Outer._outcome(search, option) == "bound 5 s, no plan was found"
