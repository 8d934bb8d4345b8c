"""The memory rows of presolve, checked for all terms at once: as if every term were looked at alone."""

from __future__ import annotations

import numpy as np
import pytest

from planner.search.reduction.presolve import _least_between, _levels


def spans(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    begin = rng.integers(0, rows, 40)
    return begin, np.array([rng.integers(b, rows) + 1 for b in begin])


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 64, 100])
def test_the_least_of_a_span_is_that_of_its_slice(rows: int) -> None:
    rng = np.random.default_rng(rows)
    values = rng.integers(-50, 50, rows).astype(np.float64)
    values[rng.random(rows) < 0.2] = np.inf
    begin, end = spans(rng, rows)
    expected = [values[a:b].min() for a, b in zip(begin, end, strict=True)]
    assert _least_between(values, begin, end).tolist() == expected


@pytest.mark.parametrize("rows", [1, 2, 7, 100])
def test_levels_add_up_what_is_held_in_every_row(rows: int) -> None:
    rng = np.random.default_rng(rows)
    begin, end = spans(rng, rows)
    held = rng.integers(-9, 90, len(begin)).astype(np.float64)
    expected = np.zeros(rows)
    for a, b, amount in zip(begin, end, held, strict=True):
        expected[a:b] += amount
    assert np.array_equal(_levels(begin, end, held, rows), expected)


def test_no_terms_hold_nothing() -> None:
    none = np.zeros(0, np.int64)
    assert _levels(none, none, np.zeros(0), 3).tolist() == [0.0, 0.0, 0.0]
    assert len(_least_between(np.zeros(3), none, none)) == 0
