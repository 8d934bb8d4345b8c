"""Which features the configurations of published steps have together, and how much further off the clock is elsewhere.

    python -m tests.bench.measured_kinds ROWS.json [--write] [--spread]

`--write` makes `planner/clock/measured.json`.  `--spread` predicts every row and compares errors of rows whose features
(alone or in pairs) no other data set has with errors of the others: what leaving the measured kinds has cost.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Final

from planner.accuracy.report import measure_accuracy
from planner.accuracy.rows import Case, read_rows
from planner.clock import measured
from planner.cost_models import profile_names

__all__ = ["main"]

_OUT: Final = Path(measured.__file__).with_name("measured.json")


def features_of(case: Case) -> tuple[str, ...]:
    return tuple(sorted(measured.features(case.configuration)))


def parts_of(features: Sequence[str]) -> set[frozenset[str]]:
    """Features and pairs of them."""
    return {frozenset((f,)) for f in features} | {frozenset(p) for p in combinations(features, 2)}


def written(rows: Path) -> str:
    cases = read_rows(rows, frozenset(profile_names())).cases
    sets = sorted({features_of(c) for c in cases if not c.missing and not c.doubtful})
    return json.dumps({"rows": len(cases), "features": sets}, indent=1) + "\n"


def spread(rows: Path) -> None:
    report = measure_accuracy(rows, frozenset(profile_names()))
    by_set: dict[str, set[frozenset[str]]] = {}
    for o in report.outcomes:
        by_set.setdefault(o.case.dataset, set()).update(parts_of(features_of(o.case)))
    inside: list[float] = []
    outside: list[float] = []
    for o in report.outcomes:
        others = set().union(*(parts for name, parts in by_set.items() if name != o.case.dataset))
        known = parts_of(features_of(o.case)) <= others
        (inside if known else outside).append(math.log(o.step_s / o.case.step_s))
    for name, errors in (("known from other data sets", inside), ("of one data set alone", outside)):
        rms = math.sqrt(sum(e * e for e in errors) / len(errors))
        print(f"{name:28} {len(errors):5} rows, root mean square of ln(predicted / measured) {rms:.3f}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--spread", action="store_true")
    options = parser.parse_args(arguments)
    if options.write:
        _OUT.write_text(written(options.rows), encoding="utf-8")
    if options.spread:
        spread(options.rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
