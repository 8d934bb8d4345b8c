"""Waiting for the store to change: one look at its change counter for all who wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Changes"]

EVERY = 0.02  # seconds between two looks


class Changes:
    """`version` is cheap and differs once anything was written.  Nobody waiting, nobody looking."""

    def __init__(self, version: Callable[[], int]) -> None:
        self._version = version
        self._waiting: set[asyncio.Future[None]] = set()
        self._looker: asyncio.Task[None] | None = None
        self.stopping = False

    def stop(self) -> None:
        """The server ends: nobody waits any longer.  May be called from a signal handler."""
        self.stopping = True

    async def wait(self, seconds: float) -> None:
        """Returns once the store may have changed, the seconds are over, or the server stops."""
        if self.stopping:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        if self._looker is None or self._looker.done():
            self._looker = asyncio.create_task(self._look())
        try:
            await asyncio.wait_for(future, seconds)
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(future)

    async def _look(self) -> None:
        seen: int | None = None  # the first look wakes all: they may have read before it
        while self._waiting:
            try:
                found = self._version()
            except Exception:
                found = seen if seen is not None else 0  # who wakes and reads meets the error, and answers with it
            if found != seen or self.stopping:
                seen = found
                for future in self._waiting:
                    if not future.done():
                        future.set_result(None)
            await asyncio.sleep(EVERY)
