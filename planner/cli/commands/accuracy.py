"""`planner accuracy ROWS.json`: the cost model measured against published measurements."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.options import add_json_option
from planner.errors import UsageError
from planner.requests.values import progress_to

if TYPE_CHECKING:
    from planner.accuracy.metrics import Figures
    from planner.accuracy.report import Fit, Report

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "rows", type=Path, metavar="ROWS.json", help="file of measured training steps: a list, or an object with `rows`"
    )
    add_json_option(parser)
    parser.add_argument(
        "--fit", choices=("none", "profile"), help="fit the profiles' efficiencies to the rows first; default: none"
    )
    parser.add_argument(
        "--cross-validate", action="store_true", help="fit without each group of rows in turn, then predict that group"
    )
    parser.add_argument("--rows", dest="each", action="store_true", help="print every row's prediction too")
    parser.add_argument("--quiet", action="store_true", help="print no progress on standard error")


def run(options: argparse.Namespace) -> int:
    from planner.accuracy.report import measure_accuracy
    from planner.cost_models import profile_names

    if options.cross_validate and options.fit == "none":
        raise UsageError("--cross-validate with --fit none: nothing is fitted; leave --fit out or give --fit profile")
    fit: Fit = options.fit or ("profile" if options.cross_validate else "none")
    report = measure_accuracy(
        options.rows,
        frozenset(profile_names()),
        fit=fit,
        cross_validate=options.cross_validate,
        progress=progress_to(options.quiet),
    )
    if options.json:
        print(json.dumps(report.document(rows=options.each), indent=1))
    else:
        _print(report, each=options.each)
    return 0


def _print(report: Report, *, each: bool) -> None:
    if each:
        for o in report.outcomes:
            text = f"measured {o.case.step_s:9.4g} s  predicted {o.step_s:9.4g} s  {o.step_s / o.case.step_s - 1:+7.1%}"
            if o.memory is not None:
                text += f"  memory {o.memory[1] / 2**30:6.1f} GiB {o.memory[0] / o.memory[1] - 1:+7.1%}"
            print(f"{o.case.dataset}/{o.case.row}  {text}  {o.case.configuration.text()}")
        print()
    _table("rows as published, with their framework's defaults", report.figures(lambda o: o.case.complete))
    _table("rows with gaps filled in", report.figures(lambda o: not o.case.complete))
    if report.held_out is not None:
        from planner.accuracy.report import figures_by_dataset

        for title, complete in (("cross-validated, complete rows", True), ("cross-validated, filled rows", False)):
            _table(title, figures_by_dataset(o for o in report.held_out if o.case.complete == complete))
    if report.parameters:
        print("fitted")
        for name, values in report.parameters.items():
            print(f"  {name:22} " + "  ".join(f"{k}={v:.3g}" for k, v in values.items()))
        print()
    if report.left_out:
        print("left out")
        counts = Counter((left.dataset, left.reason) for left in report.left_out)
        for (name, reason), count in sorted(counts.items()):
            print(f"  {name:24} {count:5} {reason}")


_COLUMNS = " rows    time     max    bias   rank  regret groups  in 80%  memory  objective: rank  regret"


def _table(title: str, figures: Mapping[str, Figures]) -> None:
    """MAPE and largest error of time, mean ln(predicted / measured), Spearman, regret, coverage, MAPE of memory, and
    Spearman and regret of the step with nothing overlapped."""
    if not figures:
        return
    print(f"{title}\n  {'data set':24} {_COLUMNS}")
    for name, f in figures.items():
        shares = (f.time_mape, f.time_max, f.time_bias)
        first = " ".join(f"{_share(s):>7}" for s in shares)
        rank, objective = ("-" if r is None else f"{r:.3f}" for r in (f.spearman, f.objective_spearman))
        print(
            f"  {name:24} {f.rows:5} {first} {rank:>6} {_share(f.top1_regret):>7} {f.regret_groups:6} "
            f"{_share(f.coverage):>7} {_share(f.memory_mape):>7} {objective:>16} {_share(f.objective_regret):>7}"
        )
    print()


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
