"""Algorithms of a collective library that is described by latencies and fractions (`ProtocolSpec`), HCCL above all.

With B bytes of the whole tensor over n ranks, m on a server, s servers, and levels l that join k parts of r ranks
each, over w bytes/s per device (`levels`), W the bus bandwidth:

    ring, mesh, pipeline   2 (n-1)/n B / W all-reduce, (n-1)/n B / W gather and scatter: all levels busy at once
    tree                   2 B / (0.92 W), all-reduce across servers
    in_switch              B / rate, all-reduce in one server
    hierarchical_ring, halving_doubling, nonuniform_ring: one level after the other
        all-reduce         sum over l of 2 (k-1)/k (B / r) / w     scatter inwards out, all-reduce outermost, gather,
                           or a scatter and a gather as below, whichever is less
        gather, scatter    sum over l of (k-1)/k (B reached / n) / w     shards keep their order: within first

Steps of latency per phase (two phases for an all-reduce): ring n-1 in all; mesh 1 within a server and
ceil(log2 k) beyond; pipeline 1 and k-1; the hierarchical ones 1 on links that reach every part directly, else k-1,
and beyond the server k-1 (ring), ceil(log2 k) (nonuniform ring), floor(log2 k) (halving-doubling, and for k no power
of two one more with the whole piece, as the ranks beyond the power fold into others).

Which algorithms HCCL has, that it works level by level and in which order: hiascend.com CANN 8.0 hcclug_000005
and hcclug_000006.  Closed forms: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
Operations in MPICH", IJHPCA 19(1), 2005.  That pipelining overlaps the levels wholly is an assumption.
"""

from __future__ import annotations

import math
from typing import Final

from .group import GroupShape
from .levels import Level, bus_bandwidth, levels_of, pair_bandwidth, parts_of
from .machine import Algorithm, HardwareProfile, ProtocolSpec

__all__ = ["protocol_terms"]

# NVIDIA/nccl src/graph/tuning.cc: a tree all-reduce keeps 92 % of the ring's bandwidth.
TREE_BANDWIDTH_FRACTION: Final = 0.92
_BY_LEVEL: Final = ("hierarchical_ring", "halving_doubling", "nonuniform_ring")


def protocol_terms(profile: HardwareProfile, kind: str, group: GroupShape) -> set[tuple[float, float]]:
    """(seconds, seconds per byte) of every protocol and algorithm of the profile that serves the collective."""
    found = set()
    for protocol in profile.protocols:
        for algorithm in protocol.algorithms:
            per_byte = _seconds_per_byte(profile, protocol, algorithm, kind, group)
            if per_byte is not None:
                latency = protocol.base_latency_s + _steps(profile, protocol, algorithm, kind, group)
                if kind == "all_reduce" and algorithm in _BY_LEVEL:
                    # Or through the levels in the order of a scatter and a gather, where that moves less.
                    scattered = _level_by_level(profile, protocol, algorithm, "reduce_scatter", group)
                    per_byte = min(per_byte, 2 * scattered)
                found.add((latency + profile.measured.launch_latency_s, per_byte))
    # A profile whose protocols all lack a way for this kind is refused when it is read.
    return found


def _seconds_per_byte(
    profile: HardwareProfile, protocol: ProtocolSpec, algorithm: Algorithm, kind: str, group: GroupShape
) -> float | None:
    """Inverse bandwidth of one way to carry out the collective; None where it does not apply."""
    n = group.ranks
    if algorithm == "in_switch":
        server, _ = parts_of(profile)
        rate = server.in_switch_all_reduce_bytes_per_s
        if kind != "all_reduce" or group.servers > 1 or rate is None or n < server.in_switch_least_ranks:
            return None
        return 1 / (rate * protocol.bandwidth_fraction)
    if algorithm == "tree":
        if kind != "all_reduce" or group.servers == 1:
            return None
        return 2 / (
            TREE_BANDWIDTH_FRACTION * _reached_bandwidth(profile, protocol, group, bus_bandwidth(profile, group))
        )
    if kind == "permute":
        return 1 / _reached_bandwidth(profile, protocol, group, pair_bandwidth(profile, group))
    if kind == "all_to_all":
        keeps = profile.measured.all_to_all_fraction
        worst, inner = 0.0, 1
        for level in levels_of(profile, group):
            limited = _reached_bandwidth(profile, protocol, group, level.device_bytes_per_s) * keeps
            worst, inner = max(worst, (level.reached - inner) / n / limited), level.reached
        return worst / n
    if algorithm in _BY_LEVEL:
        return _level_by_level(profile, protocol, algorithm, kind, group)
    bandwidth = _reached_bandwidth(profile, protocol, group, bus_bandwidth(profile, group))
    if kind == "broadcast" and algorithm == "ring":
        return 1 / bandwidth
    return _phases(kind, algorithm) * (n - 1) / n / bandwidth


