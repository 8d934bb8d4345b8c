"""Seconds a collective takes on a group of devices.

Bytes B are those of the *whole tensor of the group*:

- all_gather: the result each rank ends with;
- reduce_scatter, all_reduce: the operand each rank begins with;
- all_to_all: the tensor over all ranks of the group, of which each holds B/n before and after;
- permute, broadcast: the message (for permute, what each rank sends to its one partner).

A collective can be carried out in several ways, each an affine function of B (Hockney's alpha-beta model), and its
price is the cheapest: a concave function of B, so that a message never costs more than its parts.  The ways are
those of NCCL's tuner (`nccl`), of a library described by its latencies (`algorithms`), or, here, those of published
alpha-beta cases.  What measurements add to a library's own model stands in the profile (`MeasuredSpec`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .algorithms import protocol_terms
from .group import GroupShape, group_of_stages, group_on_mesh
from .machine import AxesSpec, HardwareProfile
from .nccl_prices import nccl_terms

__all__ = ["COLLECTIVES", "Collective", "CollectiveModel", "GroupShape", "Ways", "cheapest", "group_on_mesh"]

FloatArray = NDArray[np.float64]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "broadcast"]
COLLECTIVES: Final[tuple[str, ...]] = get_args(Collective)


Ways = tuple[tuple[float, float], ...]  # to carry out a collective: seconds, and seconds per byte


def cheapest(ways: Ways, size_bytes: float) -> float:
    """Seconds of the cheapest way for one tensor of more than no bytes: as `CollectiveModel.seconds`, to the last bit.
    Of tensors one by one, of which a search has some ten thousand, an array of each would take several times as long.
    """
    return min(latency + per_byte * size_bytes for latency, per_byte in ways)


@dataclass(frozen=True, slots=True)
class CollectiveModel:
    """Prices collectives on the machine of `profile`."""

    profile: HardwareProfile

    def group(self, mesh_shape: tuple[int, ...], axes: tuple[int, ...]) -> GroupShape:
        """The worst-placed group over `axes` of a mesh laid row-major over this machine's servers."""
        per_server = self.profile.devices_per_server
        if per_server is None:
            per_server = math.prod(mesh_shape)
        return group_on_mesh(
            tuple(mesh_shape),
            tuple(axes),
            per_server,
            self.profile.devices_per_island,
            self.profile.devices_per_supernode,
        )

    def group_of_stages(self, stages: tuple[int, ...], devices: int, count: int) -> GroupShape:
        """The worst-placed group of the ranks at one place of these of `count` stages, which have so many devices."""
        per_server = self.profile.devices_per_server
        if per_server is None:
            per_server = devices * count
        return group_of_stages(
            stages, devices, count, per_server, self.profile.devices_per_island, self.profile.devices_per_supernode
        )

    def seconds(
        self, kind: Collective, size_bytes: ArrayLike, group: GroupShape, *, concurrent: int | None = None
    ) -> FloatArray:
        """Seconds of the collective on tensors of `size_bytes` (see the module for what they count).

        `concurrent` groups of the same kind on each server share what its devices share; None: as many as the group
        states, which for `group` is all of the mesh.
        Zero for a group of one rank and for zero bytes; shape of `size_bytes`.

        Raises:
            ValueError: unknown kind, negative or non-finite bytes, or a group the profile cannot place
                (an alpha-beta profile needs `group.axes`; see `group`).
        """
        if kind not in COLLECTIVES:
            raise ValueError(f"collective {kind!r}: expected one of {', '.join(COLLECTIVES)}")
        size = np.asarray(size_bytes, dtype=np.float64)
        if not bool(np.all((size >= 0) & np.isfinite(size))):
            raise ValueError(f"bytes of {kind}: expected finite sizes of at least 0, found {size_bytes!r}")
        if group.ranks == 1:
            return np.zeros(size.shape)
        if concurrent is not None:
            group = replace(group, concurrent=concurrent)
        best = np.full(size.shape, np.inf)
        for latency, per_byte in self.terms(kind, group):
            best = np.minimum(best, latency + per_byte * size)
        return np.where(size > 0, best, 0.0)

    def terms(self, kind: Collective, group: GroupShape) -> Ways:
        """The (seconds, seconds per byte) of every way to carry out the collective; the cheapest is its price."""
        if self.profile.axes is not None:
            return _axes_terms(self.profile.axes, kind, group.axes)
        return _link_terms(self.profile, kind, group)


