"""No published row of a sample, one or two of every data set, is predicted worse than it was.

`tests/golden/accuracy_rows.json` has the rows as published, with their sources, `accuracy_errors.json` what they are
predicted at: predicted / measured - 1 of the step, and of the memory where a row has it.  After a change that is meant,
and whose figures over all rows are in docs/accuracy.md: `python -m tests.unit.test_accuracy_sample`.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from planner.accuracy.predictor import Predictor
from planner.accuracy.rows import read_rows
from planner.cost_models import profile_names

GOLDEN = Path(__file__).parents[1] / "golden"
ROWS, ERRORS = GOLDEN / "accuracy_rows.json", GOLDEN / "accuracy_errors.json"
TIME, MEMORY = 0.003, 0.002  # by which an error may grow
EXPECTED: dict[str, dict[str, float]] = json.loads(ERRORS.read_text(encoding="utf-8")) if ERRORS.is_file() else {}


@cache
def found() -> dict[str, dict[str, float]]:
    """Errors by data set and row."""
    read = read_rows(ROWS, frozenset(profile_names()))
    outcomes, refused = Predictor().completed(read.cases, lambda _: None)
    assert not refused
    assert not read.left_out
    errors = {}
    for o in outcomes:
        assert o.case.step_s
        errors[f"{o.case.dataset}/{o.case.row}"] = {"time": round(o.step_s / o.case.step_s - 1, 5)}
        if o.memory is not None:
            predicted, measured = o.memory
            errors[f"{o.case.dataset}/{o.case.row}"]["memory"] = round(predicted / measured - 1, 5)
    return errors


def test_every_data_set_has_a_row() -> None:
    assert found().keys() == EXPECTED.keys()
    assert len({name.partition("/")[0] for name in EXPECTED}) == 15


@pytest.mark.parametrize("row", EXPECTED)
def test_the_error_does_not_grow(row: str) -> None:
    for figure, allowed in (("time", TIME), ("memory", MEMORY)):
        if figure in EXPECTED[row]:
            assert abs(found()[row][figure]) <= abs(EXPECTED[row][figure]) + allowed, (row, figure)


if __name__ == "__main__":
    ERRORS.write_text(json.dumps(found(), indent=1) + "\n", encoding="utf-8")
