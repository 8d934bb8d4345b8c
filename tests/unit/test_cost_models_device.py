"""Roofline of one device, against closed forms on round numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from planner.cost_models import KINDS, alpha_beta_profile, compute_seconds, load_profile, matmul_utilisation
from planner.cost_models.device import alignment_utilisation
from planner.cost_models.machine import HardwareProfile


@pytest.fixture(scope="module")
def toy() -> HardwareProfile:
    """1 TFLOP/s in matrices, 0.1 in vectors, 1 TB/s, 1 µs to launch; ten units with tiles of 10 x 10 x 5."""
    cpu = load_profile("cpu")
    return changed(
        cpu,
        memory_bandwidth_bytes_per_s=2e12,
        memory_efficiency=0.5,
        matmul_flops_per_s={"fp32": 2e12, "fp16": 8e12},
        vector_flops_per_s={"fp32": 1e11},
        matmul_efficiency=0.5,
        convolution_efficiency=0.25,
        attention_efficiency=0.5,
        vector_efficiency=1.0,
        matrix_launch_latency_s=1e-6,
        vector_launch_latency_s=1e-6,
        compute_units=10,
        tile_rows=10,
        tile_columns=10,
        tile_depth=5,
    )


def changed(profile: HardwareProfile, **values: Any) -> HardwareProfile:
    """The machine with other values of its device."""
    assert profile.device is not None
    return dataclasses.replace(profile, device=dataclasses.replace(profile.device, **values))


FILL = 2 * 10 * 10 * 10 * 5  # FLOPs of one step of one tile on each unit


def test_bound_by_arithmetic(toy: HardwareProfile) -> None:
    seconds = compute_seconds(toy, kind="matmul", flops=1e9, bytes_moved=1e3, dtype="fp32")
    assert seconds == pytest.approx((1e9 + FILL) / 1e12 + 1e-6, rel=1e-12)


def test_bound_by_memory(toy: HardwareProfile) -> None:
    seconds = compute_seconds(toy, kind="matmul", flops=1e3, bytes_moved=1e9, dtype="fp32")
    assert seconds == pytest.approx(1e-3 + 1e-6, rel=1e-12)


def test_vector_kinds_have_no_fill(toy: HardwareProfile) -> None:
    seconds = compute_seconds(toy, kind="elementwise", flops=1e6, bytes_moved=0, dtype="fp32")
    assert seconds == pytest.approx(1e-5 + 1e-6, rel=1e-12)


def test_kinds_differ_in_efficiency(toy: HardwareProfile) -> None:
    matmul, conv = (
        float(compute_seconds(toy, kind=k, flops=1e12, bytes_moved=0, dtype="fp32")) for k in ("matmul", "conv")
    )
    assert conv == pytest.approx(2 * matmul, rel=1e-5)


def test_size_dependent_efficiency(toy: HardwareProfile) -> None:
    """Half of the attainable rate is reached at `FILL` operations."""
    launch = 1e-6
    seconds = float(compute_seconds(toy, kind="matmul", flops=FILL, bytes_moved=0, dtype="fp32")) - launch
    assert FILL / seconds == pytest.approx(1e12 / 2)


@pytest.mark.parametrize(
    ("dtype", "as_dtype"),
    [
        ("bf16", "fp32"),
        ("float16", "fp16"),
        ("int64", "fp32"),
        ("fp64", "fp32"),
        ("int8", "fp16"),
        ("fp8", "fp16"),
    ],
)
def test_types_without_a_rate_fall_back(toy: HardwareProfile, dtype: str, as_dtype: str) -> None:
    a, b = (compute_seconds(toy, kind="matmul", flops=1e9, bytes_moved=0, dtype=d) for d in (dtype, as_dtype))
    assert a == b


def test_without_overlap_arithmetic_and_traffic_add_up(toy: HardwareProfile) -> None:
    amounts = {"flops": 1e9, "bytes_moved": 1e9, "dtype": "fp32"}
    arithmetic, traffic, launch = (1e9 + FILL) / 1e12, 1e-3, 1e-6
    for overlap, busy in ((0.0, arithmetic + traffic), (0.25, arithmetic + 0.75 * traffic)):
        seconds = compute_seconds(changed(toy, arithmetic_traffic_overlap=overlap), kind="matmul", **amounts)  # type: ignore[arg-type]
        assert seconds == pytest.approx(busy + launch, rel=1e-12)


def test_kinds_have_their_own_memory_efficiency(toy: HardwareProfile) -> None:
    """A quarter of 2 TB/s for pooling, half of it for every other kind."""
    profile = changed(toy, memory_efficiency_by_kind={"pooling": 0.25})
    seconds = {k: compute_seconds(profile, kind=k, flops=0, bytes_moved=1e9, dtype="fp32") for k in KINDS}  # type: ignore[arg-type]
    assert seconds.pop("pooling") == pytest.approx(2e-3 + 1e-6, rel=1e-12)
    assert list(map(float, seconds.values())) == pytest.approx([1e-3 + 1e-6] * len(seconds), rel=1e-12)


def test_rows_of_fewer_bytes_than_a_load_keep_a_fraction_of_the_rate(toy: HardwareProfile) -> None:
    """Products reach half the peak, those of rows of 2 bytes a tenth of it: a fifth is left."""
    profile = changed(toy, product_efficiency_by_alignment={"2": 0.1, "4": 0.25, "8": 0.75})
    aligned = [1, 2, 4, 8, 16]
    found = {t: alignment_utilisation(profile, aligned=aligned, dtype=t).tolist() for t in ("fp16", "tf32", "fp32")}
    assert found == {"fp16": [0.2, 0.5, 1, 1, 1], "tf32": [0.5, 1, 1, 1, 1], "fp32": [1, 1, 1, 1, 1]}
    assert alignment_utilisation(profile, aligned=aligned, dtype="mxfp8").tolist() == [1] * 5
    assert alignment_utilisation(toy, aligned=aligned, dtype="fp16").tolist() == [1] * 5
    assert alignment_utilisation(alpha_beta_profile([0.0], [1.0]), aligned=aligned, dtype="fp16").tolist() == [1] * 5


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_costs_nothing(toy: HardwareProfile, kind: str) -> None:
    """A copy-free reshape neither computes nor moves, so nothing is launched."""
    assert compute_seconds(toy, kind=kind, flops=0, bytes_moved=0, dtype="fp32") == 0  # type: ignore[arg-type]


def test_vectorised_as_scalar(toy: HardwareProfile) -> None:
    rng = np.random.default_rng(0)
    flops, moved = rng.uniform(0, 1e10, 50), rng.uniform(0, 1e8, 50)
    together = compute_seconds(toy, kind="conv", flops=flops, bytes_moved=moved, dtype="fp16")
    singly = [
        float(compute_seconds(toy, kind="conv", flops=f, bytes_moved=b, dtype="fp16"))
        for f, b in zip(flops, moved, strict=True)
    ]
    assert together.tolist() == singly
    assert compute_seconds(toy, kind="conv", flops=flops, bytes_moved=0, dtype="fp16").shape == (50,)


def test_launches_add_up(toy: HardwareProfile) -> None:
    one, three = (
        float(compute_seconds(toy, kind="normalization", flops=1, bytes_moved=1e6, dtype="fp32", launches=n))
        for n in (1, 3)
    )
    assert three - one == pytest.approx(2e-6)


def test_utilisation_counts_tiles_and_waves(toy: HardwareProfile) -> None:
    exact = matmul_utilisation(toy, rows=100, columns=10)  # ten tiles on ten units
    cut = matmul_utilisation(toy, rows=95, columns=10)  # the last tile half empty
    wave = matmul_utilisation(toy, rows=110, columns=10)  # eleven tiles: nine units idle in the second wave
    assert (float(exact), float(cut), float(wave)) == pytest.approx((1.0, 0.95, 0.55))
    assert float(matmul_utilisation(toy, rows=10, columns=10)) == 1.0  # depth is split among idle units
    assert matmul_utilisation(toy, rows=np.array([1, 2]), columns=4, batch=np.array([[1], [2]])).shape == (
        2,
        2,
    )


def test_utilisation_slows_arithmetic(toy: HardwareProfile) -> None:
    half = compute_seconds(toy, kind="matmul", flops=1e9, bytes_moved=0, dtype="fp32", utilisation=0.5)
    assert half == pytest.approx(2 * (1e9 + FILL) / 1e12 + 1e-6)


def test_matmul_within_a_training_step_stays_below_the_best_published_rate() -> None:
    """stas00/ml-engineering measures 271.2 TFLOP/s on A100 and 794.5 on H100 at best, for products alone."""
    for name, published in (("a100-80", 271.2e12), ("h100", 794.5e12)):
        n = 16384
        seconds = float(
            compute_seconds(load_profile(name), kind="matmul", flops=2 * n**3, bytes_moved=6 * n**2, dtype="bf16")
        )
        assert 0.6 * published < 2 * n**3 / seconds < published


def test_alpha_beta_computes_for_free() -> None:
    profile = alpha_beta_profile([1], [1])
    seconds = compute_seconds(profile, kind="matmul", flops=np.ones(3), bytes_moved=1, dtype="fp32")
    assert seconds.tolist() == [0, 0, 0]
    assert matmul_utilisation(profile, rows=3, columns=[1, 2]).tolist() == [1, 1]


def test_errors_name_what_was_expected(toy: HardwareProfile) -> None:
    with pytest.raises(ValueError, match="operator kind 'pool': expected one of matmul"):
        compute_seconds(toy, kind="pool", flops=1, bytes_moved=1, dtype="fp32")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="data type 'fp7'"):
        compute_seconds(toy, kind="matmul", flops=1, bytes_moved=1, dtype="fp7")
    with pytest.raises(ValueError, match="flops: expected finite"):
        compute_seconds(toy, kind="matmul", flops=-1, bytes_moved=1, dtype="fp32")
    with pytest.raises(ValueError, match="bytes_moved: expected finite"):
        compute_seconds(toy, kind="matmul", flops=1, bytes_moved=float("nan"), dtype="fp32")
    with pytest.raises(ValueError, match="utilisation"):
        compute_seconds(toy, kind="matmul", flops=1, bytes_moved=1, dtype="fp32", utilisation=0)
    with pytest.raises(ValueError, match="columns: expected sizes of at least 1"):
        matmul_utilisation(toy, rows=1, columns=0)
