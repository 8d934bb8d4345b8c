"""The worker beside the server: a process of its own, begun again when it ends."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time

from api.settings import Settings

__all__ = ["Workers"]

_log = logging.getLogger("planner.service")

FIRST_PAUSE_S = 0.1  # before a worker that ended is begun again; doubled while it keeps ending
LONGEST_PAUSE_S = 5.0
STEADY_S = 10.0  # a worker that lived so long begins again at once
GRACE_S = 10.0  # for the worker to hand its tasks back


class Workers:
    """`with Workers(settings):` keeps `planner worker` running; nothing with `workers` 0."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="workers", daemon=True)

    def __enter__(self) -> Workers:
        if self.settings.workers:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.settings.workers:
            return
        self._stop.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join(GRACE_S)

    def _command(self) -> list[str]:
        s = self.settings
        told = {
            "data": s.data,
            "slots": s.workers,
            "child-memory": s.child_memory,
            "child-cpu": s.child_cpu,
            "child-wall": s.child_wall,
            "retention-days": s.retention,
            "parent": os.getpid(),  # the worker ends when this process does, also when that is killed
        }
        options = [word for name, value in told.items() for word in (f"--{name}", str(value))]
        return [sys.executable, "-m", "planner", "worker", *options]

    def _keep(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._stop.is_set():
            began = time.monotonic()
            process = self._process = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL)
            status = process.wait()
            if self._stop.is_set():
                return
            killed = status < 0  # by a signal, from outside: nothing that beginning again at once would repeat
            steady = killed or time.monotonic() - began > STEADY_S
            pause = FIRST_PAUSE_S if steady else min(LONGEST_PAUSE_S, 2 * pause)
            _log.warning("worker ended", extra={"fields": {"status": status, "again_in_s": pause}})
            self._stop.wait(pause)
