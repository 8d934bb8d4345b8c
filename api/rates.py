"""How often a tenant may ask, where several replicas answer: one bucket in the database for all of them.

A replica draws requests from it in batches and answers from what it has drawn, so that one request in many waits for
the database.  All replicas together never grant more than the bucket had; a batch that is not used up within a second
is lost, so that a tenant may be granted up to a batch for each replica less (`BATCH` of a second's requests).
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from starlette.concurrency import run_in_threadpool

from planner.api.jobs.database import Database
from planner.api.jobs.shared import draw
from planner.api.limits import TENANTS, Rate

__all__ = ["SharedBuckets"]

BATCH: Final = 0.1  # seconds of the rate that are drawn at once
FRESH_S: Final = 1.0


@dataclass(slots=True)
class _Drawn:
    left: int = 0
    level: float = 0.0  # of the shared bucket, after the last batch
    at: float = 0.0
    drawing: asyncio.Lock = field(default_factory=asyncio.Lock)


class SharedBuckets:
    def __init__(self, rate: float, database: Database) -> None:
        self.rate, self.size, self._database = rate, max(1.0, 2 * rate), database
        self._drawn: OrderedDict[str, _Drawn] = OrderedDict()

    async def take(self, tenant: str, count: int = 1) -> Rate | None:
        """So many requests, of which none is taken where there is no room for all; None where there is no limit.  More
        than a full bucket holds count as a full one, less the one request that brings them, which was taken before."""
        if self.rate <= 0:
            return None
        drawn = self._drawn.setdefault(tenant, _Drawn())
        self._drawn.move_to_end(tenant)
        if len(self._drawn) > TENANTS:
            self._drawn.popitem(last=False)
        async with drawn.drawing:
            wanted = min(count, int(self.size) - 1) if count > 1 else 1
            stale = time.monotonic() > drawn.at + FRESH_S
            if drawn.left < wanted or stale:
                left = 0 if stale else drawn.left
                batch = max(wanted - left, int(self.rate * BATCH))
                given = (tenant, batch, self.rate, self.size, wanted - left)
                found, drawn.level = await run_in_threadpool(draw, self._database, *given)
                drawn.left = left + found
                drawn.at = time.monotonic()
            level = drawn.level + drawn.left
            if drawn.left < wanted:
                return Rate(int(self.size), int(level), (self.size - level) / self.rate, (wanted - level) / self.rate)
            drawn.left -= wanted
            return Rate(int(self.size), int(level - wanted), (self.size - level + wanted) / self.rate)
