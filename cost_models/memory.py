"""Bytes a parameter costs while training, and seconds its optimizer update takes.

Mixed precision (bf16, fp16) keeps a 2-byte copy to compute with, a 2-byte gradient and a 4-byte master;
Adam adds two 4-byte moments: 16 bytes in all (Rajbhandari et al., "ZeRO: Memory Optimizations Toward
Training Trillion Parameter Models", SC 2020, section 3.1).  In fp32 the stored parameter is the one computed with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .device import compute_seconds
from .machine import HardwareProfile

__all__ = [
    "OPTIMIZERS",
    "PRECISIONS",
    "Optimizer",
    "ParameterBytes",
    "Precision",
    "optimizer_seconds",
    "parameter_bytes",
    "usable_memory_bytes",
]

Precision = Literal["bf16", "fp16", "fp32"]
Optimizer = Literal["adam", "momentum", "sgd"]
PRECISIONS: Final[tuple[str, ...]] = get_args(Precision)
OPTIMIZERS: Final[tuple[str, ...]] = get_args(Optimizer)

_STATE_BYTES: Final[dict[str, int]] = {"adam": 8, "momentum": 4, "sgd": 0}
# Per element: Adam's two moving averages, bias correction, root, division and step; one moving average; one step.
_UPDATE_FLOPS: Final[dict[str, int]] = {"adam": 14, "momentum": 4, "sgd": 2}


@dataclass(frozen=True, slots=True)
class ParameterBytes:
    """Bytes per element of a parameter, by what they are for, so that each may be sharded on its own.

    ZeRO 1 splits `master` and `optimizer`, ZeRO 2 `gradient` too, ZeRO 3 `compute_copy` as well.
    `master` is 0 where the compute copy is itself the stored parameter.
    """

    compute_copy: int
    gradient: int
    master: int
    optimizer: int

    @property
    def total(self) -> int:
        """Bytes per element in all."""
        return self.compute_copy + self.gradient + self.master + self.optimizer


def parameter_bytes(
    precision: Precision = "bf16", optimizer: Optimizer = "adam", *, training: bool = True
) -> ParameterBytes:
    """Bytes per element of a parameter; inference keeps the compute copy only.

    Raises:
        ValueError: unknown precision or optimizer.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r}: expected one of {', '.join(PRECISIONS)}")
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer {optimizer!r}: expected one of {', '.join(OPTIMIZERS)}")
    width = 4 if precision == "fp32" else 2
    if not training:
        return ParameterBytes(compute_copy=width, gradient=0, master=0, optimizer=0)
    return ParameterBytes(
        compute_copy=width,
        gradient=width,
        master=0 if precision == "fp32" else 4,
        optimizer=_STATE_BYTES[optimizer],
    )


def optimizer_seconds(
    profile: HardwareProfile,
    elements: ArrayLike,
    *,
    precision: Precision = "bf16",
    optimizer: Optimizer = "adam",
    launches: ArrayLike = 1,
) -> NDArray[np.float64]:
    """Seconds to update `elements` parameter elements held by one device; shape of `elements`.

    One fused pass: the gradient is read, master (or parameter) and optimizer state are read and written,
    and the compute copy is written where there is a separate master.
    """
    each = parameter_bytes(precision, optimizer)
    stored = each.master or each.compute_copy
    cast = each.compute_copy if each.master else 0
    traffic = each.gradient + 2 * stored + 2 * each.optimizer + cast
    count = np.asarray(elements, dtype=np.float64)
    return compute_seconds(
        profile,
        kind="optimizer",
        flops=count * _UPDATE_FLOPS[optimizer],
        bytes_moved=count * traffic,
        dtype="fp32",
        launches=launches,
    )


def usable_memory_bytes(profile: HardwareProfile) -> int | None:
    """Bytes of device memory a plan may use: the device's less the profile's reserve; None if unlimited.

    The reserve stands for what the framework, its context and the collective library hold, and for
    fragmentation.
    """
    device = profile.device
    return None if device is None else max(0, device.memory_bytes - profile.allocator.reserve_bytes)
