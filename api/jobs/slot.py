"""One task in one child, from its claim to its end."""

from __future__ import annotations

import contextlib
import logging
import secrets
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from planner.api.jobs.errors import BlobDamaged, BlobMissing, LeaseLost, StoreBusy, StoreFull
from planner.api.jobs.excess import excess
from planner.api.jobs.forks import Child
from planner.api.jobs.handover import WRITTEN, ResultInvalid, Taken, size_of, take_in
from planner.api.jobs.hearing import Hearing
from planner.api.jobs.lanes import LARGE
from planner.api.jobs.limits import CPU_GRACE_S, Limits
from planner.api.jobs.problems import URN, problem
from planner.api.jobs.records import Claim
from planner.api.jobs.spells import Spells, go, stop
from planner.api.jobs.store import Store

__all__ = ["Slot"]

FLUSH_S = 0.2  # between two writings of progress
INPUT_LOST = f"{URN}input-lost"
ORPHANED = 255  # what multiprocessing says of a child whose fork server died, and took it along
AGAIN_S = 1.0  # between two tries to hand in a result
AT_ONCE = 8 << 20  # bytes of a result that is copied within a round of the worker
SEARCHES = frozenset(("plan",))  # kinds that have something in hand when they are asked to end

log = logging.getLogger("planner.worker")


