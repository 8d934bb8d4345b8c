"""Communication groups: how the ranks of a group lie on servers and on the islands within them.

Ranks are numbered in the row-major order of the logical mesh and fill server after server, island after island.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

__all__ = ["GroupShape", "group_of_stages", "group_on_mesh"]


@dataclass(frozen=True, slots=True)
class GroupShape:
    """A communication group.

    Attributes:
        ranks_per_server: members on each server (the fewest, where servers differ).
        servers: servers the group touches.
        stride: distance in ranks between neighbours.
        ranks_per_island: members on each island of a server; None: as `stride` makes it.
        total: members in all; None: `ranks_per_server` x `servers`.
        supernodes: super-nodes the group touches, where servers are joined to such.
        concurrent: groups of the same kind on each server, this one included, that communicate at once and share
            what its devices share (a PCIe root, rails).
        axes: (index, size) of the mesh axes the group spans; what an alpha-beta profile prices by.

    Raises:
        ValueError: a count below 1, or more ranks per island than per server.
    """

    ranks_per_server: int
    servers: int = 1
    stride: int = 1
    ranks_per_island: int | None = None
    total: int | None = None
    axes: tuple[tuple[int, int], ...] = ()
    supernodes: int = 1
    concurrent: int = 1

    def __post_init__(self) -> None:
        for name in (
            *("ranks_per_server", "servers", "stride", "ranks_per_island", "total"),
            *("supernodes", "concurrent"),
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"group: {name}: expected at least 1, found {value}")
        if self.ranks_per_island is not None and self.ranks_per_island > self.ranks_per_server:
            raise ValueError(
                f"group: ranks_per_island: expected at most ranks_per_server = {self.ranks_per_server}, "
                f"found {self.ranks_per_island}"
            )
        if self.supernodes > self.servers:
            raise ValueError(f"group: supernodes: expected at most servers = {self.servers}, found {self.supernodes}")

    @property
    def ranks(self) -> int:
        """Members of the group."""
        return self.total if self.total is not None else self.ranks_per_server * self.servers

    def on_island(self, island_devices: int) -> int:
        """Members on one island of `island_devices` devices."""
        if self.ranks_per_island is not None:
            return self.ranks_per_island
        return min(self.ranks_per_server, max(1, island_devices // self.stride))


@lru_cache(maxsize=4096)
def group_on_mesh(
    mesh_shape: tuple[int, ...],
    axes: tuple[int, ...],
    devices_per_server: int,
    devices_per_island: int | None = None,
    devices_per_supernode: int | None = None,
) -> GroupShape:
    """The worst-placed group over `axes` (indices into `mesh_shape`), all such groups working at once.

    Worst is the one that touches most super-nodes, then most servers, then has fewest members on a server, then
    spreads over most islands.  `concurrent` counts the groups that a full server then holds.

    Raises:
        ValueError: an axis out of range or named twice, or a size below 1.
    """
    if len(set(axes)) != len(axes) or any(not 0 <= a < len(mesh_shape) for a in axes):
        raise ValueError(f"mesh axes {axes}: expected distinct indices into the mesh {mesh_shape}")
    sizes = (*mesh_shape, devices_per_server, 1 if devices_per_island is None else devices_per_island)
    if any(s < 1 for s in sizes):
        raise ValueError(f"mesh {mesh_shape}, {devices_per_server} devices per server: expected sizes of at least 1")
    spanned = tuple((a, mesh_shape[a]) for a in axes)
    count = math.prod(s for _, s in spanned)
    if count == 1:
        return GroupShape(1, axes=spanned)
    ranks = np.arange(math.prod(mesh_shape)).reshape(mesh_shape)
    groups = np.moveaxis(ranks, sorted(axes), range(-len(axes), 0)).reshape(-1, count)
    stride = min(math.prod(mesh_shape[a + 1 :]) for a, s in spanned if s > 1)
    placement = devices_per_server, devices_per_island, devices_per_supernode
    return _worst(groups, math.prod(mesh_shape), stride, spanned, *placement)


def group_of_stages(
    stages: tuple[int, ...],
    devices: int,
    count: int,
    devices_per_server: int,
    devices_per_island: int | None = None,
    devices_per_supernode: int | None = None,
) -> GroupShape:
    """The worst-placed group of the ranks at one place of these stages, of `count` stages of so many `devices` in a
    row; arguments else and errors as of `group_on_mesh`."""
    groups = np.arange(devices)[:, None] + devices * np.array(stages)[None, :]
    stride = devices * min((b - a for a, b in pairwise(stages)), default=1)
    placement = devices_per_server, devices_per_island, devices_per_supernode
    return _worst(groups, devices * count, stride, ((0, len(stages)),), *placement)


def _worst(
    groups: np.ndarray,
    devices: int,
    stride: int,
    spanned: tuple[tuple[int, int], ...],
    devices_per_server: int,
    devices_per_island: int | None,
    devices_per_supernode: int | None,
) -> GroupShape:
    """Of groups (a row each) of `devices` ranks."""
    # Groups one server apart in start lie alike, so each start within a server is looked at once.
    seen: dict[int, np.ndarray] = {}
    period = math.lcm(devices_per_server, devices_per_island or 1, devices_per_supernode or 1)
    for group in groups:
        seen.setdefault(int(group[0]) % period, group)
    placed = []
    for group in seen.values():
        supernodes = len(set((group // devices_per_supernode).tolist())) if devices_per_supernode else 1
        placed.append((supernodes, *_placed(group, devices_per_server, devices_per_island)))
    supernodes, servers, fewest, on_island = min(placed, key=lambda p: (-p[0], -p[1], p[2], p[3]))
    return GroupShape(
        ranks_per_server=fewest,
        servers=servers,
        stride=stride,
        ranks_per_island=on_island if devices_per_island is not None else None,
        total=groups.shape[1],
        axes=spanned,
        supernodes=supernodes,
        concurrent=math.ceil(min(devices, devices_per_server) / fewest),
    )


def _placed(group: np.ndarray, per_server: int, per_island: int | None) -> tuple[int, int, int]:
    """Servers touched, fewest members on one of them, fewest members on an island of one."""
    on_server = Counter((group // per_server).tolist())
    fewest = min(on_server.values())
    if per_island is None:
        return len(on_server), fewest, fewest
    # Islands are numbered within their server, whose size they divide.
    on_island = Counter((group // per_island).tolist())
    return len(on_server), fewest, min(fewest, *on_island.values())
