"""Calls that block, on few threads that tenants share in turns.

What a request asks of the store may take long, and whatever it takes is taken from the threads that serve everybody.
So there are few of them, one tenant has a part of them at a time, and its further calls wait behind its own alone.
Health checks go elsewhere.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from planner.api.errors import Problem

__all__ = ["Blocking"]

THREADS: Final = 9
EACH: Final = 3  # calls of one tenant at a time
WAITING: Final = 64  # calls of one tenant that may wait for a thread

P = ParamSpec("P")
T = TypeVar("T")


class Blocking:
    """Use it from one event loop."""

    def __init__(self, threads: int = THREADS, each: int = EACH, waiting: int = WAITING) -> None:
        self._each, self._most = each, waiting
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="store")
        self._free = threads
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # whose turn it is comes first

    async def run(self, tenant: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the call returns or raises.  Problem `rate-limited` where too many of the tenant's calls wait."""
        await self._turn(tenant)
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._pool, functools.partial(call, *args, **kwargs))
        work.add_done_callback(lambda done: self._ended(tenant, done))
        return await asyncio.shield(work)  # a caller that has gone leaves a thread that is busy still

    async def _turn(self, tenant: str) -> None:
        queue = self._waiting.get(tenant)
        if queue is None and self._free and self._running[tenant] < self._each:
            self._begin(tenant)
            return
        if queue is None:
            queue = self._waiting[tenant] = deque()
        if len(queue) >= self._most:
            message = f"{len(queue)} of this tenant's requests wait for the store already; send fewer at a time"
            raise Problem("rate-limited", message, headers={"Retry-After": "1"})
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn came at the same moment
                self._end(tenant)
            elif turn in queue:  # else it was passed over, as it was given up already
                queue.remove(turn)
                if not queue:
                    self._waiting.pop(tenant, None)
            raise

    def _begin(self, tenant: str) -> None:
        self._free -= 1
        self._running[tenant] += 1

    def _ended(self, tenant: str, done: asyncio.Future[T]) -> None:
        if not done.cancelled():
            done.exception()  # it is known, also where nobody waits for it any more
        self._end(tenant)

    def _end(self, tenant: str) -> None:
        self._free += 1
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        self._hand_out()

    def _hand_out(self) -> None:
        """A free thread to the tenant that has waited longest for one."""
        while self._free:
            tenant = next((t for t in self._waiting if self._running[t] < self._each), None)
            if tenant is None:
                return
            queue = self._waiting.pop(tenant)
            turn = queue.popleft()
            if queue:
                self._waiting[tenant] = queue  # behind the others
            if not turn.done():
                self._begin(tenant)
                turn.set_result(None)
