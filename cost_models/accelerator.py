"""An accelerator, the host that drives it and the software on both, as frozen values; field names carry the units.

Constraints stand in the annotations, so that reading a file (`profile.py`) checks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

__all__ = [
    "FORBID",
    "AlignmentBytes",
    "AllocatorSpec",
    "Bytes",
    "Count",
    "DeviceSpec",
    "Flag",
    "Fraction",
    "FrameworkSpec",
    "HostSpec",
    "NonNegative",
    "OperatorKind",
    "Positive",
    "PredictionSpec",
    "RateType",
]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Fraction = Annotated[float, Field(gt=0, le=1, strict=True)]
Count = Annotated[int, Field(ge=1, lt=2**31, strict=True)]
Bytes = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
RateType = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8"]
AlignmentBytes = Literal["2", "4", "8"]
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

FORBID = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One accelerator: silicon, and the rates that its vendor's kernels reach on it.

    `matmul_flops_per_s` is the dense peak of the matrix units and `vector_flops_per_s` that of the
    vector units, by data type; the efficiencies are the fractions of them that large operators reach.
    A matrix operator is computed in tiles of `tile_rows` x `tile_columns` results by `compute_units`
    units, `tile_depth` being the depth of one step of a tile.

    `product_ramp_s` passes on every product within a training step, besides its launch, before and after it runs at its
    rate.

    `product_efficiency_by_alignment` is the most that products reach whose matrices lie in memory with rows of a
    multiple of so many bytes and no more (`device.alignment_utilisation`): the fast kernels load 16 bytes at once.

    `memory_efficiency_by_kind` replaces `memory_efficiency` for the kinds of operator named (`device.KINDS`).
    `arithmetic_traffic_overlap` is the fraction of the shorter of arithmetic and traffic that passes beside the
    longer: 1 on accelerators, whose many threads compute while others wait for memory; a CPU core does less of it.
    """

    __pydantic_config__ = FORBID

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
    product_efficiency_by_alignment: Mapping[AlignmentBytes, Fraction] = field(default_factory=dict, hash=False)
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

    __pydantic_config__ = FORBID

    dispatch_interval_s: NonNegative = 0.0
    step_overhead_s: NonNegative = 0.0
    handover_s: NonNegative = 0.0
    link_bytes_per_s: Positive | None = None


@dataclass(frozen=True, slots=True)
class FrameworkSpec:
    """Habits of the software that executes plans on the machine.

    `joins_kernels`: chains of elementwise operators, and the core of attention, run as one kernel, and transposed
    tensors are read with strides; else every operator reads and writes device memory by itself.
    `collective_interference` is the fraction of its speed that computing loses while a collective runs beside it.
    """

    __pydantic_config__ = FORBID

    joins_kernels: Flag = True
    collective_interference: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.0

    @property
    def contention(self) -> float:
        """How much longer computing takes while a collective runs beside it."""
        return 1 / (1 - self.collective_interference)


@dataclass(frozen=True, slots=True)
class AllocatorSpec:
    """Memory of a device that tensors do not get.

    `reserve_bytes` are never theirs (context, collective library, fragmentation); `slack` is the fraction that the
    framework's allocator takes beyond what it hands out.
    """

    __pydantic_config__ = FORBID

    reserve_bytes: Bytes = 0
    slack: NonNegative = 0.03


@dataclass(frozen=True, slots=True)
class PredictionSpec:
    """How far predictions on the machine are off: `spread` is the standard deviation of ln(predicted / measured) step
    times."""

    __pydantic_config__ = FORBID

    spread: NonNegative = 0.15