@dataclass(slots=True)
class Slot:
    """`why` it was asked to end (`cancelled` or `child-wall`), and when; `dropped`: nobody waits for its answer;
    `deaf`: nothing more will be heard.  `outcome`: how it ended, for spans."""

    claim: Claim
    child: Child
    limits: Limits
    why: str | None = None
    end_requested_at: float = 0.0
    dropped: bool = False
    deaf: bool = False
    cpu_s: float = 0.0
    metered_s: float = 0.0
    heavy: bool = field(init=False)
    spells: Spells = field(init=False)
    hearing: Hearing = field(init=False)
    outcome: str = ""
    _flushed: float = 0.0
    _taking: Future[Taken] | None = None
    _again: float = 0.0  # when a result is handed in again that could not be

    def __post_init__(self) -> None:
        self.heavy = self.claim.lane == LARGE
        self.spells = Spells(self.child.started)
        self.hearing = Hearing(self.child.started)

    @property
    def tenant(self) -> str:
        return self.claim.tenant

    @property
    def light(self) -> bool:
        return self.claim.lane != LARGE

    @property
    def paused(self) -> bool:
        return self.spells.paused and not self.dropped

    @property
    def ending(self) -> bool:
        return self.why is not None or self.dropped

    def spell(self) -> float:
        return self.spells.spell()

    def ran(self) -> float:
        return self.spells.ran()

    def pause(self) -> None:
        """It stands still until it is resumed; its lease is held on."""
        stop(self.child.pid)
        self.spells.pause()
        self.hearing.pause(True)

    def resume(self) -> None:
        go(self.child.pid)
        self.spells.resume()
        self.hearing.pause(False)

    def drop(self) -> None:
        """The lease is lost: the child works for nobody."""
        self.dropped = True
        self.outcome = "lost"
        self.child.kill()

    def ask(self, why: str) -> None:
        """To end, with what it has where that is something."""
        if self.why is None:
            self.why, self.end_requested_at = why, time.monotonic()
            if self.paused:
                self.resume()  # to hear it, and to hand in what it has
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
            if self.spells.ran(now) > self.limits.wall_s:
                self.ask("child-wall")
            if self.why is not None and now > self.end_requested_at + self.limits.grace_s:
                self.child.kill()
        if self.dropped:
            return
        ended = gone or self.hearing.answer is not None
        try:
            said = self.hearing
            if (said.events or said.progress) and (ended or now > self._flushed + FLUSH_S):
                store.leases.report(self.claim, said.events, said.progress)
                said.events, said.progress, self._flushed = [], {}, now
            if ended and self._conclude(store):
                self.dropped = True
                self.outcome = "died" if self.hearing.answer is None else self.hearing.answer["kind"]
                self.child.kill()  # it has nothing left to do
        except LeaseLost as e:
            log.warning("%s", e)
            self.drop()

    def waits(self) -> list[Connection | int]:
        """What wakes the worker."""
        if self._taking is not None or self._again:
            return []  # the child has ended: it would wake the worker again and again
        return [self.child.process.sentinel] if self.deaf else [self.child.process.sentinel, self.child.receiver]

    def watch(self) -> None:
        """Notes the processor time, to tell later why a child was ended; ends one that takes too much."""
        self.cpu_s = max(self.cpu_s, self.child.cpu_s())
        if self.hearing.answer is None and not self.dropped:
            found = excess(self.child.pid, [self.child.folder / name for name in WRITTEN], self.limits)
            if found is not None:
                name, message = found
                self.hearing.answer = {"kind": "error", "problem": problem(name, message), "lasting": False}
                self.child.kill()

    def _listen(self) -> bool:
        """Whether more may come."""
        try:
            messages = self.child.messages()
        except (EOFError, OSError):
            return False
        try:
            for data in messages:
                self.hearing.hear(data)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as e:
            log.error("task %d: its child speaks no sense (%r)", self.claim.task, e)
            self.child.kill()
            return False
        return True

    def _conclude(self, store: Store) -> bool:
        """Whether the end is written: a large result takes its time."""
        answer = self.hearing.answer
        if answer is None:
            self._conclude_death(store)
        elif answer["kind"] == "died":
            self._conclude_loss(store, answer["how"])
        elif answer["kind"] == "fault":
            self._conclude_fault(store, answer["trace"])
        elif answer["kind"] == "error":
            cancelled = self.why == "cancelled"
            error = answer["problem"]
            if error.get("type") == INPUT_LOST:
                self._forget_damaged(store)
            if self.why == "child-wall":
                error = self._too_long()
            store.leases.fail(self.claim, error, lasting=answer["lasting"] and not self.why, cancelled=cancelled)
        else:
            try:
                taken = self._taken(store)
            except ResultInvalid as e:
                log.error("task %d: the result of its child cannot be taken (%s)", self.claim.task, e)
                store.leases.died(self.claim, "its result was not as it said")
                return True
            except StoreFull as e:
                log.error("task %d: %s", self.claim.task, e)
                store.leases.fail(self.claim, problem("storage-full", "the result cannot be kept"), lasting=False)
                return True
            except StoreBusy as e:  # where results lie cannot be reached: once more in a moment
                log.error("task %d: its result cannot be handed in (%s)", self.claim.task, e)
                self._taking, self._again = None, time.monotonic() + AGAIN_S
                return False
            if taken is None:
                return False
            files, plan = taken
            summary = answer["summary"]
            cut = self.why == "child-wall" and answer["cancelled"]
            if cut:
                summary["stopped"] = "child-wall"
            store.leases.finish(
                self.claim,
                files,
                summary,
                plan=plan,
                # What a limit of the service has ended is an answer all the same.
                cancelled=answer["cancelled"] and not cut and not answer["limited"],
                shared=answer["shared"] and not cut and not self._hurried(),
            )
        return True

    def _taken(self, store: Store) -> Taken | None:
        """The result of the child; None while a large one is being copied beside the worker's own rounds, in which
        leases are renewed.  Errors as of `take_in`."""
        assert self.hearing.answer is not None
        if time.monotonic() < self._again:
            return None
        if self._taking is None:
            folder, files, plan = self.child.folder, self.hearing.answer["files"], self.hearing.answer["plan"]
            take = partial(take_in, store.blobs, folder, files, plan, self.limits.result_bytes)
            if size_of(folder) <= AT_ONCE and not store.blobs.remote:
                return take()
            pool = ThreadPoolExecutor(1, "result")
            self._taking = pool.submit(take)
            pool.shutdown(wait=False)
        return self._taking.result() if self._taking.done() else None

    def _conclude_fault(self, store: Store, trace: str) -> None:
        """A fault of ours: the log has what happened, and whoever waits is told where in the log."""
        fault = secrets.token_hex(8)
        jobs = store.leases.jobs(self.claim)
        fields = {"fault": fault, "task": self.claim.task, "kind": self.claim.kind, "jobs": jobs, "exception": trace}
        log.error("a task met a fault of the planner", extra={"fields": fields})
        error = problem("internal", f"the planner met a fault of its own; the service's log has it as {fault}")
        cancelled = self.why == "cancelled"
        if self.why == "child-wall":
            error = self._too_long()
        store.leases.fail(self.claim, error, lasting=False, cancelled=cancelled)

    def _forget_damaged(self, store: Store) -> None:
        """What is damaged is removed, and what is lost is known to be, so that the same content can be kept again: the
        child cannot."""
        with contextlib.suppress(StoreBusy):  # whoever asks for it next finds it damaged, too
            for digest in self.claim.inputs.values():
                with contextlib.suppress(BlobDamaged, BlobMissing):
                    store.blobs.read(digest)
            store.blobs.missing(list(self.claim.inputs.values()))

    def _conclude_death(self, store: Store) -> None:
        code = self.child.process.exitcode
        how = "its end is unknown" if code is None else f"status {code}" if code >= 0 else signal.Signals(-code).name
        out_of_time = code == -signal.SIGXCPU or self.cpu_s > self.limits.cpu_s + CPU_GRACE_S - 3
        if self.why is None and out_of_time and code in (-signal.SIGXCPU, -signal.SIGKILL):
            message = f"it used {self.limits.cpu_s} s of processor time"
            store.leases.fail(self.claim, problem("child-cpu", message), lasting=False)
        elif code == ORPHANED and self.why is None:
            log.warning("task %d: the process that its child was begun by has ended", self.claim.task)
            store.leases.lost(self.claim, "the process that starts others has ended")
        else:
            self._conclude_loss(store, how)

    def _conclude_loss(self, store: Store, how: str) -> None:
        """The child, or a process that it had started, is dead: that says nothing of the request, which is tried again
        unless it was to end anyway."""
        if self.why == "cancelled":
            store.leases.fail(self.claim, None, lasting=False, cancelled=True)
        elif self.why == "child-wall":
            store.leases.fail(self.claim, self._too_long(), lasting=False)
        else:
            log.warning("task %d: child ended by %s: %s", self.claim.task, how, self.child.log_tail())
            store.leases.died(self.claim, how)

    def _hurried(self) -> bool:
        """Whether pauses have taken of the time that the request gave: another time it may find more."""
        return self.spells.pauses > 0 and self.claim.options.get("time_limit") is not None

    def _too_long(self) -> dict[str, Any]:
        return problem("child-wall", f"it was ended after {self.limits.wall_s:g} s")
