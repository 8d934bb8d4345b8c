"""The search against published configurations.

    python -m tests.bench.experts --rows ROWS.json [--only PATTERN] [--most N] [--json OUT]

Every complete row of the file measures a configuration that somebody chose.  Rows that did the same work are a job.  Of
each job the fastest uniform configuration that fits is searched, with all else as it was published (types, kernels,
widths, what overlaps), and judged by the clock that predicts the rows (`planner accuracy`), on the same graph:

- `ratio` is our step over the shortest that is predicted of a published configuration of the job: never above one;
- `distance` is the predicted step of the configuration measured best over ours, less 1;
- `faster` is how many configurations of the space are faster than it, before single changes (null: over a hundred);
- `alike_s` is the best step with nothing but what rows of the framework use (schedules, ZeRO levels, recomputation);
- `consistent` is whether the clock ranks the configuration measured best before the others that were measured.

OUT is written job by job, and jobs that it has are not run again.  Of a data set with more than N jobs, N are taken,
evenly spread over the file (0: all).  `python -m tests.bench.experts_table OUT` makes the tables of docs/experts.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.experts_jobs import Job, compared, jobs_of

__all__ = ["main"]


def spread(jobs: Sequence[Job], most: int) -> list[Job]:
    """At most so many of each data set."""
    sets: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        sets[job.dataset].append(job)
    out: list[Job] = []
    for mine in sets.values():
        few = len(mine) if most == 0 else min(most, len(mine))
        out += [mine[(2 * n + 1) * len(mine) // (2 * few)] for n in range(few)]
    return out


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    told = [r for r in rows if "ratio" in r]
    if not told:
        return ["no job"]
    distances = sorted(r["distance"] for r in told)
    several = [r for r in told if r["configurations"] > 1]
    return [
        f"{len(told)} jobs; ours at most equal in {sum(r['ratio'] <= 1 + 1e-9 for r in told)}",
        f"distance: median {statistics.median(distances):.1%}, largest {distances[-1]:.1%}, "
        f"more than 5 % in {sum(d > 0.05 for d in distances)}",
        f"measured best is predicted best in {sum(r['consistent'] for r in several)} of {len(several)} jobs with "
        "several configurations",
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="measured rows, as `planner accuracy` takes them")
    parser.add_argument("--only", default="*", help="names or patterns of jobs, with commas")
    parser.add_argument("--most", type=int, default=25, help="jobs of a data set at most; 0: all")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    if options.json is not None and options.json.exists():
        rows = json.loads(options.json.read_text())
    known = {r["job"] for r in rows}
    for job in spread(jobs_of(options.rows), options.most):
        if job.name in known or not any(fnmatch.fnmatch(job.name, pattern) for pattern in options.only.split(",")):
            continue
        row = compared(job, lambda line: print(line, file=sys.stderr))
        rows.append(row)
        print(_line(row), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join(summary(rows)))
    return 1 if any(r.get("ratio", 0) > 1 + 1e-9 for r in rows) else 0


def _line(row: dict[str, Any]) -> str:
    if "left_out" in row:
        return f"{row['job']}: left out: {row['left_out']}"
    return (
        f"{row['job']}: published {row['published_s']:.4g} s ({row['published']}), ours {row['ours_s']:.4g} s "
        f"({row['ours']}), {row['distance']:+.1%}, ratio {row['ratio']:.4f}, {row['cpu_s']} CPU-s"
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
