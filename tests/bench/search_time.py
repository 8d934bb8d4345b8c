"""CPU seconds from a file to its plan, and when the first plan that fits is known.

    python -m tests.bench.search_time [--time-limit S] MODEL.onnx,DEVICES,HARDWARE,BATCH ...

Each job is searched with every lever (`--space whole`) and without a cache, by the command line in a process of its
own, which is pinned to no core: run it under `taskset` to keep others off.  `first`: seconds of the search, after the
file was read, until the first plan that fits.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.scaling import children_s

ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def searched(job: str, limit: float | None) -> str:
    """A line about one job."""
    path, devices, hardware, batch = job.rsplit(",", 3)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "planner", "search", path, "--devices", devices, "--hardware", hardware]
        command += ["--batch", batch, "--space", "whole", "--no-cache", "--json", "--out", str(Path(folder) / "plan")]
        command += [] if limit is None else ["--time-limit", str(limit)]
        begun, spent = time.perf_counter(), children_s()
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **ALONE})
        spent, took = children_s() - spent, time.perf_counter() - begun
        if not done.stdout:
            return f"{job}: {done.stderr.strip().splitlines()[-1]}"
        found = json.loads(done.stdout)
        first = json.loads((Path(folder) / "plan" / "history.json").read_text(encoding="utf-8"))["steps"][0]["seconds"]
    return (
        f"{job}: {spent:.1f} CPU s ({took:.1f} s in all), first plan after {first:.2f} s, "
        f"{found['operators']:,} operators, step {found['step_time_s']:.6g} s, gap {found['gap']:.2%}: "
        f"{found['in_words']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, metavar="S")
    parser.add_argument("jobs", nargs="+", metavar="MODEL.onnx,DEVICES,HARDWARE,BATCH")
    o = parser.parse_args()
    for job in o.jobs:
        print(searched(job, o.time_limit), flush=True)


if __name__ == "__main__":
    main()
