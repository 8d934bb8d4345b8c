"""NCCL's tuner: latency and bandwidth of every algorithm and protocol on a group, as the library computes them.

Constants and formulas are those of NVIDIA/nccl@5067397c, src/graph/tuning.cc (`ncclTopoTuneModel`,
`ncclTopoGetAlgoTime`).  They describe the library, not a machine; what measurements of a machine add to them
stands in its profile (`MeasuredSpec`).  With n ranks on s nodes, m = n/s, B bytes of the whole tensor, W the
bandwidth of all channels together (bytes/s), c the channels:

    ring        steps * latency + B * steps / n / W_ring          steps = 2 (n-1) all-reduce, n-1 gather, scatter
    tree        2 ((m-1) latency + floor(log2 s) network latency) + 2 B / W_tree          all-reduce
    NVLS        latency + B * 2 (n-1) / n / W_nvls                                        all-reduce, one node
    NVLSTree    latency + 2 floor(log2 s) network latency + the same                      all-reduce, s > 1
    PAT         floor(log2 s) network latency / 3.5 + 2.8 us n + B / (0.75 W)             gather, scatter, m = 1

    W_ring  LL min(W/2, LL limit)     LL128 min(0.92 W, c * limit)                   Simple W
    W_tree  with T = min(0.92 W, c * limit): LL min(T/3.8, LL limit), LL128 min(7/9 T or 15/16 T, c * limit), Simple T

Two of its corrections are no affine function of B and are taken as follows.  A tree's bandwidth is multiplied by
a factor of the size's power of two: priced by the least concave function above it (a few affine pieces).  A
Simple ring across nodes pays 1.4 (before Ampere 1.9) times its latency from 64 bytes per channel and rank on:
charged at any size, since LL is chosen below.  Left out: CollNet, NVLS gathers and scatters (the tuner prefers
the ring), the factor 0.85 of trees with a single NIC.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

__all__ = ["PROTOCOLS", "Fabric", "Protocol", "Way", "nccl_ways", "ring_bandwidth", "ring_latency"]

Generation = Literal["volta", "ampere", "hopper", "blackwell"]
Wire = Literal["nvlink", "pci"]
Host = Literal["intel", "amd", "other"]
Protocol = Literal["LL", "LL128", "Simple"]
PROTOCOLS: Final[tuple[Protocol, ...]] = ("LL", "LL128", "Simple")

_US: Final = 1e-6
_GB: Final = 1e9
# Microseconds by protocol (LL, LL128, Simple).
_BASE: Final = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4), "pat": (8.0, 8.0, 8.0)}
_HOP: Final[dict[str, dict[str, tuple[float, float, float]]]] = {
    "nvlink": {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4), "nvls": (0, 0, 25.0), "nvls_tree": (0, 0, 25.0)},
    "pci": {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7), "nvls": (0, 0, 0), "nvls_tree": (0, 0, 0)},
    "net": {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0), "nvls_tree": (0, 0, 20.9), "pat": (0, 0, 14.0)},
}
# GB/s on one node, two, three and more.  Rows of `_LL_LIMIT`: one node by generation, several by host CPU.
_LL_LIMIT: Final = {
    "volta": (39.0, 39.0, 20.4),
    "ampere": (87.7, 22.5, 19.0),
    "hopper": (141.0, 45.0, 35.0),
    "blackwell": (282.0, 90.0, 70.0),
}
_RING_LL128: Final = {
    "volta": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 36.7),
    "blackwell": (40.0, 40.0, 40.0),
}
_TREE_LL128: Final = {
    "volta": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 29.0),
    "blackwell": (55.6, 31.67, 20.0),
}
_TREE: Final = {
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (38.7, 41.4, 36.0),
    "blackwell": (70.0, 42.8, 24.0),
}
_NVLS_TREE: Final = {
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (0.0, 57.7, 45.5),
    "blackwell": (0.0, 96.0, 80.0),
}
_NVLS_EFFICIENCY: Final = {"volta": 0.0, "ampere": 0.0, "hopper": 0.85, "blackwell": 0.74}
_NET_OVERHEAD: Final = {"intel": 1.0, "amd": 2.0, "other": 1.0}
# By power of two from 64 B; the tuner reads the first 23 of NCCL's 24.
_TREE_CORRECTION: Final[dict[Protocol, tuple[float, ...]]] = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    "Simple": (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
        *(0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
    ),
}


@dataclass(frozen=True, slots=True)
class Fabric:
    """A group as NCCL's graph search sees it.

    Attributes:
        ranks, nodes: of the group; one node where the group does not cross the network.
        wire: links inside the node.
        ring_bytes_per_s: W of a ring: all channels, the narrowest of the levels it crosses.
        tree_bytes_per_s: W of a tree; twice the network's share counts on two nodes, where half the bytes cross.
        channels: rings or trees laid in parallel.
        nvls_bytes_per_s, nvls_channels: bandwidth of a device into the switch over the channels of NVLS; 0: none.
        network_bytes_per_s: all rails of the group's ranks on one node.
        network_latency_s: what the network's driver reports, added to each step across nodes.
    """

    generation: Generation
    ranks: int
    nodes: int
    wire: Wire
    host: Host
    ring_bytes_per_s: float
    tree_bytes_per_s: float
    channels: int
    nvls_bytes_per_s: float = 0.0
    nvls_channels: int = 0
    network_bytes_per_s: float = math.inf
    network_latency_s: float = 0.0

    @property
    def column(self) -> int:
        """Index into the constants by number of nodes."""
        return min(self.nodes, 3) - 1

    @property
    def per_node(self) -> float:
        return self.ranks / self.nodes


@dataclass(frozen=True, slots=True)
class Way:
    """One algorithm and protocol: seconds = `latency_s` + bytes * `seconds_per_byte`."""

    algorithm: str
    protocol: Protocol
    latency_s: float
    seconds_per_byte: float


def nccl_ways(kind: str, fabric: Fabric) -> list[Way]:
    """Ways NCCL has for all_reduce, all_gather, reduce_scatter on a group of at least two ranks.

    A tree contributes several affine pieces, of which the cheapest at a size is its price there.
    """
    if kind not in ("all_reduce", "all_gather", "reduce_scatter"):
        raise ValueError(f"collective {kind!r}: expected all_reduce, all_gather or reduce_scatter")
    found = []
    for protocol in _enabled(fabric):
        found.append(_ring(kind, fabric, protocol))
        if kind == "all_reduce":
            found.extend(_tree(fabric, protocol))
    if kind == "all_reduce" and fabric.nvls_channels > 1:
        found.append(_nvls(fabric))
    if kind != "all_reduce" and fabric.nodes == fabric.ranks:
        found.append(_pat(fabric))
    return found


def _enabled(fabric: Fabric) -> tuple[Protocol, ...]:
    """LL128 relies on NVLink's atomicity of 128-byte stores."""
    return PROTOCOLS if fabric.wire == "nvlink" else ("LL", "Simple")


