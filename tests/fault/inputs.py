"""Changed inputs by the hundred thousand: `python -m tests.fault.inputs --count 100000 --seed 1`.

Models (the sample graphs, ONNX's own tests of operators, the hostile ones), plans, strategies of other systems,
profiles, constraints, problems with certificates, and options of requests are changed in a few places, most of them so
that they stay what they are: fields, attributes, sizes, element types, operands, operators, words.  Models go the whole
way: import, search on a few devices, plan.json, report, files of targets.  Every input has to end in a plan or in an
error with a message, within a limit of time and memory, and no process may die of it.

`--keep FOLDER` writes the first inputs of each kind of fault there; `--one NUMBER` reads one input in this process,
and shows its traceback.  SIGTERM ends a run with the report of what was read until then.  The exit status is 1 where
something else happened than a plan or an error.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.fault.entrances import ENTRANCES, case_of, warm
from tests.fault.pool import Found, in_pool, outcome

__all__ = ["main", "run"]

KEPT = 3  # inputs of each kind of fault
SLOWEST = 5
EVERY = 1000  # inputs between two lines of progress


def run(seed: int, first: int, count: int, only: Sequence[str], processes: int, keep: Path | None) -> dict[str, Any]:
    """The report; `faults` must be empty."""
    warm()
    case = partial(case_of, seed, only=only)
    ends: dict[str, Counter[str]] = defaultdict(Counter)
    faults: dict[str, list[Found]] = defaultdict(list)
    slow: list[tuple[float, str]] = []
    most, done, began = 0, 0, time.monotonic()
    enough = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: enough.set())
    for found in in_pool(case, first, count, processes):
        ends[found.entrance][found.end] += 1
        done += 1
        most = max(most, found.resident_bytes)
        slow = sorted([*slow, (round(found.cpu_s, 2), f"{found.entrance} {found.number}")], reverse=True)[:SLOWEST]
        if found.end == "fault":
            faults[found.where].append(found)
            if len(faults[found.where]) == 1:
                print(f"{found.entrance} {found.number}: {found.where}", file=sys.stderr, flush=True)
            if keep is not None and len(faults[found.where]) <= KEPT:
                kept = case(found.number)
                (keep / kept.name).write_bytes(kept.content)
        if done % EVERY == 0:
            rate = done / (time.monotonic() - began)
            print(f"{done:,} inputs, {rate:.0f} a second, {len(faults)} kinds of faults", file=sys.stderr, flush=True)
        if enough.is_set():
            break
    return {
        "seed": seed,
        "inputs": done,
        "ends": {name: dict(sorted(e.items())) for name, e in sorted(ends.items())},
        "most_resident_bytes": most,
        "slowest_cpu_s": slow,
        "seconds": round(time.monotonic() - began),
        "processors": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        "faults": {
            where: {"inputs": len(f), "first": [f"{x.entrance} {x.number}" for x in f[:KEPT]], "detail": f[0].detail}
            for where, f in sorted(faults.items(), key=lambda item: -len(item[1]))
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help=f"of {', '.join(ENTRANCES)}; with commas")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder for the first inputs of each kind of fault")
    parser.add_argument("--one", type=int, help="number of the only input")
    options = parser.parse_args()
    only = [n for n in options.only.split(",") if n]
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    if options.one is not None:
        case = case_of(options.seed, options.one, only)
        with tempfile.TemporaryDirectory() as folder:
            if options.keep is not None:
                (options.keep / case.name).write_bytes(case.content)
            found = outcome(case, Path(folder))
        print(f"{case.name}: {found.end}: {found.where}\n{found.detail}")
        return int(found.end == "fault")
    report = run(options.seed, options.first, options.count, only, options.processes, options.keep)
    print(json.dumps(report, indent=1))
    return 1 if report["faults"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
