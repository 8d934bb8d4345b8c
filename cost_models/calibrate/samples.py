"""Measured seconds, and what became of them in a fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..machine import HardwareProfile

__all__ = ["CollectiveSample", "ComputeSample", "FitError", "Fitted", "errors_by"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ComputeSample:
    """An operator on one device: `flops`, `bytes_moved` and `launches` as `compute_seconds` takes them."""

    label: str
    kind: str
    flops: float
    bytes_moved: float
    dtype: str
    seconds: float
    launches: int = 1


@dataclass(frozen=True, slots=True)
class CollectiveSample:
    """A collective among `ranks` devices of one server; `size_bytes` as `planner.cost_models.link` counts them."""

    kind: str
    ranks: int
    size_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True)
class FitError:
    """How far a fitted model is from the samples of one class: mean absolute relative error of the predicted seconds,
    and the geometric mean of predicted over measured."""

    samples: int
    mape: float
    bias: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """`profile` prices with the fitted values, which `values` holds by dotted key; `errors` are by class."""

    profile: HardwareProfile
    values: Mapping[str, float | int]
    errors: Mapping[str, FitError]


def errors_by(classes: Sequence[str], predicted: FloatArray, measured: FloatArray) -> dict[str, FitError]:
    """Errors by class, classes in alphabetical order."""
    ratio, names = predicted / measured, np.asarray(classes)
    out = {}
    for name in sorted(set(classes)):
        r = ratio[names == name]
        out[name] = FitError(len(r), float(np.abs(r - 1).mean()), float(np.exp(np.log(r).mean())))
    return out
