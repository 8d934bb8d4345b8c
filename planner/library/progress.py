"""`planner.Progress`, and the watch that passes it to a caller's function."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from planner.errors import OptionError
from planner.library.wording import in_keywords

if TYPE_CHECKING:
    from planner.requests.cancel import Cancellation
    from planner.requests.watch import Phase, Watch

__all__ = ["Listener", "ListenerWatch", "Progress", "watch_of"]

Listener = Callable[["Progress"], object]


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of a search.

    phase        `import`, `search` or `write`
    seconds      the seconds since the call
    message      what is being done, in words; empty where only the figures changed
    incumbent_s  the objective of the best plan so far, in seconds; None before there is one
    bound_s      a lower bound on the same objective of every plan, in seconds
    gap          the relative gap between these two: 0.01 is one percent
    """

    phase: str
    seconds: float
    message: str = ""
    incumbent_s: float | None = None
    bound_s: float | None = None
    gap: float | None = None

    def __str__(self) -> str:
        if self.message:
            return self.message
        if self.incumbent_s is None or self.gap is None:
            return self.phase
        objective = f"objective {self.incumbent_s:.6g} s, bound {self.bound_s:.6g} s, gap {self.gap:.2%}"
        return f"after {self.seconds:.1f} s: {objective}"


@dataclass(slots=True)
class ListenerWatch:
    """Tells a listener, one step at a time.  What it raises ends the search, and is raised again by `raise_failure`."""

    listener: Listener
    cancellation: Cancellation
    failure: BaseException | None = None
    _phase: Phase = "import"
    _begun: float = field(default_factory=time.monotonic)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def phase(self, name: Phase) -> None:
        self._phase = name
        self._tell()

    def progress(self, incumbent_s: float, bound_s: float, gap: float, seconds: float) -> None:
        self._tell(incumbent_s=incumbent_s, bound_s=bound_s, gap=gap)

    def say(self, line: str) -> None:
        self._tell(message=in_keywords(line))

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _tell(self, message: str = "", **figures: float) -> None:
        with self._lock:
            if self.failure is not None:
                return
            seconds = time.monotonic() - self._begun
            try:
                self.listener(Progress(self._phase, seconds, message, **figures))
            except BaseException as e:
                self.failure = e
                self.cancellation.cancel()


@dataclass(slots=True)
class _Printed:
    """Lines on standard error, of moving figures two a second."""

    shown: float = -1.0

    def __call__(self, step: Progress) -> None:
        if not step.message:
            if step.gap is None or (step.seconds < self.shown + 0.5 and step.gap > 0):
                return
            self.shown = step.seconds
        print(step, file=sys.stderr, flush=True)


def _nobody(step: Progress) -> None:
    pass


def watch_of(progress: Listener | bool | None, cancellation: Cancellation) -> ListenerWatch:
    """None and False: nobody hears; True: lines on standard error; else a function that takes a `Progress`."""
    if progress is None or progress is False:
        return ListenerWatch(_nobody, cancellation)
    if progress is True:
        return ListenerWatch(_Printed(), cancellation)
    if not callable(progress):
        raise OptionError(f"progress: expected a function, True or None, found {progress!r:.60}")
    return ListenerWatch(progress, cancellation)


if TYPE_CHECKING:
    _watch: type[Watch] = ListenerWatch