def _ll_limit(fabric: Fabric) -> float:
    if fabric.nodes == 1:
        return _GB * _LL_LIMIT[fabric.generation][0]
    return _GB * _LL_LIMIT["ampere" if fabric.host == "amd" else "volta"][fabric.column]


def _hops(fabric: Fabric, algorithm: str, protocol: Protocol) -> tuple[float, float]:
    """Seconds of a step within a node and of one across nodes."""
    p = PROTOCOLS.index(protocol)
    # With one rank per node nothing hides the network's latency, which the tree's constants hold.
    across = _HOP["net"]["tree" if fabric.per_node == 1 else algorithm][p] * _US
    flush = 2 if protocol == "Simple" else 1
    return _HOP[fabric.wire].get(algorithm, (0, 0, 0))[p] * _US, across + flush * fabric.network_latency_s


def ring_bandwidth(fabric: Fabric, protocol: Protocol) -> float:
    """W_ring: bytes/s each rank sends on a ring under the protocol."""
    whole = fabric.ring_bytes_per_s
    if protocol == "LL":
        return min(whole / 2, _ll_limit(fabric))
    if protocol == "LL128":
        return min(0.92 * whole, fabric.channels * _GB * _RING_LL128[fabric.generation][fabric.column])
    return whole


def ring_latency(fabric: Fabric, protocol: Protocol, inside: int, crossing: int) -> float:
    """Seconds of so many steps within nodes and across them, and of starting at all."""
    within, across = _hops(fabric, "ring", protocol)
    if fabric.nodes > 1:
        within = max(within, _NET_OVERHEAD[fabric.host] * _US * (3 if protocol == "Simple" else 1))
    return _BASE["ring"][PROTOCOLS.index(protocol)] * _US + inside * within + crossing * across


