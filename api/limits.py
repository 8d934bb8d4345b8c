"""Limits on what a request may send, and how often one tenant may ask."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from starlette.types import Receive

from planner.api.errors import Problem

__all__ = ["Buckets", "Rate", "check_length", "limited"]

SILENCE: Final = 30.0  # seconds that a body may pause
SLOWEST: Final = 8192.0  # bytes a second that it brings on the whole, beside the pause that it may make
TENANTS: Final = 10_000  # buckets kept


def too_large(limit: int) -> Problem:
    # The rest of the body is not read: the connection ends with this answer.
    return Problem(
        "too-large",
        f"the body has more than {limit} bytes; send less (`planner submit` leaves the weights out)",
        more={"limit_bytes": limit},
        headers={"Connection": "close"},
    )


def check_length(declared: bytes | None, limit: int) -> None:
    """Problem where `Content-Length` says more than `limit` bytes, or is no number."""
    if declared is None:
        return
    if not declared.isdigit():
        raise Problem("bad-request", "Content-Length is no number", headers={"Connection": "close"})
    if len(declared) > 18 or int(declared) > limit:
        raise too_large(limit)


def limited(
    receive: Receive,
    limit: int,
    silence: float = SILENCE,
    slowest: float = SLOWEST,
    clock: Callable[[], float] = time.monotonic,
) -> Receive:
    """The body as it arrives.  Problem once there is more than `limit` bytes of it, nothing for `silence` s, or less
    than `slowest` bytes a second beside that time."""
    taken = 0
    waited = 0.0  # for the sender: what the service takes to store a body is not the sender's time
    complete = False

    async def receive_some() -> Any:
        nonlocal taken, waited, complete
        if complete:
            return await receive()
        left = silence + taken / slowest - waited
        began = clock()
        try:
            message = await asyncio.wait_for(receive(), min(silence, left))
        except TimeoutError:
            complete = True
            if left < silence:
                reason = f"{taken} bytes of the body came in {waited + left:.0f} s; expected {slowest:g} a second"
            else:
                reason = f"nothing of the body came for {silence:g} s"
            raise Problem("body-timeout", reason, headers={"Connection": "close"}) from None
        waited += clock() - began
        if message["type"] != "http.request":
            complete = True
            return message
        taken += len(message.get("body", b""))
        complete = not message.get("more_body", False)
        if taken > limit:
            complete = True
            raise too_large(limit)
        return message

    return receive_some


@dataclass(frozen=True, slots=True)
class Rate:
    """What is left after a request: whole requests, and seconds until the bucket is full; `wait` where refused."""

    limit: int
    left: int
    full_in: float
    wait: float = 0.0

    def headers(self) -> dict[str, str]:
        """`RateLimit` and `RateLimit-Policy` as of draft-ietf-httpapi-ratelimit-headers-09."""
        window = ceil(self.full_in)
        fields = {"RateLimit": f'"tenant";r={self.left};t={window}', "RateLimit-Policy": f'"tenant";q={self.limit};w=2'}
        return fields | ({"Retry-After": str(max(1, ceil(self.wait)))} if self.wait else {})


class Buckets:
    """A token bucket per tenant: `rate` a second, bursts of twice as many.  0: no limit."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.size, self.clock = rate, max(1.0, 2 * rate), clock
        self._level: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, tenant: str, count: int = 1) -> Rate | None:
        """So many requests, of which none is taken where there is no room for all; None where there is no limit.  More
        than a full bucket holds count as a full one, less the one request that brings them, which was taken before."""
        if self.rate <= 0:
            return None
        now = self.clock()
        level, then = self._level.pop(tenant, (self.size, now))
        level = min(self.size, level + (now - then) * self.rate)
        wanted = min(count, self.size - 1) if count > 1 else 1
        wait = 0.0 if level >= wanted else (wanted - level) / self.rate
        if not wait:
            level -= wanted
        self._level[tenant] = (level, now)
        if len(self._level) > TENANTS:
            self._level.popitem(last=False)  # the one that asked least recently, whose bucket is the fullest
        return Rate(int(self.size), int(level), (self.size - level) / self.rate, wait)
