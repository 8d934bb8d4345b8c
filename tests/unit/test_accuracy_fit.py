"""Folds never divide a group; fitting lowers the error and finds what made the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models import load_profile
from planner.accuracy.crossvalidate import FOLDS, cross_validated, folds
from planner.accuracy.fit import adjusted, fitted_values, starting_values
from planner.accuracy.rows import Case
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
    return layers * (products / values["matmul_efficiency.bf16"] + traffic / values["memory_efficiency"])


TRUE = {"matmul_efficiency.bf16": 0.55, "memory_efficiency": 0.85}


def made(values: Mapping[str, float]) -> list[Case]:
    cases = [case(layers=n, dataset=d, group=f"{d}{n}") for d in ("a", "b") for n in range(1, 9)]
    return [replace(c, step_s=seconds(c, values)) for c in cases]


def test_fitting_finds_the_efficiencies_that_made_the_data() -> None:
    found = fitted_values(made(TRUE), {"matmul_efficiency.bf16": 0.8, "memory_efficiency": 0.8}, seconds)
    assert found == pytest.approx(TRUE, rel=0.03)


def test_fitting_stays_where_nothing_can_be_bettered_or_nothing_is_known() -> None:
    assert fitted_values(made(TRUE), TRUE, seconds) == TRUE
    assert fitted_values([], TRUE, seconds) == TRUE
    assert fitted_values(made(TRUE), TRUE, lambda c, v: None) == TRUE


@given(st.floats(0.2, 0.9), st.floats(0.2, 0.9))
def test_fitted_efficiencies_are_fractions(first: float, second: float) -> None:
    impossible = made({"matmul_efficiency.bf16": 3.0, "memory_efficiency": 0.01})
    found = fitted_values(impossible, {"matmul_efficiency.bf16": first, "memory_efficiency": second}, seconds)
    assert all(0.1 <= v <= 1 for v in found.values())


def test_values_go_into_the_profile_and_nothing_else_changes() -> None:
    profile = load_profile("a100-80")
    start = starting_values(profile, ["bf16", "fp16"])
    assert start["matmul_efficiency.bf16"] > 0
    changed = adjusted(profile, {"matmul_efficiency.bf16": 0.5, "memory_efficiency": 0.25})
    assert profile.device is not None
    assert changed.device is not None
    assert changed.device.product_efficiency("bf16") == 0.5
    assert changed.device.product_efficiency("fp16") == profile.device.product_efficiency("fp16")
    assert changed.device.memory_efficiency == 0.25
    assert replace(changed, device=profile.device) == profile
    assert adjusted(profile, start).device is not None
    assert starting_values(adjusted(profile, start), ["bf16", "fp16"]) == start
