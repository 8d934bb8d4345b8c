"""Workers beside the server: processes of their own, begun again when they end."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time

from planner.api.settings import Settings

__all__ = ["Workers"]

_log = logging.getLogger("planner.service")

FIRST_PAUSE_S = 0.1  # before a worker that ended is begun again; doubled while it keeps ending
LONGEST_PAUSE_S = 5.0
STEADY_S = 10.0  # a worker that lived so long begins again at once
GRACE_S = 10.0  # for the worker to hand its tasks back


class Workers:
    """`with Workers(settings):` keeps `planner worker` running; nothing with `workers` 0.

    The searches at a time are shared by two processes where there is more than one: while one that was killed begins
    again, the other goes on.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._stop = threading.Event()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        slots = [n for n in (settings.workers - settings.workers // 2, settings.workers // 2) if n]
        self._threads = [
            threading.Thread(target=self._keep, args=(k, n), name=f"worker {k}", daemon=True)
            for k, n in enumerate(slots)
        ]

    def __enter__(self) -> Workers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for process in list(self._processes.values()):
            process.terminate()
        for process in list(self._processes.values()):
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
        for thread in self._threads:
            thread.join(GRACE_S)

    def _command(self, slots: int) -> list[str]:
        s = self.settings
        arguments = {
            "data": s.data,
            "slots": slots,
            "child-memory": s.child_memory,
            "child-cpu": s.child_cpu,
            "child-wall": s.child_wall,
            "retention-days": s.retention,
            "failed-retention-days": s.failed_retention,
            "parent": os.getpid(),  # the worker ends soon after this process, also when that is killed
        }
        options = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
        options += ["--no-cache"] if s.share == "tenant" else []
        return [sys.executable, "-m", "planner", "worker", *options]

    def _keep(self, k: int, slots: int) -> None:
        pause = FIRST_PAUSE_S
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                process = self._processes[k] = subprocess.Popen(self._command(slots), stdin=subprocess.DEVNULL)
            except OSError as e:  # memory or processes have run out: they may come back
                _log.error("no worker can be started", extra={"fields": {"why": e.strerror, "again_in_s": pause}})
                pause = min(LONGEST_PAUSE_S, 2 * pause)
                self._stop.wait(pause)
                continue
            if self._stop.is_set():
                process.terminate()
            status = process.wait()
            if self._stop.is_set():
                return
            killed = status < 0  # by a signal, from outside: nothing that beginning again at once would repeat
            steady = killed or time.monotonic() - began > STEADY_S
            pause = FIRST_PAUSE_S if steady else min(LONGEST_PAUSE_S, 2 * pause)
            _log.warning("worker ended", extra={"fields": {"status": status, "again_in_s": pause}})
            self._stop.wait(pause)
