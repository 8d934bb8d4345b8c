"""Figures of how well predictions match measurements, fractions throughout.

Choosing right matters more than the absolute time, so rank correlation and regret stand beside the error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.accuracy.rows import Case

__all__ = [
    "Figures",
    "PredictedCase",
    "figures_of",
    "mean_absolute_percentage_error",
    "ranks",
    "spearman",
    "top1_regret",
]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PredictedCase:
    """A case and what was predicted for it; seconds per step and bytes of the fullest device.  `objective_s`: the step
    with nothing overlapped."""

    case: Case
    step_s: float
    low_s: float
    high_s: float
    allocated_bytes: float
    reserved_bytes: float
    objective_s: float = 0.0

    @property
    def memory(self) -> tuple[float, float] | None:
        """(predicted, measured) bytes: what was allocated, else what was reserved; None where neither was published."""
        if self.case.allocated_bytes is not None:
            return self.allocated_bytes, self.case.allocated_bytes
        if self.case.reserved_bytes is not None:
            return self.reserved_bytes, self.case.reserved_bytes
        return None


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one data set.  None where nothing was measured or nothing can be compared.

    Attributes:
        time_mape: mean |predicted / measured - 1| of step times; time_max the largest.
        time_bias: mean ln(predicted / measured): below zero is optimistic.
        memory_mape, memory_max: the same of peak memory, over `memory_rows`.
        spearman: rank correlation of predicted and measured step times.
        top1_regret: measured time of the configuration predicted best over that of the best one, less 1, averaged over
            `regret_groups` groups of rows that do the same work.
        coverage: share of measured times inside the predicted 80 % interval.
        objective_spearman, objective_regret: the same of the step with nothing overlapped, the search's objective.
    """

    rows: int
    time_mape: float | None
    time_max: float | None
    time_bias: float | None
    memory_rows: int
    memory_mape: float | None
    memory_max: float | None
    spearman: float | None
    top1_regret: float | None
    regret_groups: int
    coverage: float | None
    objective_spearman: float | None = None
    objective_regret: float | None = None


def mean_absolute_percentage_error(predicted: Array, measured: Array) -> float:
    """Mean |predicted / measured - 1|; both of shape (rows,), measured above zero."""
    return float(np.mean(np.abs(predicted / measured - 1)))


def ranks(values: Array) -> Array:
    """Ranks from 1, equal values sharing the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place], dtype=np.float64)


def spearman(first: Array, second: Array) -> float | None:
    """Pearson's correlation of ranks (ties averaged); None below two rows or where one side is constant."""
    if len(first) < 2:
        return None
    a, b = ranks(first) - (len(first) + 1) / 2, ranks(second) - (len(second) + 1) / 2
    scale = float(np.sqrt(a @ a) * np.sqrt(b @ b))
    return None if scale == 0 else float(np.clip(a @ b / scale, -1.0, 1.0))


def top1_regret(
    outcomes: Sequence[PredictedCase], predicted_s: Callable[[PredictedCase], float] = lambda o: o.step_s
) -> tuple[float | None, int]:
    """Mean regret of taking the configuration predicted best, by `predicted_s`, and the number of groups it is a mean
    over.

    A group has the same model, hardware, devices, global batch, sequence and precision, and at least two
    configurations.  Rows of one configuration count as their mean, for they differ by releases and noise;
    configurations predicted equal are taken at random, hence at their mean.
    """
    groups: dict[object, dict[object, list[PredictedCase]]] = defaultdict(lambda: defaultdict(list))
    for o in outcomes:
        groups[o.case.comparable][o.case.configuration].append(o)
    regrets: list[float] = []
    for configurations in groups.values():
        if len(configurations) < 2:
            continue
        predicted = np.array([np.mean([predicted_s(o) for o in same]) for same in configurations.values()])
        measured = np.array([np.mean([o.case.step_s for o in same]) for same in configurations.values()])
        chosen = measured[np.isclose(predicted, predicted.min(), rtol=1e-12, atol=0)].mean()
        regrets.append(max(0.0, float(chosen / measured.min() - 1)))  # a mean of equal values may round below them
    return (float(np.mean(regrets)) if regrets else None), len(regrets)


def figures_of(outcomes: Sequence[PredictedCase]) -> Figures:
    """The figures over these outcomes, which should be of one data set."""
    predicted = np.array([o.step_s for o in outcomes], dtype=np.float64)
    measured = np.array([o.case.step_s for o in outcomes], dtype=np.float64)
    memory = np.array([o.memory for o in outcomes if o.memory is not None], dtype=np.float64).reshape(-1, 2)
    error, memory_error = np.abs(predicted / measured - 1), np.abs(memory[:, 0] / memory[:, 1] - 1)
    regret, groups = top1_regret(outcomes)
    objective = np.array([o.objective_s for o in outcomes], dtype=np.float64)
    known = bool(np.all(objective > 0))
    some, remembered = bool(outcomes), bool(len(memory))
    return Figures(
        rows=len(outcomes),
        time_mape=mean_absolute_percentage_error(predicted, measured) if some else None,
        time_max=float(error.max()) if some else None,
        time_bias=float(np.mean(np.log(predicted / measured))) if some else None,
        memory_rows=len(memory),
        memory_mape=float(memory_error.mean()) if remembered else None,
        memory_max=float(memory_error.max()) if remembered else None,
        spearman=spearman(predicted, measured),
        top1_regret=regret,
        regret_groups=groups,
        coverage=float(np.mean([o.low_s <= o.case.step_s <= o.high_s for o in outcomes])) if some else None,
        objective_spearman=spearman(objective, measured) if known else None,
        objective_regret=top1_regret(outcomes, lambda o: o.objective_s)[0] if known else None,
    )
