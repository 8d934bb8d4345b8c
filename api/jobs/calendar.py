"""Whether the clock may be believed before anything is removed by it.

A clock that is weeks ahead makes everything look old.  So the moment of the last look is written down: where the clock
has gone on by more than a day since, it was set, or the service did not run.  Which of the two cannot be told, and what
is removed does not come back; such a leap is believed once the clock has gone on steadily for a day behind it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from planner.files import replace_file

__all__ = ["DAY_S", "Calendar"]

DAY_S = 86400.0
FILE = "purge-clock.json"


@dataclass(frozen=True, slots=True)
class Calendar:
    """`latest`: when something was last written, for a folder that was never looked at; None where nothing was."""

    folder: Path
    latest: Callable[[], float | None]

    def leap(self, now: float) -> float:
        """Seconds by which the clock has leapt, as long as that is not to be believed; else 0.  Notes the moment; to be
        asked every hour or so.  OSError."""
        seen, leapt, last = self._read(now)
        if now <= seen + DAY_S:  # set back, too: then less is old, and nothing is lost by believing it
            self._write(now, None, now)
            return 0.0
        if leapt is None or not 0 <= now - last <= DAY_S:
            leapt = now
        believed = now - leapt >= DAY_S
        self._write(now if believed else seen, None if believed else leapt, now)
        return 0.0 if believed else now - seen

    def _read(self, now: float) -> tuple[float, float | None, float]:
        """The last moment that was believed, where the clock leapt to, and when it was looked at."""
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            found = json.loads((self.folder / FILE).read_text())
            leapt = found["leapt"]
            return float(found["seen"]), None if leapt is None else float(leapt), float(found["last"])
        latest = self.latest()
        return now if latest is None else latest, None, now

    def _write(self, seen: float, leapt: float | None, last: float) -> None:
        document = {"seen": seen, "leapt": leapt, "last": last}
        replace_file(self.folder / FILE, json.dumps(document).encode(), prefix=".clock-")
