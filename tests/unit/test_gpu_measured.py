"""No training step measured on one H200 is predicted worse than it was.

`tests/golden/gpu_h200/steps.jsonl` has the rows (docs/gpu.md says how they were measured), `errors.json` what they are
predicted at, predicted / measured - 1 of the step and of the peak memory: all of them with `h200-one`, which is fitted
to them, and one of each model with `h200`, which is not.  After a change that is meant: `python -m
tests.unit.test_gpu_measured`.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from planner.accuracy.metrics import figures_of
from planner.cost_models import load_profile
from tests.bench.gpu.fit import unsaid
from tests.bench.gpu.predict import Compared, predicted, read

GOLDEN = Path(__file__).parents[1] / "golden" / "gpu_h200"
ROWS, ERRORS = GOLDEN / "steps.jsonl", GOLDEN / "errors.json"
TIME, MEMORY = 0.003, 0.002  # by which an error may grow
EXPECTED: dict[str, dict[str, float]] = json.loads(ERRORS.read_text(encoding="utf-8")) if ERRORS.is_file() else {}


@cache
def rows() -> list[dict[str, Any]]:
    return read([ROWS])


@cache
def found() -> dict[str, Compared]:
    """Predictions by profile and row."""
    first = {row["config"]["model"]: row for row in reversed(rows())}
    chosen = {"h200-one": rows(), "h200": list(first.values())}
    profiles = {name: load_profile(name) for name in chosen}
    return {f"{name}/{row['name']}": predicted(row, profiles[name]) for name in chosen for row in chosen[name]}


def errors(c: Compared) -> dict[str, float]:
    assert c.outcome is not None, c.reason
    o = c.outcome
    return {
        "time": round(o.step_s / c.row["median_s"] - 1, 5),
        "memory": round(o.allocated_bytes / c.row["peak_allocated"] - 1, 5),
    }


def test_every_row_is_predicted() -> None:
    assert found().keys() == EXPECTED.keys()
    assert len(rows()) == 99


@pytest.mark.parametrize("row", EXPECTED)
def test_the_error_does_not_grow(row: str) -> None:
    now = errors(found()[row])
    for figure, allowed in (("time", TIME), ("memory", MEMORY)):
        assert abs(now[figure]) <= abs(EXPECTED[row][figure]) + allowed, (row, figure)


def test_what_configurations_say_is_ranked_and_met() -> None:
    """As docs/gpu.md has it."""
    said = [c for name, c in found().items() if name.startswith("h200-one/") and not unsaid(c.row)]
    figures = figures_of([c.outcome for c in said if c.outcome is not None])
    assert len(said) == figures.rows == 72
    assert mean(abs(errors(c)["time"]) for c in said) < 0.055
    assert figures.spearman is not None
    assert figures.spearman > 0.995
    assert figures.top1_regret is not None
    assert figures.top1_regret < 0.002


if __name__ == "__main__":
    ERRORS.write_text(json.dumps({n: errors(c) for n, c in found().items()}, indent=1) + "\n", encoding="utf-8")
