"""How much rounding alone moves a graph is measured on values that mean the same."""

from __future__ import annotations

import numpy as np

from planner.verify.check import _moved


def test_whole_numbers_are_exact() -> None:
    """(-x)² must stay a square: an exponent of 2.0000002 has no power of a negative number."""
    exact = np.array([2.0, -3.0, 0.0, -np.inf, np.finfo(np.float32).min], dtype=np.float32)
    np.testing.assert_array_equal(_moved(exact, np.random.default_rng(0)), exact)


def test_other_values_move_by_a_unit_in_the_last_place_at_most() -> None:
    values = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    moved = _moved(values, np.random.default_rng(2))
    assert 0 < np.mean(moved != values) < 1
    np.testing.assert_allclose(moved, values, rtol=2 * np.finfo(np.float32).eps)
