"""How far a job is: one line that changes on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import log10
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from planner.terminal import beneath, obeys, plain

if TYPE_CHECKING:
    from planner.api.client import Job, Progress

__all__ = ["Display", "interrupts"]

EVERY = 0.2  # seconds between two pictures on a terminal
LINE_EVERY = 0.5  # and between two lines elsewhere
BAR = 24  # characters
PAUSED = "paused"
SMALLEST_GAP = 1e-4  # where the bar is as good as full


class Display:
    """Writes to one stream; use as a context."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = beneath(stream)
        self._terminal = obeys(stream)
        self._began = time.monotonic()
        self._progress: Progress | None = None
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._phase = ""
        self._said, self._last_line = -LINE_EVERY, ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def begin(self, job: Job) -> None:
        self.note(f"job         {job.id} on {job.url}")
        if self._terminal:
            self._thread = threading.Thread(target=self._draw, daemon=True)
            self._thread.start()

    def show(self, progress: Progress) -> None:
        """The latest state of the job."""
        self._progress = progress
        if self._terminal:
            return
        if progress.paused:
            if self._phase != PAUSED:
                self.note(f"{self._elapsed()}: {PAUSED}, while others have their turn")
            self._phase = PAUSED
            return
        now, line = time.monotonic(), figures(progress)
        if progress.incumbent_s is not None:
            if line != self._last_line and (now - self._said >= LINE_EVERY or progress.gap == 0):
                self._said, self._last_line = now, line
                self.note(f"{self._elapsed()}: {line}")
        elif progress.phase and progress.phase != self._phase:
            self.note(f"{self._elapsed()}: {progress.phase}")
        self._phase = progress.phase or self._phase

    def note(self, line: str) -> None:
        with self._lock:
            clear = "\r\x1b[K" if self._thread is not None else ""
            self._stream.write(clear + plain(line, keep="\t") + "\n")
            self._stream.flush()

    def _elapsed(self) -> str:
        return f"after {time.monotonic() - self._began:.1f} s"

    def _draw(self) -> None:
        while not self._end.wait(EVERY):
            width = shutil.get_terminal_size().columns
            with self._lock:
                self._stream.write(
                    "\r" + plain(picture(self._progress, time.monotonic() - self._began))[: width - 1] + "\x1b[K"
                )
                self._stream.flush()


def picture(progress: Progress | None, seconds: float) -> str:
    """`phase [#####-----] gap 3.2 %  plan 0.41 s  bound 0.39 s  12 s`."""
    if progress is not None and progress.paused:
        return f"{PAUSED:<11} {figures(progress)}  {seconds:.0f} s"
    if progress is None or progress.gap is None:
        phase = "waiting" if progress is None or not progress.phase else progress.phase
        return f"{phase:<11} {'.' * (1 + int(seconds / EVERY) % 3):<3} {seconds:.0f} s"
    full = round(BAR * closed(progress.gap))
    return f"{progress.phase or '':<11} [{'#' * full}{'-' * (BAR - full)}] {figures(progress)}  {seconds:.0f} s"


def closed(gap: float) -> float:
    """How much of the way from a gap of 100 % to a negligible one is done, from 0 to 1, in powers of ten."""
    if gap <= SMALLEST_GAP:
        return 1.0
    return max(0.0, min(1.0, log10(gap) / log10(SMALLEST_GAP)))


def figures(progress: Progress) -> str:
    out = [] if progress.incumbent_s is None else [f"objective {progress.incumbent_s:.6g} s"]
    out += [] if progress.bound_s is None else [f"bound {progress.bound_s:.6g} s"]
    out += [] if progress.gap is None else [f"gap {progress.gap:.2%}"]
    return ", ".join(out)


@contextmanager
def interrupts() -> Iterator[Callable[[], None]]:
    """SIGINT and SIGTERM raise KeyboardInterrupt; what is yielded gives them back their own meaning."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # only the main thread hears signals
        return

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, handle) for number in numbers}

    def restore() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)

    try:
        yield restore
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
