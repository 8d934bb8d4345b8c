"""A worker: does what the store has to do, in children.

One thread: it claims, listens to its children, renews its leases and ends what takes too long.  Killed at any moment it
leaves nothing behind but leases that run out; asked to end (SIGTERM, SIGINT) it gives its tasks back first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path

from planner.api.jobs.attempts import send_span
from planner.api.jobs.caches import cache_of, make_room
from planner.api.jobs.calendar import DAY_S, Calendar
from planner.api.jobs.child import main
from planner.api.jobs.errors import LeaseLost, StoreBusy, StoreDamaged, StoreError, StoreUnusable
from planner.api.jobs.eviction import ARTIFACT_BYTES, Eviction
from planner.api.jobs.forks import Child, Entry, ForkServer, begin
from planner.api.jobs.handover import lay_in
from planner.api.jobs.laying import Laying
from planner.api.jobs.leases import LEASE_S
from planner.api.jobs.limits import Limits
from planner.api.jobs.pulse import Pulse
from planner.api.jobs.records import Claim
from planner.api.jobs.removal import remove
from planner.api.jobs.sandbox import Confinement, Mode
from planner.api.jobs.scratch import bury, own_folder
from planner.api.jobs.shared import draw
from planner.api.jobs.sharing import Sharing
from planner.api.jobs.slot import Slot
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import KINDS, code_digest
from planner.api.jobs.turns import Able
from planner.api.jobs.work import JobInput
from planner.api.spans import Spans

__all__ = ["Worker"]

BEAT_S = LEASE_S / 5
LOOK_S = 0.05  # between two looks at the store where nothing else wakes the worker
CLAIM_S = 0.5  # between two tries to claim where nothing was written: leases run out, and workers die, all the same
CHECKPOINT_S = 2.0
APART_S = 5.0  # for which a worker that cannot reach the inputs of tasks, or begin a process, leaves them to others
ORPHAN_S = 60.0
PURGE_S = 3600.0
NEVER_S = 1e11  # longer ago than any clock says that anything was
PURGES = "all purges"  # no tenant is called so: all workers together purge as often as one may ask
PURGES_A_S = 1.1 / PURGE_S

log = logging.getLogger("planner.worker")


@dataclass
class Worker:
    """`slots` tasks at once, and one more that is likely to end soon; what runs on gives way in turns (`sharing`).

    `parent`: the process that started it.  When that has ended, the worker goes on while there is work, until another
    one is ready, which who restarts the parent will see to, and no longer than `ORPHAN_S`.
    """

    store: Store
    slots: int = 1
    limits: Limits = field(default_factory=Limits)
    retention_s: float | None = None
    parent: int | None = None
    entry: Entry = main
    sandbox: Mode = "auto"
    pulse: Pulse = field(default_factory=lambda: Pulse(None))
    failed_s: float | None = None
    cached: bool = True
    artifact_bytes: int = ARTIFACT_BYTES
    spans: Spans | None = None

    def __post_init__(self) -> None:
        self.name = f"{os.uname().nodename[:40]}-{os.getpid()}-{secrets.token_hex(3)}"
        self.stopping = False
        self._able = Able(frozenset(KINDS), code_digest())
        self._forks = ForkServer()
        self._confinement = Confinement.of(self.sandbox, self.store.folders, self._forks.given)
        self._sharing = Sharing(self.store.leases, self.slots, self.limits.memory_bytes, self._able)
        self._orphan_since: float | None = None
        self._at_work: list[Slot] = []
        self._laying: list[Laying] = []
        self._apart_until = 0.0
        self._beaten = self._tried = self._checkpointed = 0.0
        self._beaten_at = 0.0  # by the clock that leases go by
        self._seen: int | None = None  # version of the store at the last look for work,
        self._heard: int | None = None  # and at the last look for what is to be ended
        self._purged = time.monotonic() - PURGE_S + 60.0  # not while everything begins
        self._folder = self.store.folder / "scratch" / self.name
        self._eviction = Eviction(self.evict)

    def run(self) -> None:
        """Until it is told to stop.  StoreDamaged, StoreUnusable where the store is of no more use."""
        with self.place():
            log.info("worker %s: %d slots in %s", self.name, self.slots, self.store.folder)
            try:
                while not self.stopping:
                    self.turn()
            finally:
                self._leave()

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """The folder of its children, while it works.  StoreUnusable."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(own_folder(self._folder))
            except OSError as e:
                raise StoreUnusable(f"{self._folder}: cannot be made ({e.strerror}); give another folder") from e
            yield

    def turn(self) -> None:
        """One round; returns within a moment."""
        try:
            for step in (self._mind_parent, self._beat, self._share, self._begin_laid, self._claim):
                self.pulse.beat()
                step()
            for slot in self._at_work:
                self.pulse.beat()
                slot.step(self.store)
            if time.monotonic() > self._checkpointed + CHECKPOINT_S:
                self.store.database.checkpoint()
                self._checkpointed = time.monotonic()
        except (StoreDamaged, StoreUnusable):
            raise
        except StoreError as e:
            log.error("%s", e)
            time.sleep(0.2)
        for slot in [s for s in self._at_work if s.dropped and s.child.process.exitcode is not None]:
            self._at_work.remove(slot)
            self._sharing.meter(slot)
            self.pulse.beat()
            send_span(self.spans, self.store, slot)
            slot.child.clear()
            self._eviction.finished(slot.claim.kind)
            self._seen = None  # there is room: look again
        self._purge()
        waits = [w for s in self._at_work for w in s.waits()]
        if waits:
            connection.wait(waits, LOOK_S)
        else:
            time.sleep(LOOK_S)

    def _share(self) -> None:
        if self._sharing.step(self._at_work):
            self._seen = None

    def _mind_parent(self) -> None:
        if self.parent is None or os.getppid() == self.parent:
            return
        now = time.monotonic()
        if self._orphan_since is None:
            self._orphan_since = now
            log.warning("the process that started this worker has ended")
            self._beaten = 0.0
        needed = bool(self._at_work or self._laying) or (self.store.leases.waiting() and not self._has_successor())
        self.stopping = not needed or now > self._orphan_since + ORPHAN_S

    def _has_successor(self) -> bool:
        return bool(set(self.store.leases.workers()) - {self.name})

    def _beat(self) -> None:
        held = [s for s in self._at_work if not s.dropped]
        claims = [s.claim for s in held] + [laying.claim for laying in self._laying]
        version = self.store.version()
        # By the clock of leases too: it runs on while the machine sleeps, and may be set.
        if time.monotonic() > self._beaten + BEAT_S or abs(time.time() - self._beaten_at) > 2 * BEAT_S:
            ready = self._orphan_since is None and self._forks.ready()
            slots = self.slots if ready else 0
            for slot in held:
                slot.watch()
                self._sharing.meter(slot)
            used = self._sharing.used()
            said = self.store.leases.heartbeat(
                self.name, claims, pid=os.getpid(), slots=slots, code=self._able.code, used=used
            )
            self._sharing.charged(used)
            self._beaten, self._beaten_at = time.monotonic(), time.time()
        elif claims and version != self._heard:
            said = self.store.leases.ends_requested(claims)
        else:
            return
        self._heard = version
        for slot in held:
            if slot.claim.task in said.lost:
                slot.drop()
            elif slot.claim.task in said.cancelled:
                slot.ask("cancelled")

    def _claim(self) -> None:
        version = self.store.version()
        if time.monotonic() > self._tried + CLAIM_S:
            self._tried = time.monotonic()
            with contextlib.suppress(OSError):
                bury(self._folder.parent, self.store.leases.bury)
        elif version == self._seen:
            return
        if self._orphan_since is not None and self._has_successor():
            return
        if not self._forks.ready():  # a claim would wait for it, and its lease run out
            return
        self._seen = version
        while lanes := self._sharing.lanes([*self._at_work, *self._laying]):
            if time.monotonic() < self._apart_until:
                self._seen = None  # what waits is looked at again
                return
            self.pulse.beat()
            claim = self.store.leases.claim(self.name, lanes, able=self._able)
            if claim is None:
                return
            self._begin(claim)

    def _begin(self, claim: Claim) -> None:
        folder = self._folder / f"{claim.task}-{claim.token}"
        try:
            work = JobInput(
                claim.kind,
                claim.inputs,
                claim.options,
                folder,
                self.limits,
                self._confinement,
                cache_of(self.store.folder, claim.inputs) if self.cached and claim.kind == "plan" else None,
            )
            if self.store.blobs.remote:
                self._laying.append(Laying(claim, work, self.store.blobs))
                return
            lay_in(self.store.blobs, work.inputs, work.folder)
            child = begin(work, self.entry)
        except (OSError, EOFError) as e:  # EOFError: the fork server has just died; the next child begins another
            self._give_up(claim, folder, e)
            return
        self._hold(claim, child)

    def _begin_laid(self) -> None:
        """What has its inputs by now."""
        for laying in [held for held in self._laying if held.done]:
            self._laying.remove(laying)
            claim, work = laying.claim, laying.work
            try:
                laying.finish()
                child = begin(work, self.entry)
            except (OSError, EOFError) as e:
                self._give_up(claim, work.folder, e)
            except StoreError as e:  # another worker may reach them, or this one in a moment
                log.error("task %d: its inputs cannot be had (%s)", claim.task, e)
                self._apart_until = time.monotonic() + APART_S
                remove(work.folder)
                with contextlib.suppress(LeaseLost):
                    self.store.leases.release(claim, "its inputs could not be reached")
                if not isinstance(e, StoreBusy):
                    raise
            else:
                self._hold(claim, child)

    def _give_up(self, claim: Claim, folder: Path, why: Exception) -> None:
        log.error("task %d: no child can be started (%r)", claim.task, why)
        remove(folder)
        if isinstance(why, EOFError):
            self.store.leases.lost(claim, "the process that starts others has ended")
        else:  # the machine has no room, descriptors or processes left, which says nothing of the task
            self._apart_until = time.monotonic() + APART_S
            self.store.leases.lost(claim, "no process could be started")

    def _hold(self, claim: Claim, child: Child) -> None:
        self._at_work.append(Slot(claim, child, self.limits))
        log.info("task %d: %s, attempt %d", claim.task, claim.kind, claim.attempt)

    def _purge(self) -> None:
        if time.monotonic() < self._purged + PURGE_S:
            return
        self._purged = time.monotonic()
        threading.Thread(target=self.purge, name="purge", daemon=True).start()

    def purge(self) -> None:
        """Removes what is kept no longer, as far as the clock is to be believed, where no other worker just has."""
        try:
            make_room(self.store.folder)
        except OSError as e:
            log.error("making room: %s", e)
        self.evict()
        try:
            if self.retention_s is None and self.failed_s is None:
                return
            leap = Calendar(self.store.folder, self.store.latest).leap(self.store.now())
            if leap:
                log.error(
                    "the clock is %.1f days ahead of the last look at what is old: nothing is removed before it has "
                    "gone on for a day; set it right if it is wrong",
                    leap / DAY_S,
                )
            elif draw(self.store.database, PURGES, 1, PURGES_A_S, 1.0)[0]:
                log.info("purged %s", self.store.purge(self.retention_s or NEVER_S, self.failed_s))
        except (StoreError, OSError) as e:
            log.error("purging: %s", e)

    def evict(self) -> None:
        """Removes results that can be made again, as far as they take more than they may."""
        try:
            evicted = self.store.evict(self.artifact_bytes)
        except (StoreError, OSError) as e:
            log.error("evicting: %s", e)
        else:
            if evicted.tasks:
                log.info("evicted %s", evicted)

    def _leave(self) -> None:
        """Gives back what is held, and ends the children."""
        for slot in self._at_work:
            slot.child.kill()
        for laying in self._laying:
            with contextlib.suppress(LeaseLost, StoreError):
                self.store.leases.release(laying.claim)
        for slot in self._at_work:
            if not slot.dropped:
                with contextlib.suppress(LeaseLost, StoreError):
                    self.store.leases.release(slot.claim)
            slot.child.clear()
        with contextlib.suppress(StoreError):
            self.store.leases.leave(self.name)
