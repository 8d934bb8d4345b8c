"""Waiting for tasks to change: one look at the store for all who wait, which wakes those whose task has changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

__all__ = ["Changes", "Watch"]

EVERY = 0.02  # seconds between two looks

_log = logging.getLogger("planner.service")


class Watch:
    """One who waits for a task."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self.changed = asyncio.Event()

    async def wait(self, seconds: float) -> bool:
        """Whether the task may have changed since the last wait, or since the watch began: returns once it has, the
        seconds are over, or the server stops."""
        if self._changes.stopping:
            return True
        self._changes.look()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.changed.wait(), seconds)
        changed = self.changed.is_set()
        self.changed.clear()
        return changed


class Changes:
    """`version` is cheap and differs once anything was written; `changes` says by which tasks since then, None where it
    may be any; `stamps` of tasks differ once these have changed.  Nobody waiting, nobody looking."""

    def __init__(
        self,
        version: Callable[[], int],
        stamps: Callable[[Collection[int]], Mapping[int, Hashable]],
        changes: Callable[[int], frozenset[int] | None] = lambda since: None,
    ) -> None:
        self._version, self._stamps, self._changes = version, stamps, changes
        self._watches: dict[int, set[Watch]] = {}
        self._seen: dict[int, Hashable] = {}  # stamps of the tasks that are watched
        self._looker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "watch")  # of its own: whatever fills the others, who waits is woken
        self.stopping = False

    def stop(self) -> None:
        """The server ends: nobody waits any longer.  May be called from a signal handler."""
        self.stopping = True

    @contextlib.contextmanager
    def watch(self, task: int) -> Iterator[Watch]:
        """To be begun before the task is read: whatever changes from then on ends a wait."""
        watch = Watch(self)
        self._watches.setdefault(task, set()).add(watch)
        try:
            yield watch
        finally:
            self._watches[task].discard(watch)
            if not self._watches[task]:
                del self._watches[task]
                self._seen.pop(task, None)

    def look(self) -> None:
        """Sees to it that somebody looks."""
        if self._looker is None or self._looker.done():
            self._looker = asyncio.create_task(self._look())

    async def _look(self) -> None:
        seen: int | None = None
        while self._watches and not self.stopping:
            try:
                version = self._version()
                # Of tasks that nobody has watched before, whoever began may have read an older state: they wake once.
                changed = self._since(seen, version)
                due = [t for t in self._watches if changed is None or t in changed or t not in self._seen]
                found = await self._looked_up(due) if due else {}
            except Exception as e:
                _log.warning("the store cannot be looked at", extra={"fields": {"why": str(e)}})
                self._wake(list(self._watches))  # who wakes and reads meets the error, and answers with it
                seen = None
            else:
                seen = version
                self._wake([task for task in due if task not in self._seen or self._seen[task] != found.get(task)])
                self._seen |= {task: found.get(task) for task in due if task in self._watches}
            await asyncio.sleep(EVERY)
        if self.stopping:
            self._wake(list(self._watches))

    async def _looked_up(self, due: Collection[int]) -> Mapping[int, Hashable]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._stamps, due)

    def _since(self, seen: int | None, version: int) -> frozenset[int] | None:
        """Tasks that may have changed between the two; None: any."""
        if version == seen:
            return frozenset()
        return None if seen is None else self._changes(seen)

    def _wake(self, tasks: Collection[int]) -> None:
        for task in tasks:
            for watch in self._watches.get(task, ()):
                watch.changed.set()
