"""Seconds an operator takes on one device: a roofline with launch latency.

    seconds = max(arithmetic, traffic) + (1 - overlap) * min(arithmetic, traffic) + launches * launch
    traffic = bytes_moved / (memory bandwidth * memory efficiency of the kind)
    arithmetic = (flops + launches * fill) / (peak of the type * efficiency of the kind and type * utilisation)

`fill` is the work of one tile step on every compute unit: what passes before the matrix units are busy.
It makes the efficiency of products and convolutions depend on size, as flops / (flops + fill).  Efficiencies are what
large kernels reach within a training step, with the clocks that the power limit leaves; attention has those of its
forward and backward pass, by kernel.  A launch of a matrix kernel is its latency and the gap that it leaves around
itself in a step (`product_ramp_s`).  Vector units compute in single precision.  The roofline is Williams, Waterman and
Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009.
It supposes that arithmetic and traffic overlap wholly (`overlap` 1, the default).  On a CPU core they do in part: in
the execution-cache-memory model the transfers add up with the loads and stores of the core, and only other instructions
run beside them (Stengel, Treibig, Hager and Wellein, "Quantifying performance bottlenecks of stencil computations using
the execution-cache-memory model", ICS 2015).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .accelerator import DeviceSpec, OperatorKind, RateType
from .machine import HardwareProfile

__all__ = [
    "DTYPES",
    "KINDS",
    "OperatorKind",
    "alignment_utilisation",
    "compute_seconds",
    "matmul_utilisation",
    "resolve_rate",
]

FloatArray = NDArray[np.float64]

KINDS: Final[tuple[str, ...]] = get_args(OperatorKind)
_MATRIX_KINDS: Final = frozenset({"matmul", "conv", "attention"})

# A type the machine has no rate for is computed in the next one of its row.  fp16 ends them: matrix units that
# know nothing wider (Ascend 910A) are fed what was cast down.
_FALLBACK: Final[dict[RateType, tuple[RateType, ...]]] = {
    "fp64": ("fp64", "fp32", "tf32", "fp16"),
    "fp32": ("fp32", "tf32", "fp16"),
    "tf32": ("tf32", "fp32", "fp16"),
    "bf16": ("bf16", "fp32", "fp16"),
    "fp16": ("fp16", "fp32"),
    "fp8": ("fp8", "bf16", "fp16", "fp32"),
    "fp4": ("fp4", "fp8", "bf16", "fp16", "fp32"),
    "int8": ("int8", "fp16", "fp32"),
}
_ALIASES: Final[dict[str, RateType]] = {
    **{name: name for name in _FALLBACK},
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "uint8": "int8",
    # Integer and boolean tensors are moved and added by the vector units at the rate of 32-bit floats.
    **dict.fromkeys(("int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"), "fp32"),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), "fp8"),
}
DTYPES: Final[tuple[str, ...]] = tuple(sorted(_ALIASES))
# Bytes of an element of the types whose products know slower kernels for rows that are not aligned.  Single and double
# precision run on units that load elements one by one, and 8 and 4 bits are refused or padded.
_ALIGNED_TYPES: Final[Mapping[str, int]] = {"tf32": 4, "bf16": 2, "fp16": 2}


def compute_seconds(
    profile: HardwareProfile,
    *,
    kind: OperatorKind,
    flops: ArrayLike,
    bytes_moved: ArrayLike,
    dtype: str,
    utilisation: ArrayLike = 1.0,
    launches: ArrayLike = 1,
    backward: bool = False,
    native: bool = False,
) -> FloatArray:
    """Seconds of operators of one kind on one device.

    Args:
        kind: class of the operator.
        flops: floating-point operations on this device (a multiply-add counts two), any shape.
        bytes_moved: bytes read from and written to device memory, broadcast against `flops`.
        dtype: type that matrix units compute in, as in `DTYPES`, or `mxfp8` or `fp8-row`.
        utilisation: fraction of the compute units' work that is useful (`matmul_utilisation`), in (0, 1].
        launches: kernels the operator consists of; their latencies and fills add up.
        backward: of attention, whether it is its backward pass; native: whether the kernel is the vendor's own rather
            than a portable one.

    Returns:
        Seconds, of the broadcast shape (0-d for scalars), 0 where nothing is computed or moved.  Zero everywhere if the
        profile has no device.

    Raises:
        ValueError: unknown kind or dtype; a negative or non-finite amount; utilisation outside (0, 1].
    """
    if kind not in KINDS:
        raise ValueError(f"operator kind {kind!r}: expected one of {', '.join(KINDS)}")
    work = _amount("flops", flops)
    traffic = _amount("bytes_moved", bytes_moved)
    kernels = _amount("launches", launches)
    used = np.asarray(utilisation, dtype=np.float64)
    if not bool(np.all((used > 0) & (used <= 1))):
        raise ValueError(f"utilisation: expected fractions in (0, 1], found {utilisation!r}")
    device = profile.device
    if device is None:
        _known(dtype)
        return np.zeros(np.broadcast_shapes(work.shape, traffic.shape, kernels.shape, used.shape))
    rate, fill, launch = _arithmetic(device, kind, dtype, backward, native)
    arithmetic = np.where(work > 0, work + kernels * fill, 0.0) / (rate * used)
    moving = traffic / device.memory_rate(kind)
    busy = np.maximum(arithmetic, moving)
    if device.arithmetic_traffic_overlap < 1:
        busy = busy + (1 - device.arithmetic_traffic_overlap) * np.minimum(arithmetic, moving)
    return np.asarray(np.where((work > 0) | (traffic > 0), busy + kernels * launch, 0.0), dtype=np.float64)


def matmul_utilisation(
    profile: HardwareProfile, *, rows: ArrayLike, columns: ArrayLike, batch: ArrayLike = 1
) -> FloatArray:
    """Useful fraction of the tiles computed for `batch` products of `rows` x `columns` results.

    Tiles are cut off at the borders (tile quantisation), and the last wave leaves compute units idle
    (wave quantisation): NVIDIA, "Matrix Multiplication Background User's Guide".
    When there are fewer tiles than units the depth is assumed to be split among the idle ones, so only
    the border counts there.  Broadcasts its arguments; fractions in (0, 1].

    Raises:
        ValueError: a size below 1.
    """
    m, n, b = (np.asarray(x, dtype=np.float64) for x in (rows, columns, batch))
    for name, value in (("rows", m), ("columns", n), ("batch", b)):
        if not bool(np.all(value >= 1)):
            raise ValueError(f"{name}: expected sizes of at least 1, found {value.min():g}")
    device = profile.device
    if device is None:
        return np.ones(np.broadcast_shapes(m.shape, n.shape, b.shape))
    tiles = np.ceil(m / device.tile_rows) * np.ceil(n / device.tile_columns) * b
    border = m * n * b / (tiles * device.tile_rows * device.tile_columns)
    waves = tiles / device.compute_units
    last_wave = np.where(waves > 1, waves / np.ceil(waves), 1.0)
    return np.asarray(border * last_wave, dtype=np.float64)


def alignment_utilisation(profile: HardwareProfile, *, aligned: ArrayLike, dtype: str) -> FloatArray:
    """Fraction of the rate of products that one keeps whose matrices lie in memory with rows of a multiple of `aligned`
    elements (a power of two): 1 from 16 bytes on, and where the profile states nothing.

    The fast kernels of the matrix units load 16 bytes at once.  Rows that do not begin at multiples of them need others
    (NVIDIA, "Matrix Multiplication Background User's Guide", on requirements of tensor cores).
    """
    elements = np.asarray(aligned, dtype=np.float64)
    found, device, width = np.ones(elements.shape), profile.device, _ALIGNED_TYPES.get(_known(dtype))
    if device is None or width is None:
        return found
    most = device.product_efficiency(dtype)
    for stated, reached in sorted(device.product_efficiency_by_alignment.items(), key=lambda item: -int(item[0])):
        found = np.where(elements * width <= int(stated), min(1.0, reached / most), found)
    return found


def _arithmetic(
    device: DeviceSpec, kind: OperatorKind, dtype: str, backward: bool, native: bool
) -> tuple[float, float, float]:
    """Attainable FLOP/s, FLOPs to fill the units, seconds per launch."""
    if kind not in _MATRIX_KINDS:
        _known(dtype)
        rate = resolve_rate(device.vector_flops_per_s, "fp32") * device.vector_efficiency
        return rate, 0.0, device.vector_launch_latency_s
    peak, launch = resolve_rate(device.matmul_flops_per_s, dtype), device.matrix_launch_latency_s
    launch += device.product_ramp_s
    if kind == "attention":
        return peak * device.attention(native=native)[backward], 0.0, launch
    fill = 2.0 * device.compute_units * device.tile_rows * device.tile_columns * device.tile_depth
    efficiency = device.product_efficiency(dtype) if kind == "matmul" else device.convolution_efficiency
    return peak * efficiency, fill, launch


def resolve_rate(rates: Mapping[RateType, float], dtype: str) -> float:
    """Operations per second in `dtype` (of `DTYPES`, `mxfp8`, `fp8-row`), or in what the machine computes it in."""
    return _rate(rates, _known(dtype))


def _known(dtype: str) -> RateType:
    return "fp8" if dtype in ("mxfp8", "fp8-row") else _resolve(dtype)


def _rate(rates: Mapping[RateType, float], dtype: RateType) -> float:
    return next((rates[name] for name in _FALLBACK[dtype] if name in rates), min(rates.values()))


def _resolve(dtype: str) -> RateType:
    found = _ALIASES.get(dtype)
    if found is None:
        raise ValueError(f"data type {dtype!r}: expected one of {', '.join(DTYPES)}")
    return found


def _amount(name: str, value: ArrayLike) -> FloatArray:
    array = np.asarray(value, dtype=np.float64)
    if not bool(np.all((array >= 0) & np.isfinite(array))):
        raise ValueError(f"{name}: expected finite amounts of at least 0, found {value!r}")
    return array
