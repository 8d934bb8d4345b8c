"""Which part of a tensor every rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.ir import DeviceMesh, Layout

__all__ = ["Shard", "shards"]


@dataclass(frozen=True, slots=True)
class Shard:
    """`ranges`: first and one past the last index, for every dimension; of one that is split in equal parts, in each of
    them.  `ranks`: all that hold it, ascending; more than one are replicas of each other, or, where a sum is pending,
    each its own addend."""

    ranges: tuple[tuple[int, int], ...]
    ranks: tuple[int, ...]


def shards(layout: Layout, shape: Sequence[int], mesh: DeviceMesh) -> tuple[Shard, ...]:
    """The distinct parts, by their first rank.  ValueError where a dimension does not divide."""
    found: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for rank in range(mesh.devices):
        region = layout.region_in_parts(tuple(shape), mesh, rank)
        found.setdefault(tuple((s.start, s.stop) for s in region), []).append(rank)
    return tuple(Shard(ranges, tuple(ranks)) for ranges, ranks in found.items())
