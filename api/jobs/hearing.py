"""What a child has said: messages of JSON, none of which is believed before it has been looked at."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from planner.api.jobs.problems import PROBLEMS, URN, problem

__all__ = ["Hearing"]

MOST: Final = 16 << 20  # bytes that a child may say in all: what it says is kept
FIGURES: Final = ("incumbent_s", "bound_s", "gap", "seconds")
DEPTH: Final = 30  # of lists and objects inside each other, in a message
MARKS: Final = 100  # phases of a child that are remembered


@dataclass(slots=True)
class Hearing:
    """`started`: when the child was, by the clock that it says `begun` by.  `marks`: when its phases began, for spans.
    `events` and `progress`: what is to be written to the store."""

    started: float
    answer: Mapping[str, Any] | None = None
    begun_s: float | None = None
    marks: list[tuple[str, float]] = field(default_factory=list)
    events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    progress: dict[str, Any] = field(default_factory=dict)
    _heard: int = 0

    def hear(self, data: bytes) -> None:
        """Takes in one message.  ValueError, KeyError, TypeError and the like for what makes no sense."""
        self._heard += len(data)
        if self._heard > MOST:
            raise ValueError(f"more than {MOST} bytes")
        self._take(_read(data))

    def pause(self, paused: bool) -> None:
        """Notes that the child stands still, or goes on."""
        self.progress["paused"] = paused
        self.events.append(("progress", {"paused": paused}))

    def _mark(self, phase: str) -> None:
        if len(self.marks) < MARKS:
            self.marks.append((phase[:100], time.time()))

    def _take(self, message: dict[str, Any]) -> None:
        match message.pop("kind"):
            case "begun":
                self.begun_s = message["at"] - self.started
                self._mark("begins")
            case "progress":
                figures = {n: None if message[n] is None else float(message[n]) for n in FIGURES}
                self.progress |= figures
                self.events.append(("progress", figures))
            case "phase":
                self.progress["phase"] = str(message["phase"])
                self._mark(str(message["phase"]))
                self.events.append(("phase", {"phase": str(message["phase"])}))
            case "message":
                self.events.append(("message", {"text": str(message["text"])}))
            case "error":
                self.answer = {
                    "kind": "error",
                    "problem": _problem_of(message["problem"]),
                    "lasting": message["lasting"] is True,
                }
            case "died":
                self.answer = {"kind": "died", "how": str(message["how"])}
            case "fault":
                self.answer = {"kind": "fault", "trace": str(message["trace"])}
            case "result":
                plan = message["plan"]
                self.answer = {
                    "kind": "result",
                    "files": {str(name): list(file) for name, file in message["files"].items()},
                    "summary": dict(message["summary"]),
                    "plan": None if plan is None else str(plan),
                    **{name: message[name] is True for name in ("cancelled", "shared", "limited")},
                }


def _read(data: bytes) -> dict[str, Any]:
    """A message.  ValueError for what is none."""
    message = json.loads(data)
    _check_depth(message)
    if b"\\ud" in data.lower():  # halves of characters, which no answer of the service could hold
        message = json.loads(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace"))
    found: dict[str, Any] = message
    return found


def _problem_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """The problem that a child says, as this program says it: the service shows it to whoever asks."""
    name = str(said["type"]).removeprefix(URN)
    if name not in PROBLEMS:
        raise ValueError(f"{name[:80]!r} is no problem")
    numbers = ("lower_bound_bytes", "sufficient_bytes")
    more = {n: None if said[n] is None else int(said[n]) for n in numbers if n in said}
    return problem(name, str(said["detail"]), **more)


def _check_depth(value: object, deepest: int = DEPTH) -> None:
    """ValueError for what is nested deeper than anything that a child says: the store could not write it."""
    if deepest == 0:
        raise ValueError(f"nested deeper than {DEPTH}")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_depth(inner, deepest - 1)
