"""Levels of links a group crosses, from the innermost out: island, server, super-node, network.

Bus bandwidth W of a group: what each rank sends and receives per second when a ring or mesh over the group keeps
all its links busy.  A level joins parts of r ranks each; all r drive its links together, so that

    W = min over the levels crossed of r * (bytes/s per device at the level)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from .group import GroupShape
from .machine import HardwareProfile, LinkSpec, NetworkSpec

__all__ = ["Level", "bus_bandwidth", "levels_of", "pair_bandwidth"]


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a group.

    Attributes:
        kind: which links these are.
        parts: parts joined, at least 2.
        below: ranks of each part.
        reached: ranks of the group that are joined up to here.
        device_bytes_per_s: what each rank sends over these links while all of the group do.
        step_latency_s: of one step, where the links state it.
        direct: whether every part reaches every other in one step.
    """

    kind: Literal["island", "server", "supernode", "network"]
    parts: int
    below: int
    reached: int
    device_bytes_per_s: float
    step_latency_s: float | None = None
    direct: bool = True

    @property
    def bus_bytes_per_s(self) -> float:
        """Bytes/s of all ranks of one part together."""
        return self.below * self.device_bytes_per_s


def parts_of(profile: HardwareProfile) -> tuple[LinkSpec, NetworkSpec]:
    """Links of the server and network; a profile without them has `axes` and is priced by these."""
    if profile.server is None or profile.network is None:
        raise ValueError(f"hardware profile {profile.name!r}: expected the links of a machine, found none")
    return profile.server, profile.network


def levels_of(profile: HardwareProfile, group: GroupShape) -> tuple[Level, ...]:
    """Levels the group crosses, innermost first; empty for a group of one rank."""
    server, network = parts_of(profile)
    m = group.ranks_per_server
    busy = m * group.concurrent
    found = []
    below = 1
    if profile.island is not None:
        below = group.on_island(profile.island.devices)
        if below > 1:
            found.append(_inside("island", profile.island, below, 1, below, busy))
    if m > below:
        found.append(_inside("server", server, math.ceil(m / below), below, m, busy))
    reached = m
    if profile.supernode is not None and group.servers > group.supernodes:
        reached = math.ceil(group.ranks / group.supernodes)
        found.append(_inside("supernode", profile.supernode, math.ceil(group.servers / group.supernodes), m, reached))
    outer = group.servers if profile.supernode is None else group.supernodes
    if outer > 1:
        rail = network.group_bandwidth(m, group.concurrent) / m
        found.append(Level("network", outer, reached, group.ranks, rail))
    return tuple(found)


def _inside(
    kind: Literal["island", "server", "supernode"],
    links: LinkSpec,
    parts: int,
    below: int,
    reached: int,
    busy: int | None = None,
) -> Level:
    # The devices that share a host count, not the parts.
    bandwidth = links.bus_bandwidth(parts, busy)
    return Level(
        kind, parts, below, reached, bandwidth, links.step_latency_s, links.topology in ("full_mesh", "switch")
    )


def bus_bandwidth(profile: HardwareProfile, group: GroupShape) -> float:
    """W of the group in bytes/s (see the module)."""
    return min(level.bus_bytes_per_s for level in levels_of(profile, group))


def pair_bandwidth(profile: HardwareProfile, group: GroupShape) -> float:
    """Bytes/s of the slowest path between two ranks of the group."""
    server, _ = parts_of(profile)
    outermost = levels_of(profile, group)[-1]
    if outermost.kind in ("network", "supernode"):
        return outermost.device_bytes_per_s
    links = server if outermost.kind == "server" or profile.island is None else profile.island
    return links.bus_bandwidth(2, group.ranks_per_server * group.concurrent)
