"""Cost and bound on the published auto-sharding instances beside the checkout, against the best known costs.

    python -m tests.bench.bench_iopddl [LETTERS] [--time-limit 60]

Every instance is solved by `planner solve` in a process of its own, so that reading the file counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

INSTANCES = Path(__file__).parents[3] / "shared" / "iopddl"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("letters", nargs="?", default="")
    parser.add_argument("--time-limit", type=float, default=60.0)
    options = parser.parse_args()
    best = json.loads((INSTANCES / "best_known.json").read_text())["instances"]
    print("| instance | status | cost / best known | bound / cost | seconds |")
    print("|---|---|---|---|---|")
    for letter in options.letters or sorted(best):
        path = INSTANCES / f"asplos-2025-iopddl-{letter}.json.gz"
        command = [sys.executable, "-m", "planner", "solve", str(path), "--quiet", "--json"]
        begin = time.monotonic()
        done = subprocess.run([*command, "--time-limit", str(options.time_limit)], capture_output=True, check=False)
        seconds = time.monotonic() - begin
        found = json.loads(done.stdout)
        ratio = closed = "-"
        if found["cost"] is not None:
            ratio = f"{found['cost'] / best[letter]['cost']:.4f}"
            closed = f"{found['lower_bound'] / found['cost']:.4f}"
        print(f"| {letter} | {found['status']} | {ratio} | {closed} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
