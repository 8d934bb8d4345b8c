"""What things cost on one logical mesh of one machine, in integer units of the profile's price resolution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost_models import (
    Collective,
    CollectiveModel,
    HardwareProfile,
    compute_seconds,
    optimizer_seconds,
    parameter_bytes,
)
from planner.cost_models.kernels import KernelArrays, kernel_seconds
from planner.cost_models.memory import Optimizer, ParameterBytes, Precision
from planner.ir import DeviceMesh, Tensor
from planner.ir.tensor import ITEM_BYTES
from planner.rules.strategy import BoundCollective
from planner.targets import Target

__all__ = ["IntArray", "Machine", "Settings"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
DEAREST = 1e17  # units: what costs more is as good as forbidden


@dataclass(frozen=True, slots=True)
class Settings:
    """What is planned for, whatever the mesh.  `target` restricts plans to what a runtime can express;
    `recompute` runs every block of a run of equal layers again in the backward pass instead of keeping what is
    inside it."""

    training: bool
    precision: Precision = "bf16"
    optimizer: Optimizer = "adam"
    target: Target = "any"
    recompute: bool = False

    def tensor_bytes(self, tensor: Tensor) -> int:
        """Bytes of the whole tensor as it lies in memory: floats in the chosen precision, others, and floats of a byte
        or less, as they are stored."""
        if tensor.is_float and ITEM_BYTES[tensor.dtype] > 1:
            return tensor.elements * (4 if self.precision == "fp32" else 2)
        return tensor.stored_bytes

    def payload_bytes(self, collective: BoundCollective) -> int:
        """Bytes that one rank gives to a collective inside an operator: floats in the chosen precision, statistics and
        whole numbers as they are."""
        return collective.bytes_of(4 if self.precision == "fp32" else 2)

    @property
    def per_parameter(self) -> ParameterBytes:
        return parameter_bytes(self.precision, self.optimizer, training=self.training)


@dataclass(frozen=True)
class Machine:
    """A profile seen through a logical mesh."""

    profile: HardwareProfile
    mesh: DeviceMesh
    settings: Settings
    _ways: dict[tuple[str, tuple[str, ...]], tuple[FloatArray, FloatArray]] = field(default_factory=dict, repr=False)
    _paid: dict[tuple[str, tuple[str, ...], float, float], int] = field(default_factory=dict, repr=False)

    @property
    def unit_s(self) -> float:
        """Seconds of one unit of integer cost."""
        return self.profile.price_resolution_s

    def _units(self, seconds: ArrayLike) -> IntArray:
        return np.rint(np.minimum(np.asarray(seconds, dtype=np.float64) / self.unit_s, DEAREST)).astype(np.int64)

    def collective(self, kind: str, axes: tuple[str, ...], group_bytes: ArrayLike, share: ArrayLike = 1.0) -> IntArray:
        """Cost of a collective over the groups of `axes`; bytes in the convention of `planner.cost_models.link`.

        `share`: they are this fraction of what one call exchanges, and take this fraction of its time.
        """
        key = kind, axes
        if key not in self._ways:
            self._ways[key] = self._found_ways(cast(Collective, kind), axes)
        latency, per_byte = self._ways[key]
        part = np.asarray(share, dtype=np.float64) if self.profile.axes is None else np.float64(1.0)
        together = np.asarray(group_bytes, dtype=np.float64) / part
        seconds = (latency + np.multiply.outer(per_byte, together).T).min(axis=-1).T
        return self._units(np.where(together > 0, seconds, 0.0) * part)

    def _found_ways(self, kind: Collective, axes: tuple[str, ...]) -> tuple[FloatArray, FloatArray]:
        """Seconds, and seconds per byte, of each way to carry it out (`CollectiveModel.terms`)."""
        model = CollectiveModel(self.profile)
        group = model.group(self.mesh.shape, tuple(sorted(self.mesh.names.index(a) for a in axes)))
        ways = ((0.0, 0.0),) if group.ranks == 1 else model.terms(kind, group)
        latency, per_byte = np.array(ways, dtype=np.float64).T
        return latency, per_byte

    def one_collective(self, kind: str, axes: tuple[str, ...], group_bytes: float, share: float = 1.0) -> int:
        """As `collective`, of numbers: programs ask for the same few again and again."""
        key = kind, axes, group_bytes, share
        if key not in self._paid:
            self._paid[key] = int(self.collective(kind, axes, group_bytes, share))
        return self._paid[key]

    def kernels(self, kernels: KernelArrays) -> IntArray:
        """Cost of kernels on one device; attention is the vendor's own."""
        precision = self.settings.precision
        seconds = kernel_seconds(self.profile, kernels, matrix_type=precision, type=precision, native_attention=True)
        return self._units(seconds)

    def copied(self, size: ArrayLike) -> IntArray:
        """Cost of writing, or reading, so many bytes."""
        seconds = compute_seconds(
            self.profile, kind="layout", flops=0.0, bytes_moved=size, dtype=self.settings.precision, launches=0
        )
        return self._units(seconds)

    def optimizer_update(self, elements: ArrayLike) -> IntArray:
        """Cost of updating parameter elements held by one device.

        Optimizers are fused over parameters, so that the launch counts once per step and not here.
        """
        s = self.settings
        return self._units(
            optimizer_seconds(self.profile, elements, precision=s.precision, optimizer=s.optimizer, launches=0)
        )
