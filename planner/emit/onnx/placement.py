"""Sharding specifications as layouts: which mesh of the ranks they mean, and how each tensor lies on it.

A specification gives every device the index of its shard along each divided dimension.  Over the ranks 0 … n−1 of a
mesh such an index is a number of mixed radix made of some digits of the rank: a digit with stride t and size s is
(rank // t) mod s, and a mesh that has cuts at t and t·s can name it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx
from numpy.typing import NDArray

from planner.ir import DeviceMesh, Layout
from planner.ir.mesh import AXIS_NAMES

__all__ = ["Digit", "Placement", "common_mesh", "layout_of", "placement_of"]


@dataclass(frozen=True, slots=True)
class Digit:
    """(rank // stride) mod size."""

    stride: int
    size: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Per dimension the digits of the rank that number its shards, outermost first."""

    dims: tuple[tuple[Digit, ...], ...]

    @property
    def cuts(self) -> frozenset[int]:
        """Distances in ranks at which a mesh must be cut to name the digits."""
        digits = [d for dim in self.dims for d in dim]
        return frozenset(n for d in digits for n in (d.stride, d.stride * d.size))


def placement_of(spec: onnx.ShardingSpecProto, shape: Sequence[int], devices: int, first: int = 0) -> Placement:
    """Where a specification without problems (`annotation_problems`) puts a tensor among `devices` from `first` on.

    ValueError, saying what, where no mesh of the devices can express it.
    """
    counts = [1] * len(shape)
    for dim in spec.sharded_dim:
        if not -len(shape) <= dim.axis < len(shape):
            raise ValueError(f"axis {dim.axis} of a tensor of {len(shape)} dimensions")
        parts = 1
        for s in dim.simple_sharding:
            parts = min(parts * s.num_shards, len(spec.device) + 1)
        counts[dim.axis % len(shape)] = parts
    uneven = [d for d, n in enumerate(counts) if n < 1 or shape[d] % n]
    if uneven:
        raise ValueError(f"dimension {uneven[0]} of size {shape[uneven[0]]} in {counts[uneven[0]]} shards, not evenly")
    shard = _shards(spec, devices, first)
    if math.prod(counts) != len(spec.device) or (shard < 0).any():
        held = int((shard >= 0).sum())
        raise ValueError(f"{math.prod(counts)} shards on {held} of {devices} devices")
    order = [dim.axis % len(shape) for dim in spec.sharded_dim]  # row-major in the order in which they are given
    index: dict[int, NDArray[np.int64]] = {}
    for d in reversed(order):
        shard, index[d] = np.divmod(shard, counts[d])
    return Placement(tuple(_digits(index[d], counts[d]) if d in index else () for d in range(len(shape))))


def _shards(spec: onnx.ShardingSpecProto, devices: int, first: int) -> NDArray[np.int64]:
    """Which shard every device holds; −1 for none.  ValueError where others hold one."""
    groups = {entry.key: entry.value for entry in spec.index_to_device_group_map}
    shard = np.full(devices, -1, dtype=np.int64)
    for i, d in enumerate(spec.device):
        for rank in groups[d] if d < 0 else (d,):
            if not first <= rank < first + devices:
                raise ValueError(f"device {rank} is of another pipeline stage, which has {devices} each")
            shard[rank - first] = i
    return shard


def _digits(index: NDArray[np.int64], count: int) -> tuple[Digit, ...]:
    """The digits of the rank that make up the index, outermost first.  ValueError where it is made of others."""
    ranks, stride = len(index), 1
    found: list[tuple[int, Digit]] = []
    while stride < ranks:
        weight = int(index[stride])
        run = np.arange(ranks // stride) * weight
        differs = np.flatnonzero(index[::stride][: len(run)] != run)
        longest = int(differs[0]) if len(differs) else len(run)
        size = max((n for n in range(2, longest + 1) if ranks // stride % n == 0), default=0)
        if not size:
            raise ValueError("devices in an order that no mesh of them has")
        if weight:
            found.append((weight, Digit(stride, size)))
        stride *= size
    found.sort(key=lambda pair: -pair[0])
    reach = 1
    for weight, digit in reversed(found):
        if weight != reach:
            raise ValueError("devices in an order that no mesh of them has")
        reach *= digit.size
    numbers = np.arange(ranks)
    made = sum((numbers // d.stride % d.size * w for w, d in found), np.zeros(ranks, dtype=np.int64))
    if reach != count or not np.array_equal(made, index):
        raise ValueError("devices in an order that no mesh of them has")
    return tuple(d for _, d in found)


def common_mesh(placements: Iterable[Placement], devices: int) -> DeviceMesh:
    """The coarsest mesh that names the most placements: those met most often first, others as far as they nest."""
    chain = [1, devices]
    for cuts, _ in Counter(p.cuts for p in placements).most_common():
        longer = sorted({*chain, *cuts})
        if len(longer) - 1 <= len(AXIS_NAMES) and all(b % a == 0 for a, b in pairwise(longer)):
            chain = longer
    return DeviceMesh.of(*(b // a for a, b in reversed(list(pairwise(chain))))) if devices > 1 else DeviceMesh.of(1)


def layout_of(placement: Placement, mesh: DeviceMesh) -> Layout:
    """The placement in axes of the mesh.  ValueError where the mesh has not the cuts."""
    strides = {a.name: mesh.stride(a.name) for a in mesh.axes}
    if not placement.cuts <= {1, mesh.devices, *strides.values()}:
        raise ValueError(f"shards that do not nest with those of most others, which mean a mesh {mesh}")

    def axes(digit: Digit) -> tuple[str, ...]:
        return tuple(n for n, s in strides.items() if digit.stride <= s < digit.stride * digit.size)

    return Layout(tuple(tuple(a for digit in dim for a in axes(digit)) for dim in placement.dims))
