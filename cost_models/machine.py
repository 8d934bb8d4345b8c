"""A machine: its links, what prices collectives on them, and the accelerators that they join, as frozen values; their
field names carry the units.

Constraints stand in the annotations, so that reading a file (`profile.py`) checks them.
Bandwidths are per device and per direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from .accelerator import (
    FORBID,
    AllocatorSpec,
    Count,
    DeviceSpec,
    Flag,
    Fraction,
    FrameworkSpec,
    HostSpec,
    NonNegative,
    Positive,
    PredictionSpec,
)

__all__ = [
    "Algorithm",
    "AxesSpec",
    "HardwareProfile",
    "LinkSpec",
    "MeasuredSpec",
    "NcclSpec",
    "NetworkSpec",
    "OffsetSpec",
    "ProtocolSpec",
]

Algorithm = Literal[
    "ring", "tree", "mesh", "in_switch", "pipeline", "hierarchical_ring", "halving_doubling", "nonuniform_ring"
]


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """Links joining the `devices` of a server, of an island within it, or of a super-node of several servers.

    `switch`: a device reaches any set of others at `bandwidth_bytes_per_s` in all.
    `shared`: as `switch`, and all devices together move at most `host_bandwidth_bytes_per_s` (PCIe root and sockets).
    `full_mesh`: each pair has its own link of `bandwidth_bytes_per_s`, so that a group of k uses k - 1.
    `table`: `bandwidth_by_ranks_bytes_per_s` lists pairs (k, bus bandwidth of a group of at least k).

    `in_switch_all_reduce_bytes_per_s` is the rate of an all-reduce that the switch carries out, for groups of
    `in_switch_least_ranks`.  `step_latency_s` replaces the protocol's latency of a step on these links.
    `devices_per_host` says how many of them one operating system sees, where that is not all.
    """

    __pydantic_config__ = FORBID

    devices: Count
    topology: Literal["switch", "shared", "full_mesh", "table"]
    bandwidth_bytes_per_s: Positive | None = None
    bandwidth_by_ranks_bytes_per_s: tuple[tuple[Count, Positive], ...] = ()
    in_switch_all_reduce_bytes_per_s: Positive | None = None
    in_switch_least_ranks: Count = 2
    host_bandwidth_bytes_per_s: Positive | None = None
    step_latency_s: NonNegative | None = None
    devices_per_host: Count | None = None

    def __post_init__(self) -> None:
        if (self.topology == "shared") != (self.host_bandwidth_bytes_per_s is not None):
            raise ValueError("host_bandwidth_bytes_per_s goes with the topology 'shared', and with no other")
        if self.topology == "table":
            sizes = [k for k, _ in self.bandwidth_by_ranks_bytes_per_s]
            if not sizes or sizes[0] > 2 or sizes != sorted(set(sizes)):
                raise ValueError(
                    "bandwidth_by_ranks_bytes_per_s must list [ranks, bytes/s] by rising ranks, the first for 2 ranks"
                )
        elif self.bandwidth_bytes_per_s is None:
            raise ValueError(f"bandwidth_bytes_per_s is required by the topology {self.topology!r}")

    def bus_bandwidth(self, ranks: int, busy: int | None = None) -> float:
        """Bytes/s that each of `ranks` >= 2 members of a group can send within the group.

        `busy` devices of the server send at once, the group's own among them (None: these alone); only the
        topology `shared` minds.
        """
        if self.topology == "table":
            rows = self.bandwidth_by_ranks_bytes_per_s
            return next((b for k, b in reversed(rows) if k <= ranks), rows[0][1])
        assert self.bandwidth_bytes_per_s is not None  # __post_init__
        links = ranks - 1 if self.topology == "full_mesh" else 1
        own = links * self.bandwidth_bytes_per_s
        if self.host_bandwidth_bytes_per_s is None:
            return own
        return min(own, self.host_bandwidth_bytes_per_s / max(ranks, busy or 0))


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """Network between servers (or super-nodes).

    Every device has its own rail of `bandwidth_bytes_per_s`; with `rails_per_server` the devices of a server share
    so many.  `latency_s` is what the network's driver adds to each step across it.
    """

    __pydantic_config__ = FORBID

    bandwidth_bytes_per_s: Positive
    rails_per_server: Count | None = None
    latency_s: NonNegative = 0.0

    def group_bandwidth(self, ranks: int, groups: int = 1) -> float:
        """Bytes/s that `ranks` members of a group on one server send, `groups` such groups sending at once."""
        if self.rails_per_server is None:
            return ranks * self.bandwidth_bytes_per_s
        own = min(ranks, self.rails_per_server)
        return min(own, self.rails_per_server / groups) * self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True)
class ProtocolSpec:
    """How a collective library moves bytes: a fixed latency, one per step, and the bandwidth it keeps.

    `bandwidth_fraction` is of the links' bandwidth; the limits, where given, cap the result for groups
    within one server and across servers.
    """

    __pydantic_config__ = FORBID

    name: str
    algorithms: tuple[Algorithm, ...]
    base_latency_s: NonNegative
    server_step_latency_s: NonNegative
    network_step_latency_s: NonNegative
    bandwidth_fraction: Fraction
    server_bandwidth_limit_bytes_per_s: Positive | None = None
    network_bandwidth_limit_bytes_per_s: Positive | None = None


@dataclass(frozen=True, slots=True)
class NcclSpec:
    """What NCCL's tuner has to know of a machine to price collectives by its own constants (`nccl`).

    `channels` rings and trees are laid in parallel over `wire`; `host_cpu` chooses limits across nodes.  NVLS, where
    there is any, has `nvls_channels` that reach the switch at `nvls_bandwidth_bytes_per_s` together.
    `hierarchical`: an all-reduce may also go as reduce-scatter in the server, all-reduce across, all-gather in the
    server, three calls one after the other.
    """

    __pydantic_config__ = FORBID

    generation: Literal["volta", "ampere", "hopper", "blackwell"]
    wire: Literal["nvlink", "pci"]
    host_cpu: Literal["intel", "amd", "other"]
    channels: Count
    nvls_channels: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = 0
    nvls_bandwidth_bytes_per_s: NonNegative = 0.0
    hierarchical: Flag = False


@dataclass(frozen=True, slots=True)
class MeasuredSpec:
    """What measurements add to the collective library's own model; the defaults change nothing.

    `launch_latency_s` passes on every call; `bulk_latency_s` on NCCL's Simple protocol besides (its pipeline has to
    fill).  `bandwidth_fraction_by_ranks` lists pairs (k, fraction of the links' bandwidth that rings and trees of at
    least k ranks on a server reach); `all_to_all_fraction` is what an all-to-all keeps of that.
    """

    __pydantic_config__ = FORBID

    launch_latency_s: NonNegative = 0.0
    bulk_latency_s: NonNegative = 0.0
    bandwidth_fraction_by_ranks: tuple[tuple[Count, Fraction], ...] = ()
    all_to_all_fraction: Fraction = 1.0

    def __post_init__(self) -> None:
        sizes = [k for k, _ in self.bandwidth_fraction_by_ranks]
        if sizes and (sizes[0] > 2 or sizes != sorted(set(sizes))):
            raise ValueError("bandwidth_fraction_by_ranks must list [ranks, fraction] by rising ranks, first for 2")

    def bandwidth_fraction(self, ranks: int) -> float:
        """Fraction of the links' bandwidth that a ring over `ranks` devices of a server keeps."""
        rows = self.bandwidth_fraction_by_ranks
        return next((f for k, f in reversed(rows) if k <= ranks), rows[0][1] if rows else 1.0)


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Constants added to each collective of an alpha-beta profile, in its unit of cost."""

    __pydantic_config__ = FORBID

    all_gather: NonNegative = 0.0
    all_reduce: NonNegative = 0.0
    reduce_scatter: NonNegative = 0.0
    all_to_all: NonNegative = 0.0
    permute: NonNegative = 0.0
    broadcast: NonNegative = 0.0


@dataclass(frozen=True, slots=True)
class AxesSpec:
    """Collectives priced per axis of the logical mesh: `alpha[i]` + `beta[i]` x bytes on the wire.

    The unit of cost is that of the published case and is read as seconds.  `all_to_all_penalty`
    multiplies the bytes of an all-to-all over n ranks; n/2 where it is absent.
    """

    __pydantic_config__ = FORBID

    alpha: tuple[NonNegative, ...]
    beta: tuple[NonNegative, ...]
    offset: OffsetSpec = OffsetSpec()
    all_to_all_penalty: Positive | None = None

    def __post_init__(self) -> None:
        if not self.alpha or len(self.alpha) != len(self.beta):
            raise ValueError(
                f"alpha and beta must have one value per mesh axis each, found {len(self.alpha)} and {len(self.beta)}"
            )


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """A machine.  Either `axes` is given, or `device`, `server`, `network` and one of `protocols`, `nccl` are.

    `sources` maps the dotted key of each value to where it comes from; `digest` is that of all values
    (sources and descriptions left out), so that equal digests price alike.
    """

    name: str
    description: str
    device: DeviceSpec | None
    server: LinkSpec | None
    island: LinkSpec | None
    network: NetworkSpec | None
    protocols: tuple[ProtocolSpec, ...]
    axes: AxesSpec | None
    heavy_operators_must_split: bool
    sources: Mapping[str, str] = field(hash=False, repr=False)
    digest: str
    supernode: LinkSpec | None = None
    nccl: NcclSpec | None = None
    measured: MeasuredSpec = MeasuredSpec()
    framework: FrameworkSpec = field(default_factory=FrameworkSpec)
    host: HostSpec = field(default_factory=HostSpec)
    allocator: AllocatorSpec = field(default_factory=AllocatorSpec)
    prediction: PredictionSpec = field(default_factory=PredictionSpec)

    @property
    def devices_per_server(self) -> int | None:
        """Devices of one server; None where the profile knows only mesh axes."""
        return None if self.server is None else self.server.devices

    @property
    def devices_per_island(self) -> int | None:
        """Devices joined by the fast links inside a server, where a server has several such islands."""
        return None if self.island is None else self.island.devices

    @property
    def devices_per_supernode(self) -> int | None:
        """Devices of the servers that links faster than the network join; None where there are none."""
        return None if self.supernode is None else self.supernode.devices

    @property
    def devices_per_host(self) -> int | None:
        """Devices that one operating system sees."""
        return None if self.server is None else self.server.devices_per_host or self.server.devices

    @property
    def memory_bytes(self) -> int | None:
        """Memory of one device in bytes, reserve included; None where the profile does not limit it."""
        return None if self.device is None else self.device.memory_bytes

    @property
    def compute_is_free(self) -> bool:
        """Whether the profile prices communication only."""
        return self.device is None

    @property
    def price_resolution_s(self) -> float:
        """Step, in seconds, in which prices may be counted as integers without losing what matters.

        A picosecond for a machine.  Costs of published alpha-beta cases run to millions of units with
        offsets of thousandths, so a millionth there.
        """
        return 1e-12 if self.axes is None else 1e-6

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Keys of the values that no source backs."""
        return tuple(k for k, s in self.sources.items() if s.startswith("assumed"))
