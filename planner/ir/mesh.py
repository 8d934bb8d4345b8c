"""Logical device meshes: named axes over the ranks 0 … n-1, row-major, outermost (slowest) first."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

__all__ = ["DeviceMesh", "MeshAxis"]

AXIS_NAMES = "xyzwvu"


@dataclass(frozen=True, slots=True)
class MeshAxis:
    name: str
    size: int


@dataclass(frozen=True)
class DeviceMesh:
    """Rank r has coordinates of the mixed-radix number r; neighbours along the last axis are adjacent ranks."""

    axes: tuple[MeshAxis, ...]

    @classmethod
    def of(cls, *sizes: int) -> DeviceMesh:
        """Mesh of the given sizes with the default axis names x, y, z, …"""
        return cls(tuple(MeshAxis(AXIS_NAMES[i], s) for i, s in enumerate(sizes)))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.axes)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(a.size for a in self.axes)

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {a.name: a.size for a in self.axes}

    @property
    def devices(self) -> int:
        return math.prod(self.shape)

    def size(self, names: Iterable[str]) -> int:
        """Number of ranks in a group over these axes."""
        sizes, ranks = self.sizes, 1
        for name in names:  # asked for by the million: no generator
            ranks *= sizes[name]
        return ranks

    def stride(self, name: str) -> int:
        """Distance in ranks between neighbours along the axis."""
        i = self.names.index(name)
        return math.prod(self.shape[i + 1 :])

    def coordinates(self, rank: int) -> dict[str, int]:
        out = {}
        for a in reversed(self.axes):
            rank, out[a.name] = divmod(rank, a.size)
        return out

    def rank(self, coordinates: dict[str, int]) -> int:
        r = 0
        for a in self.axes:
            r = r * a.size + coordinates[a.name]
        return r

    def groups(self, names: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """Partition of the ranks into the communication groups over the given axes.

        Within a group the ranks are ordered by their coordinates on `names` in the order given
        (first named is slowest), which is the order in which shards of a dimension split by
        those axes follow each other.
        """
        return _groups(self, tuple(names))

    def __str__(self) -> str:
        return "x".join(map(str, self.shape))


@lru_cache(maxsize=4096)
def _groups(mesh: DeviceMesh, names: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    found: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    for r in range(mesh.devices):
        c = mesh.coordinates(r)
        rest = tuple(c[n] for n in mesh.names if n not in names)
        found.setdefault(rest, []).append((tuple(c[n] for n in names), r))
    return tuple(tuple(r for _, r in sorted(v)) for v in found.values())
