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
    "AxesSpec",
    "DeviceSpec",
    "HardwareProfile",
    "LinkSpec",
    "NetworkSpec",
    "OffsetSpec",
    "ProtocolSpec",
    "RateType",
]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Fraction = Annotated[float, Field(gt=0, le=1, strict=True)]
Count = Annotated[int, Field(ge=1, lt=2**31, strict=True)]
Bytes = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
RateType = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
Rates = Annotated[Mapping[RateType, Positive], Field(min_length=1)]

Algorithm = Literal["ring", "tree", "mesh", "in_switch"]

_FORBID = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One accelerator.

    `matmul_flops_per_s` is the dense peak of the matrix units and `vector_flops_per_s` that of the
    vector units, by data type; the efficiencies are the fractions of them that large operators reach.
    A matrix operator is computed in tiles of `tile_rows` x `tile_columns` results by `compute_units`
    units, `tile_depth` being the depth of one step of a tile.
    """

    __pydantic_config__ = _FORBID

    memory_bytes: Annotated[int, Field(ge=1, lt=2**63, strict=True)]
    reserve_bytes: Bytes
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


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """Links joining the `devices` of a server, or of an island within it.

    `switch`: a device reaches any set of others at `bandwidth_bytes_per_s` in all.
    `full_mesh`: each pair has its own link of `bandwidth_bytes_per_s`, so that a group of k uses k - 1.
    `table`: `bandwidth_by_ranks_bytes_per_s` lists pairs (k, bus bandwidth of a group of at least k).
    """

    __pydantic_config__ = _FORBID

    devices: Count
    topology: Literal["switch", "full_mesh", "table"]
    bandwidth_bytes_per_s: Positive | None = None
    bandwidth_by_ranks_bytes_per_s: tuple[tuple[Count, Positive], ...] = ()
    in_switch_all_reduce_bytes_per_s: Positive | None = None

    def __post_init__(self) -> None:
        if self.topology == "table":
            sizes = [k for k, _ in self.bandwidth_by_ranks_bytes_per_s]
            if not sizes or sizes[0] > 2 or sizes != sorted(set(sizes)):
                raise ValueError(
                    "bandwidth_by_ranks_bytes_per_s must list [ranks, bytes/s] by rising ranks, the first for 2 ranks"
                )
        elif self.bandwidth_bytes_per_s is None:
            raise ValueError(f"bandwidth_bytes_per_s is required by the topology {self.topology!r}")

    def bus_bandwidth(self, ranks: int) -> float:
        """Bytes/s that each of `ranks` >= 2 members of a group can send within the group."""
        if self.topology == "table":
            rows = self.bandwidth_by_ranks_bytes_per_s
            return next((b for k, b in reversed(rows) if k <= ranks), rows[0][1])
        assert self.bandwidth_bytes_per_s is not None  # __post_init__
        links = ranks - 1 if self.topology == "full_mesh" else 1
        return links * self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """Network between servers; every device has its own rail of `bandwidth_bytes_per_s`."""

    __pydantic_config__ = _FORBID

    bandwidth_bytes_per_s: Positive


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
    """A machine.  Either `axes` is given, or `device`, `server`, `network` and `protocols` are.

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

    @property
    def devices_per_server(self) -> int | None:
        """Devices of one server; None where the profile knows only mesh axes."""
        return None if self.server is None else self.server.devices

    @property
    def devices_per_island(self) -> int | None:
        """Devices joined by the fast links inside a server, where a server has several such islands."""
        return None if self.island is None else self.island.devices

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
