"""Kernels of one device, and their seconds by `device.compute_seconds` with the sizes that decide how well they run.

Operands of 8- and 4-bit products are scaled and cast first: a forward product and the two of its backward pass share
an input, a weight and a gradient, of which each moves `CAST_BYTES` per element once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from .accelerator import OperatorKind
from .device import alignment_utilisation, compute_seconds, matmul_utilisation
from .machine import HardwareProfile

__all__ = [
    "CAST_BYTES",
    "KERNEL_KINDS",
    "MATRIX_KINDS",
    "NARROW_BYTES",
    "Kernel",
    "KernelArrays",
    "KernelKind",
    "kernel_seconds",
]

FloatArray = NDArray[np.float64]
# Of types that operands are scaled for and cast to.
NARROW_BYTES: Final[Mapping[str, float]] = {"fp8": 1.0, "fp8-row": 1.0, "mxfp8": 1.0, "fp4": 0.5}
# What casting an operand moves per element, for both layouts that a forward and a backward product read: one pass
# (read 2, write 1 and 1) where whoever makes it finds its scale, or scales are by block (fp4: two levels of them); two
# passes for scales by row and by column, of which that by column reads twice.
CAST_BYTES: Final[Mapping[str, float]] = {"fp8": 4.0, "fp8-row": 8.0, "mxfp8": 4.0, "fp4": 4.0}
KernelKind = Literal[
    "product",
    "convolution",
    "attention",
    "attention_backward",
    "gather",
    "elementwise",
    "normalization",
    "reduction",
    "pooling",
    "layout",
    "copy",
]
KERNEL_KINDS: Final[tuple[KernelKind, ...]] = get_args(KernelKind)
MATRIX_KINDS: Final[frozenset[KernelKind]] = frozenset({"product", "convolution", "attention", "attention_backward"})
_CLASSES: Final[Mapping[str, OperatorKind]] = {
    "product": "matmul",
    "convolution": "conv",
    "attention_backward": "attention",
    "copy": "layout",
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch on one device, or the share of it that an operator is the reason for.

    Figures are numbers, or arrays of one number for each of several ways to run the operator.  `flops` counts what is
    computed (of causal attention the half that is seen), `bytes` what device memory sees.  A product is `batch` times
    (rows × depth) · (depth × columns), of matrices that lie in memory with rows of a multiple of `aligned` elements, a
    power of two.  `launches` is 1 of the operator that a kernel begins with and 0 of others that
    are fused into it.  `of_weights`: it makes the gradient of a weight.  A `copy` takes a tensor out of a fused kernel
    for a redistribution, or brings it back.
    """

    kind: KernelKind
    flops: Any
    bytes: Any
    batch: Any = 1.0
    rows: Any = 1.0
    columns: Any = 1.0
    depth: Any = 1.0
    launches: int = 1
    of_weights: bool = False
    aligned: Any = 16.0
    _hash: int = field(default=0, init=False, repr=False, compare=False)  # kernels are counted by the hundred thousand

    def __hash__(self) -> int:
        if not self._hash:
            figures = self.flops, self.bytes, self.batch, self.rows, self.columns, self.depth
            object.__setattr__(self, "_hash", hash((self.kind, *figures, self.launches, self.of_weights)))
        return self._hash


@dataclass(frozen=True, slots=True, eq=False)
class KernelArrays:
    """Kernels as columns of equal length: `kind` indexes `KERNEL_KINDS`, the others are as of `Kernel`."""

    kind: NDArray[np.int64]
    flops: FloatArray
    bytes: FloatArray
    batch: FloatArray
    rows: FloatArray
    columns: FloatArray
    depth: FloatArray
    launches: FloatArray
    aligned: FloatArray

    @classmethod
    def of(cls, kernels: Sequence[Kernel]) -> KernelArrays:
        """Columns of kernels whose figures are numbers."""
        names = ("flops", "bytes", "batch", "rows", "columns", "depth", "launches", "aligned")
        kinds = np.array([KERNEL_KINDS.index(k.kind) for k in kernels], dtype=np.int64)
        return cls(kinds, *(np.array([getattr(k, name) for k in kernels], dtype=np.float64) for name in names))

    def __len__(self) -> int:
        return len(self.kind)


def kernel_seconds(
    profile: HardwareProfile, kernels: KernelArrays, *, matrix_type: str, type: str, native_attention: bool = False
) -> FloatArray:
    """Seconds of each kernel by itself; products run in `matrix_type`, all else in `type`.

    `native_attention` says that attention is the vendor's own kernel rather than a portable one.

    Raises:
        ValueError: a type that is not one of `planner.cost_models.device.DTYPES`, `mxfp8` or `fp8-row`.
    """
    device = profile.device
    seconds = np.zeros(len(kernels))
    if device is None:
        return seconds
    for index in np.unique(kernels.kind).tolist():
        kind, at = KERNEL_KINDS[index], kernels.kind == index
        product = kind in ("product", "convolution")
        used: FloatArray | float = 1.0
        if product:
            used = matmul_utilisation(
                profile, rows=kernels.rows[at], columns=kernels.columns[at], batch=kernels.batch[at]
            )
        if kind == "product":
            used = used * alignment_utilisation(profile, aligned=kernels.aligned[at], dtype=matrix_type)
        seconds[at] = compute_seconds(
            profile,
            kind=_CLASSES.get(kind, cast(OperatorKind, kind)),
            flops=kernels.flops[at],
            bytes_moved=kernels.bytes[at],
            dtype=matrix_type if product else type,
            utilisation=used,
            launches=kernels.launches[at],
            backward=kind == "attention_backward",
            native=native_attention,
        )
        if product and matrix_type in NARROW_BYTES:
            b, m, n, k = kernels.batch[at], kernels.rows[at], kernels.columns[at], kernels.depth[at]
            moved = CAST_BYTES[matrix_type] / 3 * b * (m * k + k * n + m * n)
            seconds[at] += moved / (device.memory_bandwidth_bytes_per_s * device.memory_efficiency)
    return seconds