def _level_by_level(
    profile: HardwareProfile, protocol: ProtocolSpec, algorithm: Algorithm, kind: str, group: GroupShape
) -> float:
    seconds = 0.0
    for level in levels_of(profile, group):
        if kind in ("all_reduce", "broadcast"):
            share = 2 / level.below
        else:
            share = level.reached / group.ranks
        beyond = level.kind in ("supernode", "network")
        wire = (level.parts - 1) / level.parts
        if beyond and algorithm == "halving_doubling" and level.parts & (level.parts - 1):
            power = 1 << (level.parts.bit_length() - 1)
            wire = (power - 1) / power + 1
        seconds += share * wire / _reached_bandwidth(profile, protocol, group, level.device_bytes_per_s)
    return seconds


def _reached_bandwidth(profile: HardwareProfile, protocol: ProtocolSpec, group: GroupShape, bandwidth: float) -> float:
    """What the protocol keeps of the links' bandwidth."""
    limit = (
        protocol.server_bandwidth_limit_bytes_per_s
        if group.servers == 1
        else protocol.network_bandwidth_limit_bytes_per_s
    )
    measured = profile.measured.bandwidth_fraction(group.ranks_per_server) if group.servers == 1 else 1.0
    reached = bandwidth * protocol.bandwidth_fraction * measured
    return reached if limit is None else min(reached, limit)


def _phases(kind: str, algorithm: Algorithm) -> int:
    return 2 if kind == "all_reduce" or (kind == "broadcast" and algorithm != "ring") else 1


def _steps(
    profile: HardwareProfile, protocol: ProtocolSpec, algorithm: Algorithm, kind: str, group: GroupShape
) -> float:
    """Seconds of the steps whose latencies add up."""
    levels = levels_of(profile, group)
    _, network = parts_of(profile)

    def step(level: Level) -> float:
        if level.step_latency_s is not None:
            return level.step_latency_s
        if level.kind == "network":
            return protocol.network_step_latency_s + network.latency_s
        return protocol.server_step_latency_s

    inner = [level for level in levels if level.kind in ("island", "server")]
    outer = [level for level in levels if level.kind in ("supernode", "network")]
    slowest = max((step(level) for level in inner), default=protocol.server_step_latency_s)
    if kind == "permute":
        return step(levels[-1])
    if algorithm == "in_switch":
        return slowest
    if kind == "all_to_all":
        # Messages to all peers are in flight together; starting them grows slowly with their number.
        return math.ceil(math.log2(group.ranks_per_server)) * slowest + sum(_rounds(v.parts) * step(v) for v in outer)
    if algorithm == "tree":
        return 2 * (group.ranks_per_server - 1) * slowest + sum(2 * _rounds(v.parts) * step(v) for v in outer)
    phases = _phases(kind, algorithm)
    if algorithm == "ring":
        # A hop leads beyond the server once for each server but the last, beyond the super-node likewise.
        hops = _hops_of(group, outer)
        within = group.ranks - 1 - sum(count for count, _ in hops)
        return phases * (within * slowest + sum(count * step(v) for count, v in hops))
    if algorithm in ("mesh", "pipeline"):
        inside = slowest if group.ranks_per_server > 1 else 0.0
    else:
        inside = sum(((1 if v.direct else v.parts - 1) * step(v) for v in inner), 0.0)
    return phases * (inside + sum(_beyond(algorithm, v.parts) * step(v) for v in outer))


def _hops_of(group: GroupShape, outer: list[Level]) -> list[tuple[int, Level]]:
    """Hops of a ring over the links of each level beyond the server."""
    between = group.servers - group.supernodes
    return [(between if level.kind == "supernode" else level.parts - 1, level) for level in outer]


def _beyond(algorithm: Algorithm, parts: int) -> int:
    """Steps of one phase over `parts` servers or super-nodes."""
    if algorithm in ("pipeline", "hierarchical_ring"):
        return parts - 1
    if algorithm == "halving_doubling":
        return int(math.log2(parts)) + (parts & (parts - 1) > 0)
    return _rounds(parts)


def _rounds(parts: int) -> int:
    return math.ceil(math.log2(parts))
