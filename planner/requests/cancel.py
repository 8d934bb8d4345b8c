"""Ends that are asked for: of a command by Ctrl-C and SIGTERM, of a function by another thread or Ctrl-C.

The first time asks for the best plan so far, a second one ends at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from planner.errors import NoPlanError

__all__ = ["Cancellation", "cancelled_by_interrupt", "cancelled_by_signals"]


@dataclass(slots=True)
class Cancellation:
    """The end of a search, which any thread may ask for with `cancel`.

    The search comes back with the best plan so far; before it has begun (`searching`) there is nothing to wait for, and
    it is NoPlanError."""

    requested: threading.Event = field(default_factory=threading.Event)
    searching: bool = False

    def cancel(self) -> None:
        """Asks the search to end with the best plan so far."""
        self.requested.set()

    @property
    def cancelled(self) -> bool:
        """Whether the search was asked to end."""
        return self.requested.is_set()


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
        cancellation.requested.set()
        if not cancellation.searching:
            raise NoPlanError("cancelled before the search began: there is no plan yet")
        print(f"{signal.Signals(number).name}: ending with the best plan so far", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield cancellation
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def cancelled_by_interrupt(cancellation: Cancellation) -> Iterator[None]:
    """While a search runs in the main thread, the first Ctrl-C asks for its end; before it, and a second time, it is
    KeyboardInterrupt as ever.  Elsewhere nothing changes."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if cancellation.requested.is_set() or not cancellation.searching:
            before(number, frame)
            return
        cancellation.cancel()
        print("interrupted: ending with the best plan so far", file=sys.stderr, flush=True)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
