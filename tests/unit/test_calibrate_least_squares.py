"""Robust least squares over positive parameters finds what made the data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost_models.calibrate import fit_positive
from planner.cost_models.calibrate.least_squares import HUBER, FloatArray

SIZES = np.logspace(3, 8, 40)


def affine(p: Mapping[str, float]) -> np.ndarray:
    """Latency and bandwidth."""
    return p["latency"] + SIZES / p["bandwidth"]


GUESS = {"latency": 1e-4, "bandwidth": 1e9}


@given(st.floats(-6, -3), st.floats(8, 11))
@settings(max_examples=25, deadline=None)
def test_exact_data_give_their_parameters(latency: float, bandwidth: float) -> None:
    truth = {"latency": 10**latency, "bandwidth": 10**bandwidth}
    fit = fit_positive(affine, affine(truth), GUESS)
    assert fit.converged
    # What the data hardly show (a latency below a thousandth of every sample) is pulled towards the guess.
    np.testing.assert_allclose(fit.predicted, affine(truth), rtol=0.02)


def test_noise_averages_out() -> None:
    truth = {"latency": 2e-4, "bandwidth": 5e9}
    noise = np.exp(np.random.default_rng(0).normal(0, 0.1, len(SIZES)))
    fit = fit_positive(affine, affine(truth) * noise, GUESS)
    for name, value in truth.items():
        assert fit.parameters[name] == pytest.approx(value, rel=0.1)


def test_disturbed_measurements_do_not_bend_the_rest() -> None:
    truth = {"latency": 2e-4, "bandwidth": 5e9}
    seconds = affine(truth)
    seconds[::8] *= 20
    fit = fit_positive(affine, seconds, GUESS)
    for name, value in truth.items():
        assert fit.parameters[name] == pytest.approx(value, rel=0.15)


def test_what_no_sample_bears_on_stays_at_the_guess() -> None:
    fit = fit_positive(affine, affine({"latency": 1e-4, "bandwidth": 1e9}), {**GUESS, "idle": 3.0})
    assert fit.parameters["idle"] == pytest.approx(3.0)


def test_bounds_hold() -> None:
    fit = fit_positive(affine, affine({"latency": 1e-4, "bandwidth": 1e9}), GUESS, {"bandwidth": (1.0, 5e8)})
    assert fit.parameters["bandwidth"] == pytest.approx(5e8)


@pytest.mark.parametrize(("measured", "guess"), [(np.array([1.0, 0.0]), GUESS), (np.ones(2), {"latency": 0.0})])
def test_what_has_no_logarithm_is_refused(measured: np.ndarray, guess: Mapping[str, float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        fit_positive(affine, measured, guess)


def test_a_parameter_held_by_its_bound_does_not_hold_the_others() -> None:
    """y = a + b x with a at most half of what it is: at the bound, b is still where the loss is least."""
    x = np.linspace(1, 10, 20)

    def model(p: Mapping[str, float]) -> FloatArray:
        assert p["a"] <= 1 + 1e-12
        return p["a"] + p["b"] * x

    found = fit_positive(model, 2 + 3 * x, {"a": 0.5, "b": 30.0}, {"a": (0.1, 1.0)}).parameters
    assert found["a"] == pytest.approx(1.0)

    def loss(b: float) -> float:
        size = np.abs(np.log((1 + b * x) / (2 + 3 * x)))
        return float(np.where(size <= HUBER, size**2 / 2, HUBER * (size - HUBER / 2)).sum())

    assert loss(found["b"]) <= min(loss(found["b"] * f) for f in (0.99, 1.01))
