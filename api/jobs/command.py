"""`planner worker`: one worker, in a process of its own."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from planner.api.jobs.errors import StoreError
from planner.api.jobs.eviction import ARTIFACT_BYTES
from planner.api.jobs.forks import started
from planner.api.jobs.limits import Limits
from planner.api.jobs.opening import open_store
from planner.api.jobs.pulse import Pulse
from planner.api.jobs.reaper import Reaper
from planner.api.jobs.sandbox import MODES, announce
from planner.api.jobs.worker import Worker
from planner.api.logs import log_to
from planner.api.settings import add_settings, settings_of
from planner.api.spans import spans_of
from planner.errors import UsageError
from planner.requests.values import positive, size_with_unit

__all__ = ["configure", "run"]

LIMITS = Limits()
HIDDEN = ("PLANNER_STORE", "PGPASSWORD")  # children, which read models, do not know the database


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="the service's folder; default: the one of `planner serve`"
    )
    add_settings(parser, "store", "blobs")
    parser.add_argument("--slots", type=positive, default=1, metavar="N", help="number of searches at once; default: 1")
    parser.add_argument(
        "--child-memory", type=size_with_unit, default=LIMITS.memory_bytes, metavar="SIZE", help="memory of each child"
    )
    parser.add_argument(
        "--child-cpu", type=positive, default=LIMITS.cpu_s, metavar="S", help="processor time of each child"
    )
    parser.add_argument(
        "--child-wall", type=positive, default=int(LIMITS.wall_s), metavar="S", help="time of each child"
    )
    parser.add_argument(
        "--retention-days", type=float, metavar="D", help="days after which results are removed; default: never"
    )
    parser.add_argument(
        "--failed-retention-days",
        type=float,
        metavar="D",
        help="days after which the results of failed and cancelled jobs are removed; default: as --retention-days",
    )
    parser.add_argument(
        "--artifact-bytes",
        type=size_with_unit,
        default=ARTIFACT_BYTES,
        metavar="SIZE",
        help="bytes that reports, traces, diffs and emitted files of all tenants may take; default: 4GiB",
    )
    parser.add_argument(
        "--no-cache", action="store_true", help="answer no search by that of another job on an equal graph"
    )
    parser.add_argument(
        "--sandbox", choices=MODES, default=None, help="what child processes are kept from; see `planner serve --help`"
    )
    parser.add_argument(
        "--alive",
        type=Path,
        metavar="FILE",
        help="touch this file twice a second: while it works, it is never old",
    )
    parser.add_argument("--pulse", type=int, help=argparse.SUPPRESS)  # what the parent listens to, for it to set
    parser.add_argument("--parent", type=int, metavar="PID", help="end when the process that started this has ended")


def run(options: argparse.Namespace) -> int:
    for name in ("retention_days", "failed_retention_days"):
        days = getattr(options, name)
        if days is not None and not days > 0:
            raise UsageError(f"--{name.replace('_', '-')} {days:g}: expected a number above zero")
    log_to()
    mode = options.sandbox or settings_of(argparse.Namespace()).sandbox
    announce(mode)
    limits = Limits(memory_bytes=options.child_memory, cpu_s=options.child_cpu, wall_s=float(options.child_wall))
    retention = None if options.retention_days is None else options.retention_days * 86400.0
    try:
        named = argparse.Namespace(data=options.data, store=options.store, blobs=options.blobs)
        settings = settings_of(named)
        store = open_store(settings.data.resolve(), settings.store, settings.blobs)
        for name in HIDDEN:
            os.environ.pop(name, None)
        worker = Worker(
            store,
            options.slots,
            limits,
            retention,
            options.parent,
            sandbox=mode,
            pulse=Pulse(options.pulse, options.alive),
            failed_s=None if options.failed_retention_days is None else options.failed_retention_days * 86400.0,
            cached=not options.no_cache,
            artifact_bytes=options.artifact_bytes,
            spans=spans_of("planner-worker"),
        )

        def stop(_number: int, _frame: object) -> None:
            worker.stopping = True

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        try:
            with Reaper(started):
                worker.run()
        finally:
            if worker.spans is not None:
                worker.spans.close()
    except StoreError as e:
        print(f"planner worker: error: {e}", file=sys.stderr)
        return 3
    return 0
