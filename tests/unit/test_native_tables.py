"""Comparing the rows of matrices: the kernels and their NumPy equivalents follow the definition."""

from __future__ import annotations

import numpy as np
import pytest

from planner.native import tables


def matrix(seed: int) -> np.ndarray:
    """Small integers, so that rows are often equal, a quarter of them forbidden, and zeros of both signs."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-1, 2, rng.integers(1, 8, 2)).astype(np.float64)
    values[rng.random(values.shape) < 0.25] = np.inf
    values[(values == 0) & (rng.random(values.shape) < 0.5)] = -0.0
    return values


@pytest.fixture(params=["kernel", "numpy"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(tables, "library", lambda: None)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("seed", range(30))
def test_a_row_is_dearer_by_its_largest_difference_where_the_other_is_allowed(seed: int) -> None:
    values = matrix(seed)
    table = tables.row_difference(values)
    for j, above in enumerate(values):
        for i, below in enumerate(values):
            differences = [a - b for a, b in zip(above, below, strict=True) if b < np.inf]
            assert table[j, i] == max(differences, default=0.0)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("seed", range(30))
def test_equal_rows_are_one_class_numbered_as_they_come(seed: int) -> None:
    values = matrix(seed)
    classes, first = tables.row_classes(values)
    seen: list[list[float]] = []
    for row in values.tolist():
        if row not in seen:
            seen.append(row)
    assert [seen.index(row) for row in values.tolist()] == classes.tolist()
    assert values[first].tolist() == seen
    assert np.array_equal(classes[first], np.arange(len(first)))


@pytest.mark.usefixtures("either")
def test_large_and_layered_matrices_have_the_same_classes() -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(0, 2, (400, 2, 200)).astype(np.float64)[rng.integers(0, 50, 600)]
    classes, first = tables.row_classes(values)
    assert np.array_equal(values[first][classes], values)
    assert len(first) == len({row.tobytes() for row in values})
