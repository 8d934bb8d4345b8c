"""How long a job takes to begin: `python -m tests.bench.fork_server [--jobs N]`.

A worker on an empty queue, jobs one after the other.  `child_ms`: from the start of a child to its first line of ours;
`job_ms`: from the request to the end of a job that does nothing, through store, worker and child.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path


def main() -> int:
    # Here, as a child reads this file again.
    from planner.api.jobs.store import Store
    from planner.api.jobs.tasks import Task
    from tests.service.entries import misbehaving
    from tests.service.working import ask, working

    parser = argparse.ArgumentParser(description="Measure how long a job takes to begin.")
    parser.add_argument("--jobs", type=int, default=100)
    options = parser.parse_args()
    child: list[float] = []
    job: list[float] = []
    with tempfile.TemporaryDirectory() as folder, working(store := Store(Path(folder)), entry=misbehaving) as worker:
        ask(store, worker, Task("artifact", {}, {"do": "nothing", "k": -1}, code="c"))  # the fork server is there now
        for k in range(options.jobs):
            begun = store.ensure(Task("artifact", {}, {"do": "nothing", "k": k}, code="c"))
            at = time.perf_counter()
            while not store.state(begun.id).ended:
                worker.turn()
                child += [s.begun_s for s in worker._at_work if s.begun_s is not None and s.claim.task == begun.id][:1]
            job.append(time.perf_counter() - at)
            while worker._at_work:
                worker.turn()
    print(json.dumps({"jobs": options.jobs, "child_ms": _spread(child), "job_ms": _spread(job)}))
    return 0


def _spread(seconds: list[float]) -> dict[str, float]:
    found = sorted(seconds)
    return {
        "median": round(1e3 * found[len(found) // 2], 1),
        "p99": round(1e3 * found[int(0.99 * (len(found) - 1))], 1),
        "max": round(1e3 * found[-1], 1),
    }


if __name__ == "__main__":
    raise SystemExit(main())
