"""The published rows, where they lie beside the checkout: all are read, and parameters are those they state."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner.accuracy.models import Model
from planner.accuracy.rows import Rows, read_rows
from planner.builder import build
from planner.cost_models import profile_names

ROWS = Path(__file__).parents[3] / "shared" / "measured" / "measured.json"
NOMINAL = 0.02  # a row may state parameters to two digits, or count no biases

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not ROWS.is_file(), reason="no measured rows beside the checkout"),
]


@pytest.fixture(scope="module")
def found() -> Rows:
    return read_rows(ROWS, profile_names())


@pytest.fixture(scope="module")
def published() -> dict[str, dict[str, Any]]:
    return {str(r["id"]): r for r in json.loads(ROWS.read_text(encoding="utf-8"))["rows"]}


@cache
def weights(model: Model) -> int:
    built = build(model.architecture, dict(model.sizes) | {"batch": 1})
    return sum(math.prod(t.dims) for t in built.graph.initializer if t.external_data)


def test_every_row_is_read_or_left_out_once(found: Rows, published: dict[str, dict[str, Any]]) -> None:
    seen = [c.row for c in found.cases] + [left.row for left in found.left_out]
    assert sorted(seen) == sorted(published)


def test_only_rows_that_contradict_themselves_or_say_nothing_are_left_out(found: Rows) -> None:
    assert {left.dataset for left in found.left_out} <= {"mindspeed_linearity", "nemo_longseq"}
    for left in found.left_out:
        assert left.reason.startswith(("inconsistent: ", "no parallel configuration"))


def test_parameters_are_those_that_rows_state(found: Rows, published: dict[str, dict[str, Any]]) -> None:
    for case in found.cases:
        if stated := published[case.row]["params"]:
            assert weights(case.model) == pytest.approx(stated, rel=NOMINAL), f"{case.dataset}/{case.row}"


def test_a_configuration_makes_the_global_batch_on_all_devices(
    found: Rows, published: dict[str, dict[str, Any]]
) -> None:
    for case in found.cases:
        row, c = published[case.row], case.configuration
        assert (c.devices, c.global_batch) == (row["num_devices"], row["global_batch"])


def test_a_comparable_group_is_of_one_dataset(found: Rows) -> None:
    sets: dict[object, set[str]] = {}
    for case in found.cases:
        sets.setdefault(case.comparable, set()).add(case.dataset)
    assert all(len(names) == 1 for names in sets.values())
