"""One task in one child, from its claim to its end."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from planner.api.jobs.blobs import Blob
from planner.api.jobs.errors import LeaseLost
from planner.api.jobs.forks import Child
from planner.api.jobs.limits import CPU_GRACE_S, Limits
from planner.api.jobs.problems import URN, problem
from planner.api.jobs.records import Claim
from planner.api.jobs.store import Store

__all__ = ["Slot"]

FLUSH_S = 0.2  # between two writings of progress
INPUT_LOST = f"{URN}input-lost"
SEARCHES = frozenset(("plan",))  # kinds that have something in hand when they are asked to end

log = logging.getLogger("planner.worker")


@dataclass(slots=True)
class Slot:
    """`why` it was asked to end (`cancelled` or `child-wall`), and when; `dropped`: nobody waits for its answer;
    `deaf`: nothing more will be heard."""

    claim: Claim
    child: Child
    limits: Limits
    why: str | None = None
    end_requested_at: float = 0.0
    dropped: bool = False
    deaf: bool = False
    begun_s: float | None = None
    cpu_s: float = 0.0
    answer: Mapping[str, Any] | None = None
    _events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    _progress: dict[str, Any] = field(default_factory=dict)
    _flushed: float = 0.0

    def drop(self) -> None:
        """The lease is lost: the child works for nobody."""
        self.dropped = True
        self.child.kill()

    def ask(self, why: str) -> None:
        """To end, with what it has where that is something."""
        if self.why is None:
            self.why, self.end_requested_at = why, time.monotonic()
            if self.claim.kind in SEARCHES:
                self.child.ask()
            else:
                self.child.kill()

    def step(self, store: Store) -> None:
        """Takes in what the child says; writes it, and the end.  StoreError where the store cannot take it now."""
        now = time.monotonic()
        gone = self.child.process.exitcode is not None  # asked first: what it said before that is there to be heard
        if not self.deaf:
            self.deaf = not self._listen()
        if not gone:
            if now > self.child.started + self.limits.wall_s:
                self.ask("child-wall")
            if self.why is not None and now > self.end_requested_at + self.limits.grace_s:
                self.child.kill()
        if self.dropped:
            return
        ended = gone or self.answer is not None
        try:
            if (self._events or self._progress) and (ended or now > self._flushed + FLUSH_S):
                store.leases.report(self.claim, self._events, self._progress)
                self._events, self._progress, self._flushed = [], {}, now
            if ended:
                self._conclude(store)
                self.dropped = True
                self.child.kill()  # it has nothing left to do
        except LeaseLost as e:
            log.warning("%s", e)
            self.drop()

    def waits(self) -> list[Connection | int]:
        """What wakes the worker."""
        return [self.child.process.sentinel] if self.deaf else [self.child.process.sentinel, self.child.receiver]

    def watch(self) -> None:
        """Notes the processor time, to tell later why a child was ended."""
        self.cpu_s = max(self.cpu_s, self.child.cpu_s())

    def _listen(self) -> bool:
        """Whether more may come."""
        try:
            messages = self.child.messages()
        except (EOFError, OSError):
            return False
        try:
            for data in messages:
                self._take(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            log.error("task %d: its child speaks no sense (%r)", self.claim.task, e)
            self.child.kill()
            return False
        return True

    def _take(self, message: dict[str, Any]) -> None:
        match message.pop("kind"):
            case "begun":
                self.begun_s = message["at"] - self.child.started
            case "progress":
                self._progress |= message
                self._events.append(("progress", message))
            case "phase":
                self._progress["phase"] = message["phase"]
                self._events.append(("phase", message))
            case "message":
                self._events.append(("message", message))
            case "error":
                self.answer = {
                    "kind": "error",
                    "problem": dict(message["problem"]),
                    "lasting": message["lasting"] is True,
                }
            case "result":
                blobs = message["files"].items()
                files = {str(name): Blob(str(b[0]), str(b[1]), int(b[2])) for name, b in blobs}
                plan = message["plan"]
                self.answer = {
                    "kind": "result",
                    "files": files,
                    "summary": dict(message["summary"]),
                    "plan": None if plan is None else str(plan),
                    **{name: message[name] is True for name in ("cancelled", "shared", "limited")},
                }

    def _conclude(self, store: Store) -> None:
        answer = self.answer
        if answer is None:
            self._conclude_death(store)
        elif answer["kind"] == "error":
            cancelled = self.why == "cancelled"
            error = answer["problem"]
            if self.why == "child-wall":
                error = self._too_long()
            if error["type"] == INPUT_LOST:
                store.blobs.missing(list(self.claim.inputs.values()))  # sent again, they are kept again
            store.leases.fail(self.claim, error, lasting=answer["lasting"] and not self.why, cancelled=cancelled)
        else:
            files, summary = answer["files"], answer["summary"]
            absent = store.blobs.missing([blob.digest for blob in files.values()])
            lost = [name for name, blob in files.items() if blob.digest in absent]
            if lost:
                store.leases.died(self.claim, f"its result is not there ({', '.join(lost)})")
                return
            cut = self.why == "child-wall" and answer["cancelled"]
            if cut:
                summary["stopped"] = "child-wall"
            store.leases.finish(
                self.claim,
                files,
                summary,
                plan=answer["plan"],
                # What a limit of the service has ended is an answer all the same.
                cancelled=answer["cancelled"] and not cut and not answer["limited"],
                shared=answer["shared"] and not cut,
            )

    def _conclude_death(self, store: Store) -> None:
        code = self.child.process.exitcode
        how = "its end is unknown" if code is None else f"status {code}" if code >= 0 else signal.Signals(-code).name
        out_of_time = code == -signal.SIGXCPU or self.cpu_s > self.limits.cpu_s + CPU_GRACE_S - 3
        if self.why == "cancelled":
            store.leases.fail(self.claim, None, lasting=False, cancelled=True)
        elif self.why == "child-wall":
            store.leases.fail(self.claim, self._too_long(), lasting=False)
        elif out_of_time and code in (-signal.SIGXCPU, -signal.SIGKILL):
            message = f"it used {self.limits.cpu_s} s of processor time"
            store.leases.fail(self.claim, problem("child-cpu", message), lasting=False)
        else:
            log.warning("task %d: child ended by %s: %s", self.claim.task, how, self.child.log_tail())
            store.leases.died(self.claim, how)

    def _too_long(self) -> dict[str, Any]:
        return problem("child-wall", f"it was ended after {self.limits.wall_s:g} s")
