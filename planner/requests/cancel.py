"""Ctrl-C and SIGTERM: the first asks for the best plan so far, the second ends the program at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from planner.errors import NoPlanError

__all__ = ["Cancellation", "cancelled_by_signals"]


@dataclass(slots=True)
class Cancellation:
    """`asked` for by a signal; a search comes back with what it has, and before there is any (`searching`) there is
    nothing to wait for."""

    asked: threading.Event = field(default_factory=threading.Event)
    searching: bool = False


@contextmanager
def cancelled_by_signals() -> Iterator[Cancellation]:
    """SIGINT and SIGTERM ask for the end; before the search they raise NoPlanError."""
    cancellation = Cancellation()
    if threading.current_thread() is not threading.main_thread():
        yield cancellation  # only the main thread hears signals
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        cancellation.asked.set()
        if not cancellation.searching:
            raise NoPlanError("cancelled before the search began: there is no plan yet")
        print(f"{signal.Signals(number).name}: ending with the best plan so far", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield cancellation
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
