"""The [device] values that follow from measured operators.

Fitted are the rates of products, convolutions and vector units, the work that fills the matrix units, the memory's
bandwidth by kind of operator, how far arithmetic and traffic overlap, and the latencies of launches.  Peaks are the
best rates that any sample shows; efficiencies are the fitted rates over these peaks, so that the product of both is
what was fitted.

`memory_efficiency` is that of elementwise operators, which updates of parameters are as well.  Another kind has its
own, and the overlap leaves its value in the base, where samples can tell: their elasticities
d ln(seconds) / d ln(parameter), squared and summed (the parameter's Fisher information in units of a residual's
variance), come to `TELLING` at least.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..accelerator import DeviceSpec, OperatorKind, RateType
from ..device import compute_seconds
from ..machine import HardwareProfile
from .least_squares import fit_positive
from .samples import ComputeSample, Fitted, errors_by

__all__ = ["fit_device"]

FloatArray = NDArray[np.float64]
TELLING = 0.25  # the standard error of the parameter's logarithm is then at most twice that of a sample's
_RATIO = "memory of "  # parameters: a kind's bandwidth over the shared one
_STEP = 1e-3
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
    shared = "elementwise" if "elementwise" in groups else vectors[0].kind
    own = [k for k in groups if k != shared and any(samples[i].bytes_moved for i in groups[k])]
    guess |= {
        "vector": max(s.flops / s.seconds for s in vectors),
        "memory": max(s.bytes_moved / s.seconds for s in vectors),
        "fill": 1e5,
        "matrix_launch": min(s.seconds for s in products),
        "vector_launch": min(s.seconds for s in vectors),
        "serial": 1.5,  # 2 - overlap: a positive parameter whose logarithm has a slope everywhere
    }
    bounds = {"fill": (1.0, 4e9), "serial": (1.0, 2.0)}

    def model(parameters: Mapping[str, float]) -> FloatArray:
        return _predict(replace(profile, device=_candidate(device, parameters, dtype)), samples, groups)

    start = {**guess, **{f"{_RATIO}{k}": 1.0 for k in own}}
    found = fit_positive(model, measured, start, bounds).parameters
    uninformed = {n for n in start if n.startswith((_RATIO, "serial")) and _information(model, found, n) < TELLING}
    if uninformed:
        start = {n: v for n, v in start.items() if n not in uninformed}
        found = fit_positive(model, measured, start, bounds).parameters
    values = _values(device, found, guess, dtype)
    fitted = replace(profile, device=_with(device, values, dtype))
    predicted = _predict(fitted, samples, groups)
    return Fitted(fitted, values, errors_by([s.kind for s in samples], predicted, measured))


def _information(model: Callable[[Mapping[str, float]], FloatArray], p: Mapping[str, float], name: str) -> float:
    """Sum of the squared derivatives of ln(seconds) by the logarithm of the parameter `name`."""
    up, down = (np.log(model({**p, name: p[name] * f})) for f in (1 + _STEP, 1 - _STEP))
    return float((((up - down) / (2 * _STEP)) ** 2).sum())


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
        launches = np.array([samples[i].launches for i in at])
        dtype = samples[at[0]].dtype
        known = cast(OperatorKind, kind)  # a sample's kind is checked by what prices it
        out[at] = compute_seconds(profile, kind=known, flops=flops, bytes_moved=moved, dtype=dtype, launches=launches)
    return out


def _candidate(device: DeviceSpec, p: Mapping[str, float], dtype: str) -> DeviceSpec:
    """The device with these rates; efficiencies here are ratios and may exceed one."""
    changes: dict[str, Any] = {_MATRIX[k]: p[k] / p["matmul"] for k in ("conv", "attention") if k in p}
    changes["tile_depth"] = p["fill"] / 2  # a fraction here; rounded where it is written down
    return replace(
        device,
        matmul_flops_per_s=_rates(dtype, p["matmul"]),
        matmul_efficiency=1.0,
        matmul_efficiency_by_type={},
        product_ramp_s=0.0,
        vector_flops_per_s=_rates(dtype, p["vector"]),
        vector_efficiency=1.0,
        memory_bandwidth_bytes_per_s=p["memory"],
        memory_efficiency=1.0,
        memory_efficiency_by_kind=_ratios(p),
        arithmetic_traffic_overlap=_overlap(device, p),
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
    ratios = _ratios(p)
    vector = max(p["vector"], best["vector"])
    memory = max(p["memory"] * max([1.0, *ratios.values()]), best["memory"])
    return {
        f"device.matmul_flops_per_s.{dtype}": peak,
        **{f"device.{name}": {**efficiency, **unmeasured}[k] for k, name in _MATRIX.items()},
        f"device.vector_flops_per_s.{dtype}": vector,
        "device.vector_efficiency": p["vector"] / vector,
        "device.memory_bandwidth_bytes_per_s": memory,
        "device.memory_efficiency": p["memory"] / memory,
        **{f"device.memory_efficiency_by_kind.{k}": p["memory"] * v / memory for k, v in ratios.items()},
        **({"device.arithmetic_traffic_overlap": _overlap(device, p)} if "serial" in p else {}),
        "device.matrix_launch_latency_s": p["matrix_launch"],
        "device.vector_launch_latency_s": p["vector_launch"],
        "device.compute_units": 1,
        "device.tile_rows": 1,
        "device.tile_columns": 1,
        "device.tile_depth": max(1, round(p["fill"] / 2)),
    }


def _with(device: DeviceSpec, values: Mapping[str, float | int], dtype: str) -> DeviceSpec:
    """The device with values by dotted key."""
    changes: dict[str, Any] = {
        f"{k}_flops_per_s": _rates(dtype, values[f"device.{k}_flops_per_s.{dtype}"]) for k in ("matmul", "vector")
    }
    changes |= {k.removeprefix("device."): v for k, v in values.items() if k.count(".") == 1}
    table = "device.memory_efficiency_by_kind."
    changes["memory_efficiency_by_kind"] = {k.removeprefix(table): v for k, v in values.items() if k.startswith(table)}
    return replace(device, matmul_efficiency_by_type={}, product_ramp_s=0.0, **changes)


def _overlap(device: DeviceSpec, p: Mapping[str, float]) -> float:
    """The fitted overlap, or the base's.  Rounding may lead out of [0, 1]."""
    return min(max(2 - p["serial"], 0.0), 1.0) if "serial" in p else device.arithmetic_traffic_overlap


def _ratios(p: Mapping[str, float]) -> dict[OperatorKind, float]:
    """Bandwidth of the kinds that have one of their own, over the shared one."""
    return {cast(OperatorKind, k.removeprefix(_RATIO)): v for k, v in p.items() if k.startswith(_RATIO)}


def _rates(dtype: str, rate: float) -> dict[RateType, float]:
    return {cast(RateType, dtype): rate}
