"""Seconds of kernels on one device, with the sizes that decide how well they run.

    product      max((flops + fill) / (peak(type) · efficiency · utilisation), bytes / memory rate) + launch
    attention    max(flops / (peak(16-bit) · efficiency forward or backward), bytes / memory rate) + launch
    others       max(flops / vector rate, bytes / memory rate) + launch

Operands of 8- and 4-bit products are scaled and cast first: a forward product and the two of its backward pass share
an input, a weight and a gradient, of which each moves `CAST_BYTES` per element once.

`fill` and `utilisation` are those of `device`: one tile step on every unit before the matrix units are busy, and
tiles cut off at borders and in the last wave.  Efficiencies are what large kernels reach within a training step,
with the clocks that the power limit leaves; `KernelRates` reads them from a profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cost_models.device import matmul_utilisation, resolve_rate
from cost_models.machine import HardwareProfile

__all__ = ["CAST_BYTES", "KERNEL_KINDS", "NARROW_BYTES", "KernelArrays", "kernel_seconds"]

FloatArray = NDArray[np.float64]
# Of types that operands are scaled for and cast to.
NARROW_BYTES: Final[Mapping[str, float]] = {"fp8": 1.0, "fp8-row": 1.0, "mxfp8": 1.0, "fp4": 0.5}
# What casting an operand moves per element, for both layouts that a forward and a backward product read: one pass
# (read 2, write 1 and 1) where whoever makes it finds its scale, or scales are by block (fp4: two levels of them); two
# passes for scales by row and by column, of which that by column reads twice.
CAST_BYTES: Final[Mapping[str, float]] = {"fp8": 4.0, "fp8-row": 8.0, "mxfp8": 4.0, "fp4": 4.0}
KERNEL_KINDS = ("product", "convolution", "attention", "attention_backward", "vector", "gather")


@dataclass(frozen=True, slots=True, eq=False)
class KernelArrays:
    """Kernels as columns: `kind` indexes `KERNEL_KINDS`; the others are as in a product of
    batch × (rows × depth) · (depth × columns)."""

    kind: NDArray[np.int64]
    flops: FloatArray
    bytes: FloatArray
    batch: FloatArray
    rows: FloatArray
    columns: FloatArray
    depth: FloatArray


def kernel_seconds(
    profile: HardwareProfile, kernels: KernelArrays, *, matrix_type: str, type: str, native_attention: bool = False
) -> FloatArray:
    """Seconds of each kernel by itself; products run in `matrix_type`, all else in `type`.

    `native_attention` says that attention is the vendor's own kernel rather than a portable one.

    Raises:
        ValueError: a type that is not one of `cost_models.device.DTYPES`.
    """
    device = profile.device
    if device is None:
        return np.zeros(len(kernels.kind))
    kind = kernels.kind
    traffic = kernels.bytes / (device.memory_bandwidth_bytes_per_s * device.memory_efficiency)
    busy = np.zeros(len(kind))
    vector = kind >= 4
    busy[vector] = kernels.flops[vector] / (resolve_rate(device.vector_flops_per_s, "fp32") * device.vector_efficiency)
    matrix = kind < 2
    if matrix.any():
        used = matmul_utilisation(
            profile, rows=kernels.rows[matrix], columns=kernels.columns[matrix], batch=kernels.batch[matrix]
        )
        fill = 2.0 * device.compute_units * device.tile_rows * device.tile_columns * device.tile_depth
        reached = np.where(kind[matrix] == 0, device.product_efficiency(matrix_type), device.convolution_efficiency)
        rate = resolve_rate(device.matmul_flops_per_s, matrix_type) * reached
        busy[matrix] = (kernels.flops[matrix] + fill) / (rate * used)
    peak = resolve_rate(device.matmul_flops_per_s, type)
    for index, efficiency in zip((2, 3), device.attention(native=native_attention), strict=True):
        at = kind == index
        busy[at] = kernels.flops[at] / (peak * efficiency)
    cast = np.zeros(len(kind))
    if matrix_type in NARROW_BYTES:
        b, m, n, k = kernels.batch, kernels.rows, kernels.columns, kernels.depth
        moved = CAST_BYTES[matrix_type] / 3 * b * (m * k + k * n + m * n)
        cast[matrix] = (moved / (device.memory_bandwidth_bytes_per_s * device.memory_efficiency))[matrix]
    matrix_launch = device.matrix_launch_latency_s + device.product_ramp_s
    launch = np.where(vector, device.vector_launch_latency_s, matrix_launch)
    seconds: FloatArray = np.maximum(busy, traffic) + cast + launch
    return seconds
