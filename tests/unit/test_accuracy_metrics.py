"""Figures of accuracy: values worked by hand, and laws."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planner.accuracy.metrics import (
    PredictedCase,
    figures_of,
    mean_absolute_percentage_error,
    ranks,
    spearman,
    top1_regret,
)
from tests.unit.accuracy_rows import case

times = st.floats(1e-3, 1e3)
pairs = st.lists(st.tuples(times, times), min_size=1, max_size=12)


def outcome(measured: float, predicted: float, **changes: object) -> PredictedCase:
    return PredictedCase(case(measured, **changes), predicted, predicted / 1.1, predicted * 1.1, 0.0, 0.0)  # type: ignore[arg-type]


def array(values: list[float]) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_error_is_the_mean_share() -> None:
    assert mean_absolute_percentage_error(array([1.1, 1.6]), array([1.0, 2.0])) == pytest.approx(0.15)


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert ranks(array([3, 1, 3, 2])).tolist() == [3.5, 1, 3.5, 2]


def test_rank_correlation_with_ties_is_that_of_the_textbook() -> None:
    # Pearson's correlation of the ranks (1.5, 1.5, 3, 4) and (1, 2, 3, 4): 4.5 / sqrt(4.5 * 5).
    assert spearman(array([1, 1, 2, 3]), array([1, 2, 3, 4])) == pytest.approx(4.5 / math.sqrt(22.5))


def test_rank_correlation_needs_two_rows_that_differ() -> None:
    assert spearman(array([1]), array([1])) is None
    assert spearman(array([1, 1]), array([1, 2])) is None


@given(pairs)
def test_rank_correlation_is_unmoved_by_exact_scaling(values: list[tuple[float, float]]) -> None:
    first, second = array([v[0] for v in values]), array([v[1] for v in values])
    found, moved = spearman(first, second), spearman(4 * first, second / 2)
    assert (found is None) == (moved is None)
    assert found is None or (moved is not None and found == pytest.approx(moved) and -1 <= found <= 1)


@given(st.lists(times, min_size=2, max_size=12, unique=True))
def test_perfect_predictions_have_no_error_and_no_regret(values: list[float]) -> None:
    figures = figures_of([outcome(v, v, micro_batch=i + 1) for i, v in enumerate(values)])
    assert (figures.time_mape, figures.time_bias, figures.coverage) == (0, 0, 1)
    assert figures.spearman == pytest.approx(1)
    assert figures.top1_regret is None  # another micro-batch is another global batch


def test_regret_is_that_of_the_configuration_predicted_best() -> None:
    rows = [outcome(3.0, 1.0, tp=4), outcome(2.0, 1.5, pp=4), outcome(9.0, 2.0, cp=4)]
    assert top1_regret(rows) == (pytest.approx(0.5), 1)


def test_regret_is_the_mean_over_groups_of_the_same_work() -> None:
    rows = [outcome(3.0, 1.0, tp=4), outcome(2.0, 1.5, pp=4)]
    rows += [outcome(1.0, 1.0, tp=4, layers=3), outcome(2.0, 1.5, pp=4, layers=3)]
    rows += [outcome(7.0, 1.0, tp=8)]  # alone in its group
    assert top1_regret(rows) == (pytest.approx(0.25), 2)


def test_rows_of_one_configuration_count_as_their_mean() -> None:
    rows = [outcome(1.0, 5.0, tp=4), outcome(3.0, 5.0, tp=4), outcome(4.0, 4.0, pp=4)]
    assert top1_regret(rows) == (pytest.approx(1.0), 1)


def test_configurations_predicted_equal_are_taken_at_random() -> None:
    rows = [outcome(1.0, 5.0, tp=4), outcome(2.0, 5.0, pp=4)]
    assert top1_regret(rows) == (pytest.approx(0.5), 1)


@example([(43.614000390439045, 1.0)] * 3)  # three equal values, whose mean rounds below them
@given(pairs)
def test_regret_and_errors_are_never_negative(values: list[tuple[float, float]]) -> None:
    rows = [outcome(m, p, virtual_stages=i + 1) for i, (m, p) in enumerate(values)]
    figures = figures_of(rows)
    assert figures.time_mape is not None
    assert figures.time_max is not None
    assert figures.coverage is not None
    assert 0 <= figures.time_mape <= figures.time_max * (1 + 1e-12)
    assert 0 <= figures.coverage <= 1
    assert (figures.top1_regret is None) == (len(values) < 2)
    assert figures.top1_regret is None or figures.top1_regret >= 0


@given(pairs, st.floats(0.1, 10))
def test_figures_do_not_depend_on_the_unit_of_time(values: list[tuple[float, float]], unit: float) -> None:
    first = figures_of([outcome(m, p, virtual_stages=i + 1) for i, (m, p) in enumerate(values)])
    second = figures_of([outcome(m * unit, p * unit, virtual_stages=i + 1) for i, (m, p) in enumerate(values)])
    assert first.time_mape == pytest.approx(second.time_mape)
    assert first.time_bias == pytest.approx(second.time_bias, abs=1e-9)


def test_coverage_counts_measured_times_inside_the_interval() -> None:
    assert figures_of([outcome(1.0, 1.05), outcome(1.0, 1.2)]).coverage == 0.5


def test_memory_compares_allocated_with_allocated_and_reserved_with_reserved() -> None:
    both = replace(case(), allocated_bytes=10.0, reserved_bytes=20.0)
    kept = replace(case(), reserved_bytes=20.0)
    rows = [PredictedCase(c, 1, 1, 1, allocated_bytes=11.0, reserved_bytes=25.0) for c in (both, kept, case())]
    figures = figures_of(rows)
    assert (figures.memory_rows, figures.memory_max) == (2, pytest.approx(0.25))
    assert figures.memory_mape == pytest.approx((0.1 + 0.25) / 2)


def test_no_rows_give_no_figures() -> None:
    figures = figures_of([])
    assert figures.rows == 0
    assert {figures.time_mape, figures.memory_mape, figures.spearman, figures.top1_regret, figures.coverage} == {None}
