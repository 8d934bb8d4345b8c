"""Ctrl-C and SIGTERM: the first asks for the best plan so far, the second ends the program at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from planner.errors import NoPlanError
from planner.search.control import Control

__all__ = ["Phase", "cancelled_by_signals"]


@dataclass(slots=True)
class Phase:
    """`searching`: a cancelled search comes back with what it has; before, there is nothing to wait for."""

    searching: bool = False


@contextmanager
def cancelled_by_signals(control: Control) -> Iterator[Phase]:
    """SIGINT and SIGTERM cancel `control`; before the search they raise NoPlanError."""
    phase = Phase()
    if threading.current_thread() is not threading.main_thread():
        yield phase  # only the main thread hears signals
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        control.cancel.set()
        if not phase.searching:
            raise NoPlanError("cancelled before the search began: there is no plan yet")
        print(f"{signal.Signals(number).name}: ending with the best plan so far", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield phase
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
