"""Runs an integer program in a process of its own, ended with the search."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from planner.search.large.program import Lazy

__all__ = ["Helper"]


class Helper:
    """`report` hears (bound, choice) of every round, in a thread of this object; `closed` once the last was optimal."""

    def __init__(
        self,
        lazy: Lazy,
        rows: Iterable[int],
        seconds: float | None,
        report: Callable[[float | None, list[int] | None], None],
        say: Callable[[str], None],
    ) -> None:
        self.closed = False
        self._say = say
        self._report = report
        self._process = subprocess.Popen(
            [sys.executable, "-m", "planner.search.large.program_worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        request = {"lazy": lazy, "rows": list(rows), "seconds": seconds}
        self._thread = threading.Thread(target=self._follow, args=(request,), daemon=True)
        self._thread.start()

    def _follow(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump(request, self._process.stdin)
            self._process.stdin.close()
            while True:
                kind, bound, choice = pickle.load(self._process.stdout)
                if kind != "round":
                    self.closed = kind == "closed"
                    self._say(f"integer program {kind}")
                    return
                self._report(bound, choice)
        except (OSError, EOFError, pickle.UnpicklingError):
            return  # ended from outside, or out of memory: what it had reported stands

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join(1.0)
