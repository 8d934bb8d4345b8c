"""How a search moves: kept while it runs, and changing nothing in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["History", "points_of"]

_MOST: Final = 300  # moments of a kind, more than a picture shows


@dataclass(eq=False)
class History:
    """Moments of a search in seconds from its beginning: of steps by the clock, and of the objective of plans that lay
    operators out one by one.  Solvers' threads may tell it as well."""

    started: float = field(default_factory=time.monotonic)
    _steps: list[dict[str, Any]] = field(default_factory=list)
    _objectives: list[dict[str, Any]] = field(default_factory=list)
    _refused: bool = False
    _ended: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        """A search begins now; that of another number of devices, if any, is over."""
        with self._lock:
            self.started, self._ended, self._refused = time.monotonic(), None, False
            self._steps, self._objectives = [], []

    def step(self, best_s: float, bound_s: float | None = None) -> None:
        """A step of so many seconds was found; none of what was searched until now takes less than `bound_s`."""
        self._tell(self._steps, best_s, bound_s)

    def refused(self) -> None:
        """The best so far will not do: the next one stands for itself."""
        with self._lock:
            self._refused = True

    def end(self, best_s: float, bound_s: float | None) -> None:
        """What the answer says."""
        self.refused()
        self.step(best_s, bound_s)

    def objective(self, best_s: float, bound_s: float | None = None) -> None:
        self._tell(self._objectives, best_s, bound_s)

    def stop(self) -> None:
        """What comes now is no search for a better plan."""
        self._ended = time.monotonic()

    def document(self) -> dict[str, Any]:
        """The moments, as in the file."""
        with self._lock:
            seconds = self._now()
            return {"seconds": seconds, "steps": _thinned(self._steps), "objectives": _thinned(self._objectives)}

    def _tell(self, moments: list[dict[str, Any]], best_s: float, bound_s: float | None) -> None:
        with self._lock:
            last: dict[str, Any] = moments[-1] if moments else {"best_s": best_s, "bound_s": None}
            best: float = min(best_s, last["best_s"])
            if moments is self._steps and self._refused:
                best, self._refused = best_s, False
            bound = last["bound_s"] if bound_s is None else bound_s
            if not moments or (best, bound) != (last["best_s"], last["bound_s"]):
                moments.append({"seconds": self._now(), "best_s": best, "bound_s": bound})

    def _now(self) -> float:
        return (time.monotonic() if self._ended is None else self._ended) - self.started


def _thinned(moments: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most so many, the first and the last among them."""
    if len(moments) <= _MOST:
        return list(moments)
    apart = (len(moments) - 1) / (_MOST - 1)
    return [moments[round(k * apart)] for k in range(_MOST)]


def points_of(documents: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Step time and memory of the plans of an answer, best first, and of the uniform configurations that it lists; each
    figure once."""
    uniform = documents[0].get("uniform") or {} if documents else {}
    rows = [("plan", d.get("in_words", d.get("mesh", "")), d) for d in documents]
    rows += [("front", c["parallelism"], c) for c in uniform.get("front", [])]
    rows += [("met", c["parallelism"], c) for c in uniform.get("best", [])]
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for kind, words, row in rows:
        step, memory = float(row["step_time_s"]), int(row["peak_memory_bytes"])
        point = {"kind": kind, "parallelism": str(words).removesuffix(" (--details)"), "step_time_s": step}
        found.setdefault((f"{step:.9g}", memory), {**point, "peak_memory_bytes": memory})  # plans round their steps
    return list(found.values())
