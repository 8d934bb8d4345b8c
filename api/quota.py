"""How many bytes a tenant's jobs and plans may refer to."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from planner.api.errors import Problem

__all__ = ["Quotas"]

TRUSTED_S: Final = 2.0  # for which a sum is good enough for a request that stays below the limit
REFUSED_S: Final = 1.0  # and for one that does not
TIMES: Final = 20  # as long as it took to make a sum, it is good enough, too: of a million jobs that is a second
TENANTS: Final = 10_000  # sums held


@dataclass(slots=True)
class _Sum:
    used: int
    at: float
    took: float


class Quotas:
    """`used`: bytes of a tenant's blobs, without those of the digests that are named.

    A sum over all jobs of a tenant takes a while where there are many, so that one is made every few seconds, and what
    was accepted meanwhile is added to it.
    """

    def __init__(
        self,
        limit: int,
        used: Callable[[str, Collection[str]], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit, self._used, self._clock = limit, used, clock
        self._sums: OrderedDict[str, _Sum] = OrderedDict()

    def check(self, tenant: str, size: int, digests: Collection[str] = ()) -> None:
        """Problem where this many bytes more, of these digests, are too many.  May read the store."""
        if not self.limit:
            return
        now = self._clock()
        found = self._sums.get(tenant)
        fits = found is not None and found.used + size <= self.limit
        if found is None or now > found.at + (TRUSTED_S if fits else REFUSED_S) + TIMES * found.took:
            used = self._used(tenant, ())
            found = self._sums[tenant] = _Sum(used, now, self._clock() - now)
            self._sums.move_to_end(tenant)
            if len(self._sums) > TENANTS:
                self._sums.popitem(last=False)
        if found.used + size > self.limit and not (digests and self._used(tenant, digests) + size <= self.limit):
            raise Problem(
                "quota-exceeded",
                f"{found.used} bytes are used and the request has {size}, of {self.limit} that the tenant may use; "
                "remove jobs and plans that are not needed (DELETE /v1/jobs/ID, DELETE /v1/plans/ID)",
                more={"used_bytes": found.used, "limit_bytes": self.limit, "requested_bytes": size},
            )

    def add(self, tenant: str, size: int) -> None:
        """So many bytes were accepted."""
        if (found := self._sums.get(tenant)) is not None:
            found.used += size

    def forget(self, tenant: str) -> None:
        """Something was removed: the next sum is made anew."""
        self._sums.pop(tenant, None)
