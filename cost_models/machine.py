"""The numbers that describe a machine, as frozen values; their field names carry the units.

Constraints stand in the annotations, so that reading a file (`profile.py`) checks them.
Bandwidths are per device and per direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

__all__ = [
    "Algorithm",
    "AllocatorSpec",
    "AxesSpec",
    "DeviceSpec",
    "FrameworkSpec",
    "HardwareProfile",
    "HostSpec",
    "LinkSpec",
    "MeasuredSpec",
    "NcclSpec",
    "NetworkSpec",
    "OffsetSpec",
    "OperatorKind",
    "PredictionSpec",
    "ProtocolSpec",
    "RateType",
]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Fraction = Annotated[float, Field(gt=0, le=1, strict=True)]
Count = Annotated[int, Field(ge=1, lt=2**31, strict=True)]
Bytes = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
RateType = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8"]
OperatorKind = Literal[
    "matmul",
    "conv",
    "attention",
    "elementwise",
    "normalization",
    "reduction",
    "pooling",
    "gather",
    "layout",
    "optimizer",
]
Rates = Annotated[Mapping[RateType, Positive], Field(min_length=1)]

Algorithm = Literal[
    "ring", "tree", "mesh", "in_switch", "pipeline", "hierarchical_ring", "halving_doubling", "nonuniform_ring"
]

_FORBID = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One accelerator: silicon, and the rates that its vendor's kernels reach on it.

    `matmul_flops_per_s` is the dense peak of the matrix units and `vector_flops_per_s` that of the
    vector units, by data type; the efficiencies are the fractions of them that large operators reach.
    A matrix operator is computed in tiles of `tile_rows` x `tile_columns` results by `compute_units`
    units, `tile_depth` being the depth of one step of a tile.

    `product_ramp_s` passes on every product within a training step, besides its launch, before and after it runs at its
    rate.

    `memory_efficiency_by_kind` replaces `memory_efficiency` for the kinds of operator named (`device.KINDS`).
    `arithmetic_traffic_overlap` is the fraction of the shorter of arithmetic and traffic that passes beside the
    longer: 1 on accelerators, whose many threads compute while others wait for memory; a CPU core does less of it.
    """

    __pydantic_config__ = _FORBID

    memory_bytes: Annotated[int, Field(ge=1, lt=2**63, strict=True)]
    memory_bandwidth_bytes_per_s: Positive
    memory_efficiency: Fraction
    matmul_flops_per_s: Rates = field(hash=False)
    vector_flops_per_s: Rates = field(hash=False)
    matmul_efficiency: Fraction
    convolution_efficiency: Fraction
    attention_efficiency: Fraction
    vector_efficiency: Fraction
    matrix_launch_latency_s: NonNegative
    vector_launch_latency_s: NonNegative
    compute_units: Count
    tile_rows: Count
    tile_columns: Count
    tile_depth: Count
    attention_backward_efficiency: Fraction | None = None
    native_attention_efficiency: Fraction | None = None
    native_attention_backward_efficiency: Fraction | None = None
    matmul_efficiency_by_type: Mapping[str, Fraction] = field(default_factory=dict, hash=False)
    memory_efficiency_by_kind: Mapping[OperatorKind, Fraction] = field(default_factory=dict, hash=False)
    arithmetic_traffic_overlap: Annotated[float, Field(ge=0, le=1, strict=True)] = 1.0
    product_ramp_s: NonNegative = 0.0

    def attention(self, *, native: bool) -> tuple[float, float]:
        """Efficiency of attention's forward and backward pass, of the portable kernel or the vendor's own.

        What is not stated is that of the forward pass, and of the portable kernel.
        """
        forward, backward = self.attention_efficiency, self.attention_backward_efficiency
        if native and self.native_attention_efficiency is not None:
            forward, backward = self.native_attention_efficiency, self.native_attention_backward_efficiency
        return forward, backward or forward

    def product_efficiency(self, matrix_type: str) -> float:
        """Fraction of the peak that large products in `matrix_type` reach."""
        return self.matmul_efficiency_by_type.get(matrix_type, self.matmul_efficiency)

    def memory_rate(self, kind: OperatorKind) -> float:
        """Bytes per second that large operators of `kind` move."""
        fraction = self.memory_efficiency_by_kind.get(kind, self.memory_efficiency)
        return self.memory_bandwidth_bytes_per_s * fraction


@dataclass(frozen=True, slots=True)
class HostSpec:
    """The host that drives a device; the defaults cost nothing.

    `dispatch_interval_s` is what it needs to start one kernel: a pass of many small kernels takes at least that long
    for each.  `step_overhead_s` passes once per step outside the model (data, norms of gradients, checks for overflow);
    `handover_s` each time a pipeline stage exchanges tensors with its neighbour, whatever their size (the host waits
    for the device).  `link_bytes_per_s` is what activations are copied to and from its memory with, in one direction.
    """

    __pydantic_config__ = _FORBID

    dispatch_interval_s: NonNegative = 0.0
    step_overhead_s: NonNegative = 0.0
    handover_s: NonNegative = 0.0
    link_bytes_per_s: Positive | None = None


@dataclass(frozen=True, slots=True)
class AllocatorSpec:
    """Memory of a device that tensors do not get.

    `reserve_bytes` are never theirs (context, collective library, fragmentation); `slack` is the fraction that the
    framework's allocator takes beyond what it hands out.
    """

    __pydantic_config__ = _FORBID

    reserve_bytes: Bytes = 0
    slack: NonNegative = 0.03


@dataclass(frozen=True, slots=True)
class PredictionSpec:
    """How far predictions on the machine are off: `spread` is the standard deviation of ln(predicted / measured) step
    times."""

    __pydantic_config__ = _FORBID

    spread: NonNegative = 0.15


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

    __pydantic_config__ = _FORBID

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

    __pydantic_config__ = _FORBID

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

    __pydantic_config__ = _FORBID

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

    __pydantic_config__ = _FORBID

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

    __pydantic_config__ = _FORBID

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

    __pydantic_config__ = _FORBID

    all_gather: NonNegative = 0.0
    all_reduce: NonNegative = 0.0
    reduce_scatter: NonNegative = 0.0
    all_to_all: NonNegative = 0.0
    permute: NonNegative = 0.0
    broadcast: NonNegative = 0.0


@dataclass(frozen=True, slots=True)
class FrameworkSpec:
    """Habits of the software that executes plans on the machine.

    `joins_kernels`: chains of elementwise operators, and the core of attention, run as one kernel, and transposed
    tensors are read with strides; else every operator reads and writes device memory by itself.
    `collective_interference` is the fraction of its speed that computing loses while a collective runs beside it.
    """

    __pydantic_config__ = _FORBID

    joins_kernels: Flag = True
    collective_interference: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.0

    @property
    def contention(self) -> float:
        """How much longer computing takes while a collective runs beside it."""
        return 1 / (1 - self.collective_interference)


@dataclass(frozen=True, slots=True)
class AxesSpec:
    """Collectives priced per axis of the logical mesh: `alpha[i]` + `beta[i]` x bytes on the wire.

    The unit of cost is that of the published case and is read as seconds.  `all_to_all_penalty`
    multiplies the bytes of an all-to-all over n ranks; n/2 where it is absent.
    """

    __pydantic_config__ = _FORBID

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
    framework: FrameworkSpec = FrameworkSpec()
    host: HostSpec = HostSpec()
    allocator: AllocatorSpec = AllocatorSpec()
    prediction: PredictionSpec = PredictionSpec()

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