def _ring(kind: str, fabric: Fabric, protocol: Protocol) -> Way:
    n, s = fabric.ranks, fabric.nodes
    phases = 2 if kind == "all_reduce" else 1
    latency = ring_latency(fabric, protocol, phases * (n - s), phases * (s - 1))
    if s > 1 and protocol == "Simple" and kind == "all_reduce":
        latency *= 1.9 if fabric.generation == "volta" else 1.4
    return Way("ring", protocol, latency, phases * (n - 1) / n / ring_bandwidth(fabric, protocol))


def _tree(fabric: Fabric, protocol: Protocol) -> list[Way]:
    g, i = fabric.generation, fabric.column
    whole = min(0.92 * fabric.tree_bytes_per_s, fabric.channels * _GB * _TREE[g][i])
    payload_share = 7 / 9 if fabric.nodes == 1 else 120 / 128
    bandwidth = {
        "LL": min(whole / 3.8, _ll_limit(fabric)),
        "LL128": min(whole * payload_share, fabric.channels * _GB * _TREE_LL128[g][i]),
        "Simple": whole,
    }[protocol]
    within, across = _hops(fabric, "tree", protocol)
    steps = (fabric.ranks // fabric.nodes - 1) * within + int(math.log2(fabric.nodes)) * across
    latency = _BASE["tree"][PROTOCOLS.index(protocol)] * _US + 2 * steps
    pieces = _concave(_TREE_CORRECTION[protocol], 2 / bandwidth)
    return [Way("tree", protocol, latency + extra, per_byte) for extra, per_byte in pieces]


def _concave(factors: tuple[float, ...], per_byte: float) -> list[tuple[float, float]]:
    """Affine pieces of the least concave function above bytes * per_byte / factor(bytes), 0 at 0.

    `factors[k]` holds from 64 * 2**k bytes to twice that, 1 elsewhere.  Andrew's monotone chain over the corners,
    closed by the ray of slope `per_byte`.
    """
    corners = [(0.0, 0.0)]
    for k, factor in enumerate(factors):
        low = 64.0 * 2**k
        corners += [(low, low * per_byte / factor), (2 * low, 2 * low * per_byte / factor)]
    corners.sort()
    hull: list[tuple[float, float]] = []
    for x, y in corners:
        if hull and hull[-1][0] == x:
            if hull[-1][1] >= y:
                continue
            hull.pop()
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    # Beyond the last corner the function runs on with `per_byte`: corners below that ray are not of the hull.
    while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= per_byte:
        hull.pop()
    lines = [(a[1] - _slope(a, b) * a[0], _slope(a, b)) for a, b in pairwise(hull)]
    return [*lines, (hull[-1][1] - per_byte * hull[-1][0], per_byte)]


def _slope(a: tuple[float, float], b: tuple[float, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def _nvls(fabric: Fabric) -> Way:
    n, c = fabric.ranks, fabric.nvls_channels
    within, across = _hops(fabric, "nvls_tree", "Simple")
    into_switch = 2 * fabric.nvls_bytes_per_s * _NVLS_EFFICIENCY[fabric.generation] * (c - 1) / c
    per_byte = 2 * (n - 1) / n
    if fabric.nodes == 1:
        return Way("nvls", "Simple", within, per_byte / into_switch)
    rails = fabric.network_bytes_per_s * (2 if fabric.nodes == 2 else 1)
    bandwidth = min(into_switch, rails, c * _GB * _NVLS_TREE[fabric.generation][fabric.column])
    return Way("nvls_tree", "Simple", within + 2 * int(math.log2(fabric.nodes)) * across, per_byte / bandwidth)


def _pat(fabric: Fabric) -> Way:
    _, across = _hops(fabric, "pat", "Simple")
    latency = _BASE["pat"][2] * _US + int(math.log2(fabric.nodes)) * across / 3.5 + fabric.ranks * 2.8 * _US
    return Way("pat", "Simple", latency, 1 / (0.75 * fabric.ring_bytes_per_s))
