"""How many bytes a tenant's jobs and plans may refer to."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from planner.api.errors import Problem

__all__ = ["Quotas"]

TRUSTED_S: Final = 2.0  # for which a sum is good enough for a request that stays below the limit
REFUSED_S: Final = 1.0  # and for one that does not
TIMES: Final = 20  # as long as it took to make a sum, it is good enough, too: of a million jobs that is a second
TENANTS: Final = 10_000  # sums held
LOCKS: Final = 64  # requests of one tenant are held in turns, and seldom wait for another's


@dataclass(slots=True)
class _Sum:
    used: int
    at: float
    took: float


class Quotas:
    """`used`: bytes of a tenant's blobs, without those of the digests that are named.

    A sum over all jobs of a tenant takes a while where there are many, so that one is made every few seconds, and what
    was accepted meanwhile is added to it.  What is being taken in counts, too.
    """

    def __init__(
        self,
        limit: int,
        used: Callable[[str, Collection[str]], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit, self._used, self._clock = limit, used, clock
        self._sums: OrderedDict[str, _Sum] = OrderedDict()
        self._held: dict[str, dict[object, Mapping[str, int]]] = {}  # by tenant and request, bytes by digest
        self._turns = [threading.Lock() for _ in range(LOCKS)]

    def check(self, tenant: str, size: int, digests: Collection[str] = ()) -> None:
        """Problem where this many bytes more, of these digests, are too many.  May read the store."""
        if not self.limit:
            return
        held: dict[str, int] = {}
        for sizes in list(self._held.get(tenant, {}).values()):
            held |= sizes
        others = sum(bytes_ for digest, bytes_ in held.items() if digest not in digests)
        now = self._clock()
        found = self._sums.get(tenant)
        fits = found is not None and found.used + others + size <= self.limit
        if found is None or now > found.at + (TRUSTED_S if fits else REFUSED_S) + TIMES * found.took:
            used = self._used(tenant, ())
            found = _Sum(used, now, self._clock() - now)
            self._sums.pop(tenant, None)
            self._sums[tenant] = found
            if len(self._sums) > TENANTS:
                self._sums.popitem(last=False)
        if found.used + others + size > self.limit and not (
            digests and self._used(tenant, {*digests, *held}) + others + size <= self.limit
        ):
            raise Problem(
                "quota-exceeded",
                f"{found.used + others} bytes are used and the request has {size}, of {self.limit} that the tenant may "
                "use; remove jobs and plans that are not needed (DELETE /v1/jobs/ID, DELETE /v1/plans/ID)",
                more={
                    "used_bytes": found.used + others,
                    "limit_bytes": self.limit,
                    "requested_bytes": size,
                },
            )

    def hold(self, tenant: str, request: object, sizes: Mapping[str, int]) -> None:
        """As `check`, of bytes by digest, which count until the request lets them go: requests of one moment do not
        exceed the limit together."""
        if not self.limit:
            return
        with self._turns[hash(tenant) % LOCKS]:
            self.check(tenant, sum(sizes.values()), sizes)
            self._held.setdefault(tenant, {})[request] = sizes

    def let_go(self, tenant: str, request: object, *, accepted: bool) -> None:
        """The request has ended; what was accepted counts as used."""
        held = self._held.get(tenant, {})
        sizes = held.pop(request, None)
        if sizes is not None and accepted and (found := self._sums.get(tenant)) is not None:
            found.used += sum(sizes.values())

    def forget(self, tenant: str) -> None:
        """Something was removed: the next sum is made anew."""
        self._sums.pop(tenant, None)
