"""Folds never divide a group; fitting lowers the error and finds what made the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.accuracy.crossvalidate import FOLDS, cross_validated, folds
from planner.accuracy.fit import Term, adjusted, fitted_values, shrunk, spread_of, terms_of
from planner.accuracy.rows import Case
from planner.cost_models import load_profile
from tests.unit.accuracy_rows import case

groups = st.lists(st.integers(0, 40).map(str), min_size=1, max_size=60)


@given(groups)
def test_folds_part_the_cases_and_never_a_group(names: list[str]) -> None:
    cases = [case(group=g) for g in names]
    parts = folds(cases)
    assert sorted(i for part in parts for i in part) == list(range(len(cases)))
    assert all(parts)
    assert len(parts) == min(len(set(names)), FOLDS)
    for g in set(names):
        assert sum(any(cases[i].group == g for i in part) for part in parts) == 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 8).map(str)), min_size=1, max_size=60))
def test_of_a_small_set_one_group_is_left_out_at_a_time(named: list[tuple[str, str]]) -> None:
    cases = [case(dataset=d, group=g) for d, g in named]
    for part in folds(cases):
        for name in "abc":
            assert len({cases[i].group for i in part if cases[i].dataset == name}) <= 1


@given(groups, st.randoms())
def test_folds_depend_on_the_groups_alone(names: list[str], random: object) -> None:
    cases = [case(group=g) for g in names]
    first = {cases[i].group: k for k, part in enumerate(folds(cases)) for i in part}
    backwards = cases[::-1]
    assert {backwards[i].group: k for k, part in enumerate(folds(backwards)) for i in part} == first


@given(groups)
def test_no_case_is_predicted_by_what_saw_its_group(names: list[str]) -> None:
    cases = [case(group=g, step_s=1.0 + i) for i, g in enumerate(names)]

    def fit(others: Sequence[Case]) -> set[str]:
        return {c.group for c in others}

    def predict(one: Case, seen: set[str]) -> tuple[Case, bool]:
        return one, one.group in seen

    assert cross_validated(cases, fit, predict) == [(c, False) for c in cases]


def seconds(one: Case, values: Mapping[str, float]) -> float:
    """Products take 3 s and traffic 1 s a layer at full speed, the other way round in the second set."""
    products, traffic = (3.0, 1.0) if one.dataset == "a" else (1.0, 3.0)
    layers = one.model.size("layers")
    return layers * (
        products / values["device.matmul_efficiency_by_type.bf16"] + traffic / values["device.memory_efficiency"]
    )


TERMS = (
    Term("device.matmul_efficiency_by_type.bf16", 0.65, 0.2, 1.0),
    Term("device.memory_efficiency", 0.7, 0.25, 1.0),
)
TRUE = {"device.matmul_efficiency_by_type.bf16": 0.55, "device.memory_efficiency": 0.85}


def made(values: Mapping[str, float], noise: Sequence[float] = ()) -> list[Case]:
    cases = [case(layers=n, dataset=d, group=f"{d}{n}") for d in ("a", "b") for n in range(1, 9)]
    factors = [*noise, *[1.0] * len(cases)]
    return [replace(c, step_s=seconds(c, values) * f) for c, f in zip(cases, factors, strict=False)]


def test_fitting_finds_the_efficiencies_that_made_the_data() -> None:
    assert fitted_values(made(TRUE), TERMS, seconds) == pytest.approx(TRUE, rel=0.02)


def test_an_outlier_does_not_decide() -> None:
    assert fitted_values(made(TRUE, [8.0]), TERMS, seconds) == pytest.approx(TRUE, rel=0.03)


def test_what_the_rows_do_not_tell_stays_plausible() -> None:
    blind = Term("host.step_overhead_s", 5e-3, 1.0)
    assert fitted_values(made(TRUE), (*TERMS, blind), seconds)["host.step_overhead_s"] == pytest.approx(5e-3)


def test_where_a_fit_begins_does_not_matter() -> None:
    start = {"device.matmul_efficiency_by_type.bf16": 0.9, "device.memory_efficiency": 0.3}
    assert fitted_values(made(TRUE), TERMS, seconds, start) == pytest.approx(
        fitted_values(made(TRUE), TERMS, seconds), rel=1e-3
    )


@given(st.floats(0.01, 3.0), st.floats(0.01, 3.0))
def test_fitted_efficiencies_are_fractions(first: float, second: float) -> None:
    impossible = made({"device.matmul_efficiency_by_type.bf16": first, "device.memory_efficiency": second})
    assert all(0 < v <= 1 for v in fitted_values(impossible, TERMS, seconds).values())


def test_machines_with_few_rows_borrow_from_others() -> None:
    (term, other) = shrunk(
        TERMS, [{"device.matmul_efficiency_by_type.bf16": 0.4}, {"device.matmul_efficiency_by_type.bf16": 0.9}]
    )
    assert term.median == pytest.approx(0.6)
    assert term.spread == TERMS[0].spread / 2
    assert other == TERMS[1]


@given(st.lists(st.floats(0.5, 2.0), min_size=16, max_size=16))
def test_the_spread_covers_four_fifths_of_what_was_seen(noise: list[float]) -> None:
    cases = made(TRUE, noise)
    spread = spread_of(cases, lambda c: seconds(c, TRUE), 2)
    errors = [abs(math.log(seconds(c, TRUE) / c.step_s)) for c in cases]
    assert sum(e <= 1.2816 * spread + 1e-9 for e in errors) >= 0.7 * len(errors)


def test_terms_are_those_that_the_rows_can_tell_of() -> None:
    names = {t.name for t in terms_of([case()])}
    assert "device.matmul_efficiency_by_type.bf16" in names
    assert "device.native_attention_efficiency" not in names


def test_values_go_into_the_profile_and_nothing_else_changes() -> None:
    profile = load_profile("a100-80")
    changed = adjusted(profile, {"device.matmul_efficiency_by_type.bf16": 0.5, "device.memory_efficiency": 0.25})
    assert profile.device is not None
    assert changed.device is not None
    assert changed.device.product_efficiency("bf16") == 0.5
    assert changed.device.product_efficiency("fp16") == profile.device.product_efficiency("fp16")
    assert changed.device.memory_efficiency == 0.25
    assert replace(changed, device=profile.device) == profile
    assert adjusted(profile, {}) is profile
