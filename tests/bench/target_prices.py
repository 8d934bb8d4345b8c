"""What it costs to plan for one framework: `planner search --emit TARGET`, job by job.

    python -m tests.bench.target_prices [--forty] [--only PATTERN] [--targets NAMES] [--folder DIR] [--json OUT]
    python -m tests.bench.target_prices --table OUT [OUT ...]

`--forty`: the forty jobs of `tests.bench.uniform_jobs` in place of the eight of `tests.bench.uniform_space`.  OUT is
written row by row, and rows that it has are not run again.
Each job is searched for each target in a process of its own and its plan is emitted.  The price is the step of what the
target can express over that of the fastest uniform configuration of any target; `refused` says why nothing was emitted.
CPU seconds are from the file to the plan and its emitted files.  `--table` runs nothing, and prints the table of
docs/search-results.md: there "any" is the fastest that one of a job's searches found.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.builder import build
from planner.emit import TARGETS
from tests.bench.uniform_jobs import jobs as forty_jobs
from tests.bench.uniform_space import JOBS, Job

__all__ = ["main"]


def written(name: str, job: Job, folder: Path) -> Path:
    path = folder / f"{name}.onnx"
    if not path.exists():
        attention = {"attention": "fused"} if job.architecture in ("gpt", "llama") else {}
        path.write_bytes(build(job.architecture, {**job.sizes, **attention, "batch": job.batch}).SerializeToString())
    return path


def row_of(name: str, job: Job, target: str, folder: Path) -> dict[str, Any]:
    command = ["search", str(written(name, job, folder)), "--devices", str(job.devices), "--hardware", job.hardware]
    command += ["--space", "whole", "--emit", target, "--no-cache", "--json", "--out", str(folder / f"{name}.{target}")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "planner", *command], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    row: dict[str, Any] = {
        "job": name,
        "target": target,
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "refused": None,
    }
    if not done.stdout:
        return row | {"refused": done.stderr.strip().split("\n")[-1]}
    found = json.loads(done.stdout)
    uniform, emitted = found.get("uniform", {}), found["emitted"][target]
    best = uniform.get("step_time_any_s")
    return row | {
        "step_s": found["step_time_s"],
        "price": None if best is None else found["step_time_s"] / best - 1,
        "strategy": found["in_words"],
        "refused": emitted.get("refused"),
    }


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The prices in Markdown, a line for each job, and the median of every target."""
    targets = list(dict.fromkeys(row["target"] for row in rows))
    lines = [f"| job | any | {' | '.join(targets)} |", "|---" * (len(targets) + 2) + "|"]
    prices: dict[str, list[float]] = {t: [] for t in targets}
    for job in dict.fromkeys(row["job"] for row in rows):
        mine = {row["target"]: row for row in rows if row["job"] == job}
        found = [row["step_s"] / (1 + row["price"]) for row in mine.values() if row.get("price") is not None]
        if not found:
            lines.append(f"| {job} | none fits | {' | '.join('' for _ in targets)} |")
            continue
        any_s = min(found)
        cells = []
        for target in targets:
            row = mine.get(target, {})
            if row.get("step_s") is None or row["refused"]:
                cells.append("—")
                continue
            prices[target].append(row["step_s"] / any_s - 1)
            percent = round(100 * prices[target][-1], 1)
            cells.append(f"{percent:+.1f} %".replace("-", "−") if percent else "0.0 %")
        lines.append(f"| {job} | {any_s:.4g} s | {' | '.join(cells)} |")
    medians = " | ".join(f"{statistics.median(prices[t]):.1%}" if prices[t] else "" for t in targets)
    return [*lines, f"| median | | {medians} |"]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forty", action="store_true", help="the forty jobs of tests.bench.uniform_jobs")
    parser.add_argument("--only", default="*", help="names or patterns of jobs, with commas")
    parser.add_argument("--targets", default=",".join(t for t, words in TARGETS.items() if not words.needs))
    parser.add_argument("--folder", type=Path, help="for models and plans; default: one that is removed")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", nargs="+", type=Path, metavar="OUT")
    options = parser.parse_args(arguments)
    if options.table:
        print("\n".join(table([row for file in options.table for row in json.loads(file.read_text("utf-8"))])))
        return 0
    rows: list[dict[str, Any]] = []
    if options.json is not None and options.json.exists():
        rows = json.loads(options.json.read_text(encoding="utf-8"))
    known = {(row["job"], row["target"]) for row in rows}
    every = dict(forty_jobs()) if options.forty else JOBS
    with tempfile.TemporaryDirectory() as own:
        folder = options.folder or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        for name, job in every.items():
            if not any(fnmatch.fnmatch(name, pattern) for pattern in options.only.split(",")):
                continue
            for target in (t for t in options.targets.split(",") if (name, t) not in known):
                row = row_of(name, job, target, folder)
                rows.append(row)
                price = "" if row.get("price") is None else f"{row['price']:+.1%}"
                told = row["refused"] or row.get("strategy")
                print(
                    f"{name:20} {target:14} {row.get('step_s', 0):.5g} s {price} {row['cpu_s']} CPU s: {told}",
                    flush=True,
                )
                if options.json is not None:
                    options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["refused"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
