"""Times that others on the machine have not disturbed.

On a shared host other processes take cores and memory bandwidth.  How much they computed during a call is what all
cores were busy (`/proc/stat`, in ticks of a hundredth of a second) less what this process and its workers used; times
are taken from the calls that were disturbed least.  Where the system does not tell, all calls count.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

__all__ = ["CLEAN", "Meter", "Timed", "steady", "wait_until_quiet"]

Timed = tuple[float, float]  # seconds, and what others computed meanwhile, per second
CLEAN = 0.1  # cores that others may use
TICKS = 2  # that two readings of the counters may be off
_GLANCE_S = 0.25
_TICK_S = 0.01  # USER_HZ is 100 wherever Linux runs


class Meter:
    """Measures from when it is made."""

    def __init__(self) -> None:
        self._busy, self._own, self._begin = _busy(), time.process_time(), time.monotonic()

    def disturbance(self, workers: float) -> float:
        """Cores that others kept busy since then, if `workers` computed for so many seconds; 0 within the error of the
        counters."""
        others = _busy() - self._busy - (time.process_time() - self._own) - workers
        return max(0.0, others - TICKS * _TICK_S) / max(time.monotonic() - self._begin, _TICK_S)


def _busy() -> float:
    """Seconds that all cores together were busy since the start; 0 where that is not told."""
    try:
        user, nice, system, _idle, _wait, irq, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + soft) * _TICK_S


def wait_until_quiet(patience_s: float) -> float:
    """Waits until others leave the machine alone, at most so long; returns what is left of the patience."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        meter = Meter()
        time.sleep(_GLANCE_S)
        if meter.disturbance(0.0) <= CLEAN:
            break
    return max(0.0, end - time.monotonic())


def steady(timed: Sequence[Timed]) -> float:
    """Median seconds of what was disturbed by less than `CLEAN`; where that is less than a quarter, of the quarter
    disturbed least."""
    if not timed:
        raise ValueError("nothing was timed")
    order = sorted(timed, key=lambda t: t[1])
    clean = sum(d <= CLEAN for _, d in timed)
    return median(s for s, _ in order[: max(clean, -(-len(order) // 4))])
