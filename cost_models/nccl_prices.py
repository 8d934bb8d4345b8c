"""Prices of NCCL's collectives on a machine: the tuner's own model, corrected by what was measured.

Ways of `nccl` are taken on the bandwidth that the machine's rings reach (`bandwidth_fraction_by_ranks`), and cost
`launch_latency_s` more, on Simple `bulk_latency_s` besides.  An all-reduce in the switch costs B / rate where the
profile states a measured rate, and is offered from `in_switch_least_ranks` on.  The tuner says nothing of broadcast,
permute and all-to-all: they are priced with its ring's constants,

    broadcast    n-1 steps              B / W
    permute      1 step                 B / slowest link of a pair
    all_to_all   ceil(log2 m) steps in the server, ceil(log2 s) across (assumed: all messages are in flight together)
                 B/n * max over levels of (fraction leaving at it / bandwidth per device)
"""

from __future__ import annotations

import math
from dataclasses import replace

from .group import GroupShape
from .levels import levels_of, pair_bandwidth, parts_of
from .machine import HardwareProfile, NcclSpec
from .nccl import PROTOCOLS, Fabric, Protocol, Way, nccl_ways, ring_bandwidth, ring_latency

__all__ = ["fabric_of", "nccl_terms"]

_TUNED = ("all_reduce", "all_gather", "reduce_scatter")


def nccl_terms(profile: HardwareProfile, kind: str, group: GroupShape) -> set[tuple[float, float]]:
    """(seconds, seconds per byte) of every way NCCL has on this machine."""
    nccl = _nccl(profile)
    if kind not in _TUNED:
        return _untuned(profile, kind, group)
    terms = {_measured(profile, way) for way in _offered(profile, kind, group)}
    if kind == "all_reduce" and nccl.hierarchical and group.servers > 1 and group.ranks_per_server > 1:
        inside = replace(group, servers=1, supernodes=1, total=None)
        across = replace(group, ranks_per_server=1, total=None, ranks_per_island=None)
        across = replace(across, concurrent=group.concurrent * group.ranks_per_server)
        m = group.ranks_per_server
        scatters, gathers = (nccl_terms(profile, k, inside) for k in ("reduce_scatter", "all_gather"))
        terms |= {
            (a + b + c, x + y / m + z)
            for a, x in scatters
            for b, y in nccl_terms(profile, "all_reduce", across)
            for c, z in gathers
        }
    return terms


def fabric_of(profile: HardwareProfile, group: GroupShape) -> Fabric:
    """The group as NCCL sees it, with the bandwidth that measurements leave of the server's links."""
    nccl = _nccl(profile)
    _, network = parts_of(profile)
    fraction = profile.measured.bandwidth_fraction(group.ranks_per_server)
    levels = levels_of(profile, group)
    inside = min((v.bus_bytes_per_s * fraction for v in levels if v.kind != "network"), default=math.inf)
    rails = min((v.bus_bytes_per_s for v in levels if v.kind == "network"), default=math.inf)
    switched = nccl.nvls_channels > 0 and group.ranks_per_server >= parts_of(profile)[0].in_switch_least_ranks
    return Fabric(
        generation=nccl.generation,
        ranks=group.ranks,
        nodes=group.servers,
        wire=nccl.wire,
        host=nccl.host_cpu,
        ring_bytes_per_s=min(inside, rails),
        tree_bytes_per_s=min(inside, rails * (2 if group.servers == 2 else 1)),
        channels=nccl.channels,
        nvls_bytes_per_s=nccl.nvls_bandwidth_bytes_per_s,
        nvls_channels=nccl.nvls_channels if switched else 0,
        network_bytes_per_s=rails,
        network_latency_s=network.latency_s,
    )


def _nccl(profile: HardwareProfile) -> NcclSpec:
    if profile.nccl is None:
        raise ValueError(f"hardware profile {profile.name!r}: expected the table 'nccl', found none")
    return profile.nccl


def _offered(profile: HardwareProfile, kind: str, group: GroupShape) -> list[Way]:
    server, _ = parts_of(profile)
    rate = server.in_switch_all_reduce_bytes_per_s
    ways = nccl_ways(kind, fabric_of(profile, group))
    if rate is None:
        return ways
    return [replace(way, seconds_per_byte=1 / rate) if way.algorithm == "nvls" else way for way in ways]


def _measured(profile: HardwareProfile, way: Way) -> tuple[float, float]:
    bulk = profile.measured.bulk_latency_s if way.protocol == "Simple" else 0.0
    return way.latency_s + profile.measured.launch_latency_s + bulk, way.seconds_per_byte


def _untuned(profile: HardwareProfile, kind: str, group: GroupShape) -> set[tuple[float, float]]:
    fabric = fabric_of(profile, group)
    m, s, n = group.ranks_per_server, group.servers, group.ranks
    steps = {
        "broadcast": (n - s, s - 1),
        "permute": (int(s == 1), int(s > 1)),
        "all_to_all": (math.ceil(math.log2(m)), math.ceil(math.log2(s))),
    }[kind]
    # Sends and receives between pairs run on LL and Simple alone.
    protocols = PROTOCOLS if kind == "broadcast" and fabric.wire == "nvlink" else ("LL", "Simple")
    found = set()
    for protocol in protocols:
        if kind == "broadcast":
            per_byte = 1 / ring_bandwidth(fabric, protocol)
        elif kind == "permute":
            fraction = profile.measured.bandwidth_fraction(2) if s == 1 else 1.0
            pair = replace(fabric, ring_bytes_per_s=pair_bandwidth(profile, group) * fraction)
            per_byte = 1 / ring_bandwidth(pair, protocol)
        else:
            per_byte = _all_to_all(profile, group, fabric, protocol)
        found.add(_measured(profile, Way("ring", protocol, ring_latency(fabric, protocol, *steps), per_byte)))
    return found


def _all_to_all(profile: HardwareProfile, group: GroupShape, fabric: Fabric, protocol: Protocol) -> float:
    fraction = profile.measured.bandwidth_fraction(group.ranks_per_server) * profile.measured.all_to_all_fraction
    worst, inner = 0.0, 1
    for level in levels_of(profile, group):
        whole = level.device_bytes_per_s * (1.0 if level.kind == "network" else fraction)
        reached = ring_bandwidth(replace(fabric, ring_bytes_per_s=whole), protocol)
        worst, inner = max(worst, (level.reached - inner) / group.ranks / reached), level.reached
    return worst / group.ranks
