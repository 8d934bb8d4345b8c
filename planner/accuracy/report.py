"""The whole measurement: rows read, gaps filled, predicted, perhaps fitted, and summed up by data set."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from planner.accuracy.crossvalidate import cross_validated
from planner.accuracy.metrics import Figures, PredictedCase, figures_of
from planner.accuracy.predictor import Fitter, Parameters, Predictor
from planner.accuracy.rows import Case, LeftOut, read_rows

__all__ = ["Fit", "Report", "figures_by_dataset", "measure_accuracy"]

Fit = Literal["none", "profile"]


@dataclass(frozen=True, slots=True)
class Report:
    """What was found.

    Attributes:
        outcomes: every row that could be predicted, with `parameters` in place of the profiles' own values.
        held_out: the same rows, each predicted with parameters fitted without its group; None where not asked for.
        left_out: every other row, with the reason.
    """

    outcomes: tuple[PredictedCase, ...]
    held_out: tuple[PredictedCase, ...] | None
    left_out: tuple[LeftOut, ...]
    parameters: Parameters

    def figures(self, chosen: Callable[[PredictedCase], bool] = lambda o: True) -> dict[str, Figures]:
        """By data set, over the outcomes chosen."""
        return figures_by_dataset(o for o in self.outcomes if chosen(o))

    def document(self, *, rows: bool = False) -> dict[str, Any]:
        """What `--json` prints: `datasets` has the complete rows, `filled` those with gaps filled in.

        `cross_validated` and `cross_validated_filled` are the same of rows held out, null where not asked for.
        """
        held, held_filled = (
            None
            if self.held_out is None
            else _plain(figures_by_dataset(o for o in self.held_out if o.case.complete == complete))
            for complete in (True, False)
        )
        out: dict[str, Any] = {
            "datasets": _plain(self.figures(lambda o: o.case.complete)),
            "filled": _plain(self.figures(lambda o: not o.case.complete)),
            "left_out": self.reasons(),
            "cross_validated": held,
            "cross_validated_filled": held_filled,
            "parameters": {name: dict(values) for name, values in self.parameters.items()},
        }
        if rows:
            out["rows"] = [_row(o) for o in self.outcomes]
        return out

    def reasons(self) -> dict[str, str]:
        """Reason by `data set/row`; by data set alone where all of its rows are left out for one reason."""
        datasets = {o.case.dataset for o in self.outcomes}
        sets: dict[str, list[LeftOut]] = defaultdict(list)
        for left in self.left_out:
            sets[left.dataset].append(left)
        out: dict[str, str] = {}
        for name, members in sorted(sets.items()):
            reasons = {left.reason for left in members}
            if name not in datasets and len(reasons) == 1:
                out[name] = reasons.pop()
            else:
                out |= {f"{name}/{left.row}": left.reason for left in members}
        return out


def measure_accuracy(
    path: Path,
    profiles: Collection[str],
    *,
    fit: Fit = "none",
    cross_validate: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """The report on a file of rows; InputError where the file is malformed.

    Gaps are filled with the profiles as they are, before anything is fitted, so that fitting cannot choose them.
    """
    read = read_rows(path, profiles)
    progress(f"{len(read.cases)} rows can be predicted, {len(read.left_out)} are left out")
    outcomes, refused = Predictor().completed(read.cases, progress)
    left_out = (*read.left_out, *refused)
    if fit == "none":
        return Report(tuple(outcomes), None, left_out, {})
    cases = [o.case for o in outcomes]
    fitter = Fitter()
    parameters = fitter(cases, progress)
    fitted = Predictor(parameters)
    held = _held_out(cases, fitter, progress) if cross_validate else None
    return Report(tuple(fitted.outcome(c) for c in cases), held, left_out, parameters)


def _held_out(cases: Sequence[Case], fitter: Fitter, progress: Callable[[str], None]) -> tuple[PredictedCase, ...]:
    def fit(others: Sequence[Case]) -> Predictor:
        return Predictor(fitter(others))

    return tuple(cross_validated(cases, fit, lambda case, predictor: predictor.outcome(case), progress))


def figures_by_dataset(outcomes: Iterable[PredictedCase]) -> dict[str, Figures]:
    sets: dict[str, list[PredictedCase]] = defaultdict(list)
    for o in outcomes:
        sets[o.case.dataset].append(o)
    return {name: figures_of(members) for name, members in sorted(sets.items())}


def _plain(figures: Mapping[str, Figures]) -> dict[str, dict[str, Any]]:
    return {name: asdict(f) for name, f in figures.items()}


def _row(o: PredictedCase) -> dict[str, Any]:
    memory = o.memory
    return {
        "row": o.case.row,
        "dataset": o.case.dataset,
        "framework": o.case.framework,
        "hardware": o.case.hardware,
        "model": {"architecture": o.case.model.architecture, **dict(o.case.model.sizes)},
        "configuration": o.case.configuration.text(),
        "filled": list(o.case.filled),
        "measured_s": o.case.step_s,
        "predicted_s": o.step_s,
        "objective_s": o.objective_s,
        "low_s": o.low_s,
        "high_s": o.high_s,
        "measured_bytes": None if memory is None else memory[1],
        "predicted_bytes": o.allocated_bytes if memory is None else memory[0],
    }
