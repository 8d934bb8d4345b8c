"""The [device] values that follow from measured operators.

Fitted are the rates of products, convolutions and vector units, the work that fills the matrix units, the memory's
bandwidth and the latencies of launches.  Peaks are the best rates that any sample shows; efficiencies are the fitted
rates over these peaks, so that the product of both is what was fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cost_models.calibrate.least_squares import fit_positive
from cost_models.calibrate.samples import ComputeSample, Fitted, errors_by
from cost_models.device import compute_seconds
from cost_models.machine import DeviceSpec, HardwareProfile, RateType

__all__ = ["fit_device"]

FloatArray = NDArray[np.float64]
TILE = 16  # side of the tile in which the fill is expressed: only units * rows * columns * depth enters prices
_MATRIX = {"matmul": "matmul_efficiency", "conv": "convolution_efficiency", "attention": "attention_efficiency"}


def fit_device(profile: HardwareProfile, samples: Sequence[ComputeSample]) -> Fitted:
    """Fits the device of `profile` to the samples, all of one element type.  Values of matrix kinds that no sample
    bears on keep their ratio to the others'.

    ValueError without a device, without samples of products or of vector kinds, or with several element types.
    """
    device, types = profile.device, {s.dtype for s in samples}
    if device is None:
        raise ValueError(f"profile {profile.name}: has no [device] to fit; start from another profile")
    if len(types) != 1:
        raise ValueError(f"samples: expected operators of one element type, found {sorted(types) or 'none'}")
    dtype = types.pop()
    products = [s for s in samples if s.kind == "matmul" and s.flops]
    vectors = [s for s in samples if s.kind not in _MATRIX and s.bytes_moved]
    if not products or not vectors:
        raise ValueError("samples: expected products and memory-bound operators, found none of one of them")
    measured = np.array([s.seconds for s in samples])
    groups = _by_kind(samples)
    guess = {k: max(s.flops / s.seconds for s in samples if s.kind == k) for k in _MATRIX if k in groups}
    guess |= {
        "vector": max(s.flops / s.seconds for s in vectors),
        "memory": max(s.bytes_moved / s.seconds for s in vectors),
        "fill": 1e5,
        "matrix_launch": min(s.seconds for s in products),
        "vector_launch": min(s.seconds for s in vectors),
    }

    def model(parameters: Mapping[str, float]) -> FloatArray:
        return _predict(replace(profile, device=_candidate(device, parameters, dtype)), samples, groups)

    fit = fit_positive(model, measured, guess, {"fill": (1.0, 1e12)})
    values = _values(device, fit.parameters, guess, dtype)
    fitted = replace(profile, device=_with(device, values, dtype))
    predicted = _predict(fitted, samples, groups)
    return Fitted(fitted, values, errors_by([s.kind for s in samples], predicted, measured))


def _by_kind(samples: Sequence[ComputeSample]) -> dict[str, NDArray[np.intp]]:
    kinds = np.array([s.kind for s in samples])
    return {k: np.flatnonzero(kinds == k) for k in sorted(set(kinds.tolist()))}


def _predict(
    profile: HardwareProfile, samples: Sequence[ComputeSample], groups: Mapping[str, NDArray[np.intp]]
) -> FloatArray:
    out = np.zeros(len(samples))
    for kind, at in groups.items():
        flops = np.array([samples[i].flops for i in at])
        moved = np.array([samples[i].bytes_moved for i in at])
        dtype = samples[at[0]].dtype
        out[at] = compute_seconds(profile, kind=kind, flops=flops, bytes_moved=moved, dtype=dtype)  # type: ignore[arg-type]
    return out


def _candidate(device: DeviceSpec, p: Mapping[str, float], dtype: str) -> DeviceSpec:
    """The device with these rates; efficiencies here are ratios and may exceed one."""
    changes: dict[str, Any] = {_MATRIX[k]: p[k] / p["matmul"] for k in ("conv", "attention") if k in p}
    changes["tile_depth"] = p["fill"] / 2  # a fraction here; rounded where it is written down
    return replace(
        device,
        matmul_flops_per_s=_rates(dtype, p["matmul"]),
        matmul_efficiency=1.0,
        vector_flops_per_s=_rates(dtype, p["vector"]),
        vector_efficiency=1.0,
        memory_bandwidth_bytes_per_s=p["memory"],
        memory_efficiency=1.0,
        matrix_launch_latency_s=p["matrix_launch"],
        vector_launch_latency_s=p["vector_launch"],
        compute_units=1,
        tile_rows=1,
        tile_columns=1,
        **changes,
    )


def _values(
    device: DeviceSpec, p: Mapping[str, float], best: Mapping[str, float], dtype: str
) -> dict[str, float | int]:
    """By dotted key; a peak is the best rate measured, or fitted where that is higher."""
    peak = max(max(p[k], best[k]) for k in _MATRIX if k in p)
    efficiency = {k: p[k] / peak for k in _MATRIX if k in p}
    known = efficiency["matmul"] / device.matmul_efficiency
    unmeasured = {k: min(1.0, getattr(device, name) * known) for k, name in _MATRIX.items() if k not in efficiency}
    vector, memory = max(p["vector"], best["vector"]), max(p["memory"], best["memory"])
    return {
        f"device.matmul_flops_per_s.{dtype}": peak,
        **{f"device.{name}": {**efficiency, **unmeasured}[k] for k, name in _MATRIX.items()},
        f"device.vector_flops_per_s.{dtype}": vector,
        "device.vector_efficiency": p["vector"] / vector,
        "device.memory_bandwidth_bytes_per_s": memory,
        "device.memory_efficiency": p["memory"] / memory,
        "device.matrix_launch_latency_s": p["matrix_launch"],
        "device.vector_launch_latency_s": p["vector_launch"],
        "device.compute_units": 1,
        "device.tile_rows": TILE,
        "device.tile_columns": TILE,
        "device.tile_depth": max(1, round(p["fill"] / (2 * TILE**2))),
    }


def _with(device: DeviceSpec, values: Mapping[str, float | int], dtype: str) -> DeviceSpec:
    """The device with values by dotted key."""
    changes: dict[str, Any] = {
        f"{k}_flops_per_s": _rates(dtype, values[f"device.{k}_flops_per_s.{dtype}"]) for k in ("matmul", "vector")
    }
    changes |= {k.removeprefix("device."): v for k, v in values.items() if "_flops_per_s." not in k}
    return replace(device, **changes)


def _rates(dtype: str, rate: float) -> dict[RateType, float]:
    return {cast(RateType, dtype): rate}
