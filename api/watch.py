"""Waiting for the store to change: one look at its change counter for all who wait.

Where the store knows which tasks were written to, who waits for another one is left waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Changes"]

EVERY = 0.02  # seconds between two looks


class Changes:
    """`version` is cheap and differs once anything was written; `changes`: by which tasks since then, None where it may
    be any.  Nobody waiting, nobody looking."""

    def __init__(
        self, version: Callable[[], int], changes: Callable[[int], frozenset[int] | None] = lambda since: None
    ) -> None:
        self._version, self._changes = version, changes
        self._waiting: dict[asyncio.Future[None], int | None] = {}  # and the task that it is about
        self._looker: asyncio.Task[None] | None = None
        self.stopping = False

    def stop(self) -> None:
        """The server ends: nobody waits any longer.  May be called from a signal handler."""
        self.stopping = True

    def version(self) -> int | None:
        """To be asked before the store is, and handed to `wait` after it; None where the store cannot say."""
        try:
            return self._version()
        except Exception:
            return None  # who reads the store meets the error, and answers with it

    async def wait(self, seconds: float, task: int | None = None, since: int | None = None) -> None:
        """Returns once the store may have changed after `since` (without it: from now on), as far as the task is
        concerned where one is given, the seconds are over, or the server stops."""
        if self.stopping or (since is not None and self.version() != since and self._concerns(task, since)):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = task
        if self._looker is None or self._looker.done():
            self._looker = asyncio.create_task(self._look())
        try:
            await asyncio.wait_for(future, seconds)
        except TimeoutError:
            pass
        finally:
            del self._waiting[future]

    async def _look(self) -> None:
        seen: int | None = None  # the first look wakes all: they may have read before it
        while self._waiting:
            version = self.version()
            found = version if version is not None else seen if seen is not None else 0
            if found != seen or self.stopping:
                changed = None if seen is None or self.stopping else self._changes(seen)
                seen = found
                for future, task in self._waiting.items():
                    if not future.done() and (changed is None or task is None or task in changed):
                        future.set_result(None)
            await asyncio.sleep(EVERY)

    def _concerns(self, task: int | None, since: int) -> bool:
        changed = self._changes(since)
        return changed is None or task is None or task in changed
