"""Workers beside the server: processes of their own, begun again when they end, and ended when they hang."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from planner.api.jobs.pulse import PATIENCE_S, REMOTE_PATIENCE_S, Listener
from planner.api.settings import Settings, variable

__all__ = ["Workers"]

_log = logging.getLogger("planner.service")

FIRST_PAUSE_S = 0.1  # before a worker that ended is begun again; doubled while it keeps ending
LONGEST_PAUSE_S = 5.0
STEADY_S = 10.0  # a worker that lived so long begins again at once
LOOK_S = 0.5  # between two looks at whether a worker hangs
GRACE_S = 10.0  # for the worker to hand its tasks back


class Workers:
    """`with Workers(settings):` keeps `planner worker` running; nothing with `workers` 0.

    The searches at a time are shared by two processes where there is more than one: while one that was killed begins
    again, the other goes on.
    """

    def __init__(self, settings: Settings, patience_s: float | None = None) -> None:
        self.settings = settings
        usual = REMOTE_PATIENCE_S if settings.store or settings.blobs else PATIENCE_S
        self.patience_s = usual if patience_s is None else patience_s
        self.on_end: Callable[[str], None] = lambda why: None  # why it ended, though nobody had asked it to
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

    def pids(self) -> set[int]:
        """Of the workers that there are."""
        return {process.pid for process in list(self._processes.values())}

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

    def _command(self, slots: int, pulse: int) -> list[str]:
        s = self.settings
        arguments = {
            "data": s.data,
            "slots": slots,
            "child-memory": s.child_memory,
            "child-cpu": s.child_cpu,
            "child-wall": s.child_wall,
            "retention-days": s.retention,
            "sandbox": s.sandbox,
            "failed-retention-days": s.failed_retention,
            "artifact-bytes": s.artifact_bytes,
            "parent": os.getpid(),  # the worker ends soon after this process, also when that is killed
            "pulse": pulse,
        }
        options = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
        options += ["--no-cache"] if s.share == "tenant" else []
        return [sys.executable, "-m", "planner", "worker", *options]

    def _begin(self, slots: int, pulse: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command(slots, pulse),
            stdin=subprocess.DEVNULL,
            pass_fds=(pulse,),
            env=os.environ | self._addresses(),
        )

    def _addresses(self) -> dict[str, str]:
        """Not among the words of the command, which anyone on this machine can read."""
        return {variable(name): getattr(self.settings, name) for name in ("store", "blobs")}

    def _keep(self, k: int, slots: int) -> None:
        pause = FIRST_PAUSE_S
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                listener = Listener(self.patience_s)
                try:
                    process = self._processes[k] = self._begin(slots, listener.handle)
                except OSError:
                    listener.close()
                    raise
                finally:
                    listener.given()
            except OSError as e:  # memory, processes or files have run out: they may come back
                _log.error("no worker can be started", extra={"fields": {"why": e.strerror, "again_in_s": pause}})
                pause = min(LONGEST_PAUSE_S, 2 * pause)
                self._stop.wait(pause)
                continue
            with contextlib.closing(listener):
                if self._stop.is_set():
                    process.terminate()
                status, hung = self._ended(process, listener)
            if self._stop.is_set():
                return
            killed = status < 0  # by a signal, from outside: nothing that beginning again at once would repeat
            steady = killed or time.monotonic() - began > STEADY_S
            pause = FIRST_PAUSE_S if steady else min(LONGEST_PAUSE_S, 2 * pause)
            self.on_end("hung" if hung else "signal" if killed else "status")
            _log.warning("worker ended", extra={"fields": {"status": status, "again_in_s": pause}})
            self._stop.wait(pause)

    def _ended(self, process: subprocess.Popen[bytes], listener: Listener) -> tuple[int, bool]:
        """The worker's exit status, and whether it hung, and was ended for that."""
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(LOOK_S), False
            if (silent_s := listener.silent()) and not self._stop.is_set():
                _log.error("worker hangs", extra={"fields": {"pid": process.pid, "silent_s": round(silent_s, 1)}})
                process.kill()
                return process.wait(), True
