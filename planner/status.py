"""One line at the foot of a terminal that says how far a command is, from its first second on.

Forked children tell into memory that they share with the process that draws, so that what they do is shown as well.
Nothing is drawn where standard error is no terminal, or one that obeys nothing (TERM=dumb).
"""

from __future__ import annotations

import math
import mmap
import os
import shutil
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from planner.terminal import Shown, obeys, plain

__all__ = ["CLEAR", "is_shown", "picture", "show_progress", "shown"]

CLEAR: Final = "\r\x1b[K"
EVERY: Final = 0.2  # seconds between two pictures
PATIENCE: Final = 1.0  # seconds of a command before the first
BAR: Final = 24  # characters
_HEAD: Final = struct.Struct("<ddH")  # when the work began, what is done of it, bytes of the text
_SIZE: Final = 512

_current: _Line | None = None


class _Line:
    def __init__(self, descriptor: int, command: str) -> None:
        self._descriptor, self._command = descriptor, command
        self._began = time.monotonic()
        self._shared = mmap.mmap(-1, _SIZE)
        self._shared[: _HEAD.size] = _HEAD.pack(self._began, math.nan, 0)
        self._lock = threading.Lock()
        self._drawn = False
        self._open = False  # a line of output has begun and not ended
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._draw, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._end.set()
        self._thread.join()
        self.make_way("\n")

    def tell(self, text: str, fraction: float | None) -> None:
        began, before, _ = _HEAD.unpack_from(self._shared)
        now = time.monotonic()
        if fraction is None or math.isnan(before) or fraction < before:
            began = now  # another work
        content = plain(text).encode()[: _SIZE - _HEAD.size]
        head = _HEAD.pack(began, math.nan if fraction is None else fraction, len(content))
        self._shared[: _HEAD.size + len(content)] = head + content

    def make_way(self, text: str) -> None:
        """Takes the line away before `text` is written."""
        with self._lock:
            if self._drawn:
                self._write(CLEAR)
                self._drawn = False
            self._open = bool(text) and not text.endswith("\n")

    def _draw(self) -> None:
        wait = PATIENCE
        while not self._end.wait(wait):
            wait = EVERY
            began, fraction, length = _HEAD.unpack_from(self._shared)
            text = self._shared[_HEAD.size : _HEAD.size + length].decode(errors="replace")
            now = time.monotonic()
            done = None if math.isnan(fraction) else fraction
            line = picture(self._command, now - self._began, text, done, now - began)
            with self._lock:
                if not self._open:
                    self._write(f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K")
                    self._drawn = True

    def _write(self, text: str) -> None:
        # Past Python's streams, whose locks a child would inherit as a fork finds them.
        with suppress(OSError):
            os.write(self._descriptor, text.encode(errors="replace"))


def picture(command: str, seconds: float, text: str, fraction: float | None, worked: float) -> str:
    """`verify 34 s [######------] 25 %, about 1 min left  executing`; `worked`: seconds that the fraction took."""
    if fraction is None:
        return f"{command} {_time(seconds)}{'.' * (1 + int(seconds / EVERY) % 3):<3}  {text}"
    full = round(BAR * min(1.0, max(0.0, fraction)))
    left = f", about {_time(worked * (1 - fraction) / fraction)} left" if fraction > 0.01 and worked > 1 else ""
    return f"{command} {_time(seconds)} [{'#' * full}{'-' * (BAR - full)}] {fraction:.0%}{left}  {text}"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def show_progress(text: str, fraction: float | None = None) -> bool:
    """Whether a line shows what is being done, and how much of it is, from 0 to 1; else the caller says it."""
    if _current is None:
        return False
    _current.tell(text, fraction)
    return True


def is_shown() -> bool:
    """Whether there is such a line, here or in the process that this one was forked from."""
    return _current is not None


@contextmanager
def shown(command: str, *, wanted: bool = True) -> Iterator[None]:
    """Draws on standard error for as long as it is entered, where that is a terminal."""
    global _current
    if not wanted or _current is not None or not obeys(sys.stderr):
        yield
        return
    line = _Line(sys.stderr.fileno(), command)
    streams = [s for s in (sys.stdout, sys.stderr) if isinstance(s, Shown)]
    for stream in streams:
        stream.before = line.make_way
    _current = line
    line.begin()
    try:
        yield
    finally:
        _current = None
        for stream in streams:
            stream.before = None
        line.end()


def _in_child() -> None:
    """A forked child tells and does not draw: its streams do not wait for a lock that is held elsewhere."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Shown):
            stream.before = None


os.register_at_fork(after_in_child=_in_child)
