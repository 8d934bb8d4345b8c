"""Seconds a collective takes on a group of devices.

Bytes B are those of the *whole tensor of the group*:

- all_gather: the result each rank ends with;
- reduce_scatter, all_reduce: the operand each rank begins with;
- all_to_all: the tensor over all ranks of the group, of which each holds B/n before and after;
- permute, broadcast: the message (for permute, what each rank sends to its one partner).

Bus bandwidth W of a group: what each rank sends and receives per second when all links of the group are
busy.  With i ranks on each island, m on each server, s servers and rails of their own into the network,

    W = min(links of the island(i), i * links between islands, m * network per device)

over the levels the group crosses.  With S steps of latency within and across servers (`_steps`):

    all_reduce      2 (n-1)/n B / W         ring, mesh
                    2 B / (0.92 W)          tree across servers
                    B / in-switch rate      reduction in the switch, one server
    all_gather, reduce_scatter   (n-1)/n B / W
    broadcast       B / W  (ring)           2 (n-1)/n B / W  (mesh: scatter, then all-gather)
    permute         B / slowest link of a pair
    all_to_all      max over levels of the bytes crossing it / its bandwidth per device

The cheapest of the profile's protocols and algorithms is taken, as NCCL's tuner does
(NVIDIA/nccl src/graph/tuning.cc); the alpha-beta model is Hockney's, as used by Thakur, Rabenseifner and
Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1), 2005.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cost_models.group import GroupShape, group_on_mesh
from cost_models.machine import Algorithm, AxesSpec, HardwareProfile, ProtocolSpec

__all__ = ["COLLECTIVES", "Collective", "CollectiveModel", "GroupShape", "group_on_mesh"]

FloatArray = NDArray[np.float64]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "broadcast"]
COLLECTIVES: Final[tuple[str, ...]] = get_args(Collective)

# NVIDIA/nccl src/graph/tuning.cc: a tree all-reduce keeps 92 % of the ring's bandwidth.
TREE_BANDWIDTH_FRACTION: Final = 0.92


@dataclass(frozen=True, slots=True)
class CollectiveModel:
    """Prices collectives on the machine of `profile`."""

    profile: HardwareProfile

    def group(self, mesh_shape: tuple[int, ...], axes: tuple[int, ...]) -> GroupShape:
        """The worst-placed group over `axes` of a mesh laid row-major over this machine's servers."""
        per_server = self.profile.devices_per_server
        if per_server is None:
            per_server = math.prod(mesh_shape)
        return group_on_mesh(tuple(mesh_shape), tuple(axes), per_server, self.profile.devices_per_island)

    def seconds(self, kind: Collective, size_bytes: ArrayLike, group: GroupShape) -> FloatArray:
        """Seconds of the collective on tensors of `size_bytes` (see the module for what they count).

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
        best = np.full(size.shape, np.inf)
        for latency, per_byte in self.terms(kind, group):
            best = np.minimum(best, latency + per_byte * size)
        return np.where(size > 0, best, 0.0)

    def terms(self, kind: Collective, group: GroupShape) -> tuple[tuple[float, float], ...]:
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
    found = set()
    for protocol in profile.protocols:
        for algorithm in protocol.algorithms:
            per_byte = _seconds_per_byte(profile, protocol, algorithm, kind, group)
            if per_byte is not None:
                found.add((_latency(protocol, algorithm, kind, group), per_byte))
    # A profile whose protocols all lack a way for this kind is refused when it is read (ring or mesh is required).
    return tuple(sorted(found))


def _seconds_per_byte(
    profile: HardwareProfile,
    protocol: ProtocolSpec,
    algorithm: Algorithm,
    kind: Collective,
    group: GroupShape,
) -> float | None:
    """Inverse bandwidth of one way to carry out the collective; None where it does not apply."""
    n = group.ranks
    if algorithm == "in_switch":
        rate = None if profile.server is None else profile.server.in_switch_all_reduce_bytes_per_s
        if kind != "all_reduce" or group.servers > 1 or rate is None:
            return None
        return 1 / (rate * protocol.bandwidth_fraction)
    if algorithm == "tree":
        if kind != "all_reduce" or group.servers == 1:
            return None
        return 2 / (TREE_BANDWIDTH_FRACTION * _kept(protocol, group, bus_bandwidth(profile, group)))
    if kind == "permute":
        return 1 / _kept(protocol, group, pair_bandwidth(profile, group))
    if kind == "all_to_all":
        return max(share / _kept(protocol, group, w) for share, w in _crossings(profile, group)) / n
    bandwidth = _kept(protocol, group, bus_bandwidth(profile, group))
    if kind == "broadcast" and algorithm == "ring":
        return 1 / bandwidth
    twice = 2 if kind in ("all_reduce", "broadcast") else 1
    return twice * (n - 1) / n / bandwidth


def _kept(protocol: ProtocolSpec, group: GroupShape, bandwidth: float) -> float:
    """What the protocol keeps of the links' bandwidth."""
    limit = (
        protocol.server_bandwidth_limit_bytes_per_s
        if group.servers == 1
        else protocol.network_bandwidth_limit_bytes_per_s
    )
    kept = bandwidth * protocol.bandwidth_fraction
    return kept if limit is None else min(kept, limit)