@lru_cache(maxsize=65536)
def _axes_terms(
    axes: AxesSpec, kind: Collective, spanned: tuple[tuple[int, int], ...]
) -> tuple[tuple[float, float], ...]:
    """One axis after the other, in every order: what is gathered last is the largest.

    An all-reduce over several axes may also scatter along all but the last and gather back.
    """
    used = tuple((a, n) for a, n in spanned if n > 1)
    if not used:
        raise ValueError("group.axes: expected the mesh axes of the group (CollectiveModel.group), found none")
    for a, _ in used:
        if a >= len(axes.alpha):
            raise ValueError(f"mesh axis {a}: expected an index below {len(axes.alpha)}, the axes of the profile")
    found = set()
    for order in permutations(used):
        found.add(_sum(axes, [(kind, axis) for axis in order]))
        if kind == "all_reduce":
            out: list[tuple[Collective, tuple[int, int]]] = [("reduce_scatter", axis) for axis in order[:-1]]
            back: list[tuple[Collective, tuple[int, int]]] = [("all_gather", axis) for axis in reversed(order[:-1])]
            found.add(_sum(axes, [*out, ("all_reduce", order[-1]), *back]))
    return tuple(sorted(found))


def _sum(axes: AxesSpec, steps: list[tuple[Collective, tuple[int, int]]]) -> tuple[float, float]:
    """Seconds and seconds per byte of steps along single axes.

    `share` is the fraction of the tensor at hand: a reduce-scatter divides it by the ranks of its axis and
    a later all-gather restores it.  All-gathers alone are priced backwards, from the whole result.
    """
    latency, per_byte, share = 0.0, 0.0, 1.0
    restoring = any(kind != "all_gather" for kind, _ in steps)
    for kind, (a, n) in steps:
        if kind == "all_gather" and restoring:
            share *= n
        latency += axes.alpha[a] + getattr(axes.offset, kind)
        per_byte += axes.beta[a] * _axis_factor(kind, n, axes.all_to_all_penalty) * share
        if kind == "reduce_scatter" or (kind == "all_gather" and not restoring):
            share /= n
    return latency, per_byte


def _axis_factor(kind: Collective, n: int, penalty: float | None) -> float:
    """Bytes on the wire of one axis per byte of the tensor."""
    if kind == "all_reduce":
        return 2 * (n - 1) / n
    if kind == "all_to_all":
        return (n - 1) / n**2 * (n / 2 if penalty is None else penalty)
    return 1.0 if kind in ("permute", "broadcast") else (n - 1) / n


@lru_cache(maxsize=65536)
def _link_terms(profile: HardwareProfile, kind: Collective, group: GroupShape) -> tuple[tuple[float, float], ...]:
    found = protocol_terms if profile.nccl is None else nccl_terms
    return _envelope(found(profile, kind, group))


def _envelope(terms: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The terms that are cheapest at some size from 0 on, by rising latency."""
    hull: list[tuple[float, float]] = []
    for latency, per_byte in sorted(terms):
        if hull and per_byte >= hull[-1][1]:
            continue
        while len(hull) > 1 and _crossing(hull[-2], (latency, per_byte)) <= _crossing(hull[-2], hull[-1]):
            hull.pop()
        hull.append((latency, per_byte))
    return tuple(hull)


def _crossing(first: tuple[float, float], later: tuple[float, float]) -> float:
    """Bytes from which the second term, of higher latency and bandwidth, is the cheaper."""
    return (later[0] - first[0]) / (first[1] - later[1])
