"""`--hardware NAME:COUNT+NAME:COUNT`: a cluster of several kinds of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.errors import InputError, UsageError
from planner.requests.kinds import EXAMPLE
from planner.requests.values import profile_of

if TYPE_CHECKING:
    from planner.uniform.mixed import Cluster

__all__ = ["cluster_of"]

_MOST_KINDS = 4  # whose orders are all tried


def cluster_of(hardware: str, devices: str, memory_limit: int | None, precision: str) -> Cluster:
    """The cluster that the options name; `memory_limit`: bytes of each device that a plan may use at most.

    UsageError where it is not so named, or `devices` are not so many; InputError where a profile cannot be read, or
    prices no computing.
    """
    from planner.uniform.mixed import Cluster, Kind

    counts = _counts(hardware)
    total = sum(counts.values())
    if devices != str(total):
        raise UsageError(
            f"--devices {devices}: expected {total}, since --hardware {hardware} names so many in all; give --devices "
            f"{total}, or other counts"
        )
    kinds = []
    for name, count in counts.items():
        profile = profile_of(name)
        if profile.device is None or profile.axes is not None:
            raise InputError(
                f"--hardware {hardware}: profile {name} describes no device and links of its own ([device], [server]); "
                "name a machine"
            )
        kinds.append(Kind.of(profile, count, memory_limit))
    return Cluster(tuple(kinds))


def _counts(hardware: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in hardware.split("+"):
        name, colon, count = part.strip().rpartition(":")
        if not colon or not name or not count.isascii() or not count.isdigit() or not 0 < int(count) < 10**6:
            raise UsageError(f"--hardware {hardware}: expected NAME:COUNT in {part!r}, as in {EXAMPLE}")
        if name in found:
            raise UsageError(f"--hardware {hardware}: names {name} twice; add its counts up")
        found[name] = int(count)
    if len(found) == 1:
        name, number = next(iter(found.items()))
        raise UsageError(f"--hardware {hardware}: names one kind; write --hardware {name} --devices {number}")
    if len(found) > _MOST_KINDS:
        raise UsageError(f"--hardware {hardware}: expected at most {_MOST_KINDS} kinds of devices, found {len(found)}")
    return found
