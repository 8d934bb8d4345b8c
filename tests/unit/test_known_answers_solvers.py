"""The solvers on the problems of Alpa's solver prototype, in its own space: its optimum, its choice, its memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.search.evaluate import evaluate, peak_memory
from planner.search.solve import SolverName, solve
from tests.unit.alpa_prototype import Case
from tests.unit.alpa_space import UNITS, space_of
from tests.unit.known_document import PROTOTYPE

SOLVERS: tuple[SolverName, ...] = ("dp", "ilp")
SINGLE = 1e-6  # objectives are written in single precision
MIB = 2**20

each = pytest.mark.parametrize("case", PROTOTYPE, ids=lambda c: c.id)


@each
def test_all_solvers_find_the_stated_optimum(case: Case) -> None:
    space = space_of(case)
    for solver in SOLVERS:
        solution = solve(space.problem, solver=solver)
        assert (solution.status, solution.cost) == ("optimal", evaluate(space.problem, space.choice())), solver
        assert solution.cost is not None
        assert solution.cost / UNITS == pytest.approx(case.objective, rel=SINGLE)


@each
def test_the_stated_choice_has_the_stated_peak(case: Case) -> None:
    space = space_of(case)
    assert peak_memory(space.problem, space.choice()) / MIB == pytest.approx(case.peak, abs=0.0051)


@pytest.mark.parametrize("case", [c for c in PROTOTYPE if len(c.instructions) < 20], ids=lambda c: c.id)
def test_solvers_agree_where_memory_binds(case: Case) -> None:
    """With a tenth less memory than Alpa's choice takes."""
    space = space_of(case)
    unlimited = evaluate(space.problem, space.choice())
    peak = peak_memory(space.problem, space.choice())
    tight = replace(space.problem, limit=peak * 9 // 10)
    found = [solve(tight, solver=solver) for solver in SOLVERS]
    assert len({s.cost for s in found}) == 1
    assert {s.status for s in found} in ({"optimal"}, {"infeasible"})
    assert unlimited is not None
    assert all(s.cost is None or s.cost >= unlimited for s in found)
