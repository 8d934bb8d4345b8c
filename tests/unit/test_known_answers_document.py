"""docs/known-answers.md names every published case, and every row of its tables is what the planner answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.verify.check import verify_program
from tests.unit.alpa_cases import BUILT, CASES, LEFT_OUT, answer, published
from tests.unit.alpa_prototype import Case
from tests.unit.known import paid
from tests.unit.known_document import DOCUMENT, PROTOTYPE, agrees, case_row, left_out_rows, prototype_row

SHARED = Path(__file__).parents[3] / "shared" / "oracles" / "alpa_cases.json"
ROWS = frozenset(DOCUMENT.read_text(encoding="utf-8").splitlines())
ANEW = f"{DOCUMENT.name} lacks this row; `python -m tests.unit.known_document` prints its tables"
SLOW = {"moe_layer_2d", "moe_lm_2d"}


@pytest.mark.parametrize("case", PROTOTYPE, ids=lambda c: c.id)
def test_rows_of_the_prototype(case: Case) -> None:
    assert prototype_row(case) in ROWS, ANEW


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in BUILT])
def test_rows_of_the_cases(name: str) -> None:
    """Shardings and collectives agree with Alpa's, or ours is cheaper than Alpa's plan."""
    assert case_row(name) in ROWS, ANEW
    found = answer(name)
    assert agrees(name, found.ours) if found.same else found.ours.objective < found.theirs.objective
    for plan in (found.ours, found.theirs):
        assert paid(plan, BUILT[name].links) == pytest.approx(plan.objective)
    assert found.same or verify_program(found.ours.program).ok
    stated = published(name)
    if stated is not None and not found.same:
        assert found.ours.objective < stated
        assert found.theirs.objective == pytest.approx(stated, rel=0.013)


def test_every_case_is_built_or_left_out_for_a_reason() -> None:
    assert BUILT.keys() | LEFT_OUT.keys() == CASES.keys()
    assert not BUILT.keys() & LEFT_OUT.keys()
    assert set(left_out_rows()) <= ROWS, ANEW


@pytest.mark.corpus
@pytest.mark.skipif(not SHARED.exists(), reason="the oracles do not lie beside the checkout")
def test_the_cases_are_the_published_ones() -> None:
    for entry in json.loads(SHARED.read_text(encoding="utf-8")):
        ours = CASES[entry["id"]]
        assert ours.get("collectives") == entry.get("collectives"), entry["id"]
        expected = entry.get("expected_objective")
        assert ours.get("expected_objective") == (
            pytest.approx(expected) if isinstance(expected, int | float) else expected
        )