def _latency(protocol: ProtocolSpec, algorithm: Algorithm, kind: Collective, group: GroupShape) -> float:
    inner, outer = _steps(algorithm, kind, group)
    return protocol.base_latency_s + inner * protocol.server_step_latency_s + outer * protocol.network_step_latency_s


def _steps(algorithm: Algorithm, kind: Collective, group: GroupShape) -> tuple[int, int]:
    """Steps whose latencies add up, within servers and across them."""
    n, m, s = group.ranks, group.ranks_per_server, group.servers
    if kind == "permute":
        return (1, 0) if s == 1 else (0, 1)
    rounds = math.ceil(math.log2(s))
    phases = 2 if kind == "all_reduce" else 1
    if algorithm == "in_switch":
        return 1, 0
    if kind == "all_to_all":
        # Messages to all peers are in flight together; starting them grows slowly with their number.
        return math.ceil(math.log2(m)), rounds
    if algorithm == "tree":
        return 2 * (m - 1), 2 * rounds
    if algorithm == "mesh":
        phases = 2 if kind == "broadcast" else phases
        return phases * (m > 1), phases * rounds
    across = phases * (s - 1)
    return phases * (n - 1) - across, across


def bus_bandwidth(profile: HardwareProfile, group: GroupShape) -> float:
    """Bytes/s each rank sends when a ring or mesh over the group keeps all its links busy."""
    levels = _levels(profile, group)
    return min(below * per_device for _, below, per_device in levels)


def pair_bandwidth(profile: HardwareProfile, group: GroupShape) -> float:
    """Bytes/s of the slowest path between two ranks of the group."""
    server, network = profile.server, profile.network
    assert server is not None
    assert network is not None  # a profile without them has `axes`
    if group.servers > 1:
        return network.bandwidth_bytes_per_s
    if profile.island is not None and group.on_island(profile.island.devices) == group.ranks_per_server:
        return profile.island.bus_bandwidth(2)
    return server.bus_bandwidth(2)


def _levels(profile: HardwareProfile, group: GroupShape) -> list[tuple[int, int, float]]:
    """(ranks reached so far, ranks below the level, bytes/s per device) of each level the group crosses."""
    server, network = profile.server, profile.network
    assert server is not None
    assert network is not None  # a profile without them has `axes`
    m = group.ranks_per_server
    levels = []
    below = 1
    if profile.island is not None:
        below = group.on_island(profile.island.devices)
        if below > 1:
            levels.append((below, 1, profile.island.bus_bandwidth(below)))
    if m > below:
        levels.append((m, below, server.bus_bandwidth(math.ceil(m / below))))
    if group.servers > 1:
        levels.append((group.ranks, m, network.bandwidth_bytes_per_s))
    return levels


def _crossings(profile: HardwareProfile, group: GroupShape) -> list[tuple[float, float]]:
    """Of an all-to-all: (fraction of a rank's bytes that leaves at a level, bytes/s per device there)."""
    n = group.ranks
    reached = 1
    out = []
    for ranks, _, per_device in _levels(profile, group):
        out.append(((ranks - reached) / n, per_device))
        reached = ranks
    return out
