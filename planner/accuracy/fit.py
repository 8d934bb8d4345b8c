"""Fitting a machine's physical constants to measured steps: a few numbers by profile, nothing by model or data set.

Each constant has a range that is plausible for any accelerator before a measurement is seen (a median, and a spread
in the logarithm).  The fit minimises

    Σ_rows w · ρ(ln(predicted / measured) / σ)  +  ½ Σ_constants ((ln value − ln median) / spread)²

with Huber's ρ, so that no outlier decides, and w such that a data set counts as at most `_ROWS` rows, so that the
largest does not decide for all, and one configuration as at most `_REPEATS`: its rows share what the model gets wrong
of it.  It is solved by damped Gauss-Newton steps (Levenberg 1944, Marquardt 1963).
Machines with few rows borrow from the others: a second round takes the mean over machines for the median.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.accuracy.rows import Case
from planner.cost_models import HardwareProfile

__all__ = ["BY_TYPE", "TERMS", "Term", "Values", "adjusted", "fitted_values", "spread_of", "terms_of"]

Values = Mapping[str, float]  # key of a profile, as `device.memory_efficiency` → value
FloatArray = NDArray[np.float64]

_SIGMA: Final = 0.05  # noise of a row: identical configurations differ by 4.4 % between releases
_HUBER: Final = 1.345
_ROWS: Final = 80
_REPEATS: Final = 2
_STEPS: Final = 15
_LEAST_SPREAD: Final = 0.05  # no better than one row tells of another of its configuration


@dataclass(frozen=True, slots=True)
class Term:
    """A constant: what is plausible beforehand, and the most it can be."""

    name: str
    median: float
    spread: float
    most: float = math.inf


BY_TYPE: Final = "device.matmul_efficiency_by_type"
TERMS: Final = (
    Term("device.matmul_efficiency", 0.65, 0.2, 1.0),
    Term("device.memory_efficiency", 0.7, 0.25, 1.0),
    Term("device.attention_efficiency", 0.45, 0.35, 1.0),
    Term("device.attention_backward_efficiency", 0.35, 0.35, 1.0),
    Term("device.native_attention_efficiency", 0.6, 0.3, 1.0),
    Term("device.native_attention_backward_efficiency", 0.5, 0.3, 1.0),
    Term("device.product_ramp_s", 2.5e-6, 1.0),
    Term("host.dispatch_interval_s", 2e-5, 1.0),
    Term("host.step_overhead_s", 5e-3, 0.7, 0.02),
    Term("host.handover_s", 2e-4, 1.0),
    Term("framework.collective_interference", 0.15, 0.7, 0.8),
)
_BY_NAME: Final = {t.name: t for t in TERMS}


def terms_of(cases: Iterable[Case]) -> tuple[Term, ...]:
    """The constants that the cases can tell of."""
    cases = list(cases)
    kinds = {c.configuration.attention for c in cases}
    types = sorted({c.configuration.matrix for c in cases})
    staged = any(c.configuration.pp > 1 for c in cases)
    product = _BY_NAME["device.matmul_efficiency"]
    out = [replace(product, name=f"{BY_TYPE}.{t}") for t in types]
    for term in TERMS[1:]:
        if "attention" in term.name:
            native = "native" in term.name
            if ("native" if native else "fused") not in kinds:
                continue
        if term.name == "host.handover_s" and not staged:
            continue
        out.append(term)
    return tuple(out)


def adjusted(profile: HardwareProfile, values: Values) -> HardwareProfile:
    """The profile with these values in place of its own."""
    if profile.device is None or not values:
        return profile
    tables: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        table, _, name = key.rpartition(".")
        tables.setdefault(table, {})[name] = value
    by_type = {**profile.device.matmul_efficiency_by_type, **tables.pop(BY_TYPE, {})}
    tables.setdefault("device", {})["matmul_efficiency_by_type"] = by_type
    changed: dict[str, Any] = {name: replace(getattr(profile, name), **fields) for name, fields in tables.items()}
    return replace(profile, **changed)


def fitted_values(
    cases: Sequence[Case],
    terms: Sequence[Term],
    seconds: Callable[[Case, Values], float],
    start: Values | None = None,
) -> dict[str, float]:
    """Values for the terms from cases of one machine.

    `seconds`: predicted step time of a case under values; `start`: where to begin (the medians).
    """
    names = [t.name for t in terms]
    median = np.log([t.median for t in terms])
    spread = np.array([t.spread for t in terms])
    most = np.log([t.most for t in terms])
    x = median.copy() if start is None else np.log([start[n] for n in names])
    counts = Counter(c.dataset for c in cases)
    repeats = Counter((c.dataset, c.group) for c in cases)
    weight = np.sqrt(
        [min(1.0, _ROWS / counts[c.dataset]) * min(1.0, _REPEATS / repeats[c.dataset, c.group]) for c in cases]
    )
    target = np.log([c.step_s for c in cases])

    def values(x: FloatArray) -> dict[str, float]:
        return dict(zip(names, np.exp(np.minimum(x, most)).tolist(), strict=True))

    def residuals(x: FloatArray) -> FloatArray:
        tried = values(x)
        found = np.log([seconds(c, tried) for c in cases]) - target
        return np.asarray(found * weight / _SIGMA)

    def objective(x: FloatArray, r: FloatArray) -> float:
        size = np.abs(r)
        rho = np.where(size < _HUBER, r * r / 2, _HUBER * (size - _HUBER / 2))
        return float(rho.sum() + (((x - median) / spread) ** 2).sum() / 2)

    r = residuals(x)
    best, damping = objective(x, r), 1e-2
    for _ in range(_STEPS):
        jacobian = np.stack([(residuals(x + step) - r) / 1e-3 for step in np.eye(len(x)) * 1e-3], axis=1)
        influence = np.minimum(1.0, _HUBER / np.maximum(np.abs(r), 1e-12))
        curvature = jacobian.T @ (influence[:, None] * jacobian) + np.diag(spread**-2.0)
        slope = jacobian.T @ (influence * r) + (x - median) / spread**2
        gained = 0.0
        for _ in range(6):
            move = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), -slope)
            tried = np.minimum(x + np.clip(move, -1, 1), most)
            new = residuals(tried)
            if (value := objective(tried, new)) < best:
                gained, x, r, best = best - value, tried, new, value
                damping /= 5
                break
            damping *= 4
        if gained < 1e-3 * best:
            break
    return values(x)


def shrunk(terms: Sequence[Term], fits: Sequence[Values]) -> tuple[Term, ...]:
    """The terms with the mean over other machines' fits for a median, and half the spread."""
    out = []
    for term in terms:
        known = [math.log(f[term.name]) for f in fits if term.name in f]
        if not known and term.name.startswith("matmul_efficiency."):
            known = [math.log(v) for f in fits for k, v in f.items() if k.startswith("matmul_efficiency.")]
        out.append(replace(term, median=math.exp(float(np.mean(known))), spread=term.spread / 2) if known else term)
    return tuple(out)


def spread_of(cases: Sequence[Case], seconds: Callable[[Case], float], constants: int) -> float:
    """Standard deviation of ln(predicted / measured), each data set counting alike, from its middle 80 %.

    The constants fitted take their share of what the rows can tell.
    """
    sets: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        sets[case.dataset].append(abs(math.log(seconds(case) / case.step_s)))
    errors = np.concatenate(
        [np.interp(np.linspace(0, 1, _ROWS), np.linspace(0, 1, len(v)), sorted(v)) for v in sets.values()]
    )
    rows = sum(min(_ROWS, len(v)) for v in sets.values())
    inflated = math.sqrt(rows / max(1, rows - min(constants, rows // 2)))
    return max(_LEAST_SPREAD, float(np.quantile(errors, 0.8)) / 1.2816 * inflated)


def machines_of(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """Cases by profile."""
    out: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        out[case.hardware].append(case)
    return dict(sorted(out.items()))
