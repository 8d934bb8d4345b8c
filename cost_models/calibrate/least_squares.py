"""Robust least squares over positive parameters, in logarithms.

Minimises the Huber loss of r = log(predicted / measured) over θ = log(parameters), by Levenberg and Marquardt's damped
Gauss-Newton steps on reweighted residuals (Huber, "Robust Estimation of a Location Parameter", Annals of Mathematical
Statistics 35(1), 1964; Marquardt, SIAM 11(2), 1963).  Derivatives are differences.  A weak pull towards the first guess
decides parameters that no sample bears on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Fit", "fit_positive"]

FloatArray = NDArray[np.float64]
Model = Callable[[Mapping[str, float]], FloatArray]

HUBER = 0.25  # residuals beyond (28 %) weigh as their size, not its square
PRIOR = 1e-3  # standard error of a first guess, against that of a sample: a thousandth of its weight
ITERATIONS = 200
_STEP = 1e-4


@dataclass(frozen=True, slots=True)
class Fit:
    """Parameters by name, the model's seconds at them, and whether steps had ceased to help."""

    parameters: Mapping[str, float]
    predicted: FloatArray
    converged: bool


def fit_positive(
    model: Model,
    measured: FloatArray,
    guess: Mapping[str, float],
    bounds: Mapping[str, tuple[float, float]] | None = None,
) -> Fit:
    """Parameters for which `model` comes nearest the `measured` seconds; `bounds` are inclusive.

    ValueError where a measured value or a guess is not positive.
    """
    if not len(measured) or not bool(np.all(measured > 0)):
        raise ValueError(f"measured seconds: expected positive values, found {measured!r}")
    bad = {k: v for k, v in guess.items() if not v > 0}
    if bad:
        raise ValueError(f"first guess: expected positive parameters, found {bad}")
    names = list(guess)
    start = np.log([guess[n] for n in names])
    limits = [(bounds or {}).get(n, (0.0, np.inf)) for n in names]
    low = np.array([np.log(a) if a > 0 else -np.inf for a, _ in limits])
    high = np.array([np.log(b) for _, b in limits])
    target = np.log(measured)

    def residuals(theta: FloatArray) -> FloatArray:
        seconds = model(dict(zip(names, np.exp(theta).tolist(), strict=True)))
        return np.log(np.maximum(seconds, 1e-15)) - target

    def loss(r: FloatArray, theta: FloatArray) -> float:
        size = np.abs(r)
        huber = np.where(size <= HUBER, 0.5 * size**2, HUBER * (size - 0.5 * HUBER))
        return float(huber.sum() + 0.5 * PRIOR * ((theta - start) ** 2).sum())

    theta, damping, converged = np.clip(start, low, high), 1e-2, False
    r = residuals(theta)
    value = loss(r, theta)
    for _ in range(ITERATIONS):
        inward = np.where(theta + _STEP > high, -_STEP, _STEP)  # the model need not be defined beyond the bounds
        jacobian = np.stack([(residuals(theta + d) - r) / d.sum() for d in np.diag(inward)], axis=1)
        weight = HUBER / np.maximum(np.abs(r), HUBER)
        normal = jacobian.T @ (weight[:, None] * jacobian) + PRIOR * np.eye(len(names))
        gradient = jacobian.T @ (weight * r) + PRIOR * (theta - start)
        # What lies at a bound and would leave the range stays: it must not bend the step of the others.
        free = np.flatnonzero(~(((theta <= low) & (gradient > 0)) | ((theta >= high) & (gradient < 0))))
        improved = False
        while damping < 1e8 and len(free):
            scaled = normal[np.ix_(free, free)] + damping * np.diag(np.diag(normal)[free])
            step = np.zeros(len(theta))
            step[free] = np.clip(np.linalg.solve(scaled, gradient[free]), -1.0, 1.0)
            moved = np.clip(theta - step, low, high)
            new = residuals(moved)
            if (found := loss(new, moved)) < value:
                improved = value - found > 1e-10 * value
                theta, r, value, damping = moved, new, found, max(damping / 4, 1e-9)
                break
            damping *= 4
        if not improved:
            converged = True
            break
    return Fit(dict(zip(names, np.exp(theta).tolist(), strict=True)), np.exp(r + target), converged)
