"""Seconds of kernels: units, and laws over sizes and efficiencies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost_models import HardwareProfile, load_profile
from planner.cost_models.device import resolve_rate
from planner.cost_models.kernels import KERNEL_KINDS, Kernel, KernelArrays, KernelKind, kernel_seconds

MACHINES = ("v100", "a100-80", "h100", "b200", "ascend-910b")
SIZES = st.integers(1, 20_000)


def seconds(
    profile: HardwareProfile,
    kind: KernelKind,
    flops: float,
    size: float,
    b: int = 1,
    m: int = 1,
    n: int = 1,
    k: int = 1,
    **o: Any,
) -> float:
    arrays = KernelArrays.of([Kernel(kind, flops, size, b, m, n, k)])
    return float(kernel_seconds(profile, arrays, **{"matrix_type": "bf16", "type": "bf16", **o})[0])


def product(profile: HardwareProfile, m: int, n: int, k: int, **o: Any) -> float:
    return seconds(profile, "product", 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n), 1, m, n, k, **o)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", ["elementwise", "gather"])
def test_traffic_takes_its_share_of_the_memory_rate(machine: str, kind: KernelKind) -> None:
    device = load_profile(machine).device
    assert device is not None
    found = seconds(load_profile(machine), kind, 0.0, 2e9)
    rate = device.memory_bandwidth_bytes_per_s * device.memory_efficiency
    assert found == pytest.approx(2e9 / rate + device.vector_launch_latency_s)


@pytest.mark.parametrize("machine", MACHINES)
def test_large_product_runs_at_its_share_of_the_peak(machine: str) -> None:
    profile = load_profile(machine)
    device = profile.device
    assert device is not None
    n = 128 * 128
    peak = resolve_rate(device.matmul_flops_per_s, "fp16")
    found = 2.0 * n**3 / product(profile, n, n, n, matrix_type="fp16", type="fp16") / peak
    assert 0.9 * device.product_efficiency("fp16") <= found <= device.product_efficiency("fp16")


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(MACHINES), st.sampled_from(KERNEL_KINDS), st.floats(0, 1e14), st.floats(0, 1e11), st.floats(1, 9)
)
def test_seconds_grow_with_operations_and_with_bytes(
    machine: str, kind: KernelKind, flops: float, size: float, factor: float
) -> None:
    profile = load_profile(machine)
    one = seconds(profile, kind, flops, size)
    assert one > 0 or flops == size == 0
    assert seconds(profile, kind, flops * factor, size) >= one
    assert seconds(profile, kind, flops, size * factor) >= one


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MACHINES), SIZES, SIZES, SIZES)
def test_no_product_beats_the_peak_or_the_memory(machine: str, m: int, n: int, k: int) -> None:
    profile = load_profile(machine)
    device = profile.device
    assert device is not None
    found = product(profile, m, n, k, matrix_type="fp16", type="fp16")
    assert found >= 2.0 * m * n * k / resolve_rate(device.matmul_flops_per_s, "fp16")
    assert found >= 2.0 * (m * k + k * n + m * n) / device.memory_bandwidth_bytes_per_s


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(MACHINES), st.floats(0.1, 0.99), st.floats(1e9, 1e14), st.floats(1e3, 1e10))
def test_lower_efficiency_takes_longer(machine: str, share: float, flops: float, size: float) -> None:
    profile = load_profile(machine)
    device = profile.device
    assert device is not None
    slower = replace(
        profile,
        device=replace(
            device,
            memory_efficiency=device.memory_efficiency * share,
            convolution_efficiency=device.convolution_efficiency * share,
            vector_efficiency=device.vector_efficiency * share,
        ),
    )
    for kind in KERNEL_KINDS:
        assert seconds(slower, kind, flops, size) >= seconds(profile, kind, flops, size)
    assert seconds(slower, "elementwise", 0, size) > seconds(profile, "elementwise", 0, size)


def test_narrower_types_multiply_faster_where_the_machine_has_them() -> None:
    found = [product(load_profile("h100"), 8192, 8192, 8192, matrix_type=t) for t in ("fp8", "bf16", "tf32")]
    assert found == sorted(found)
    assert found[0] < found[1] < found[2]
    assert product(load_profile("a100-80"), 8192, 8192, 8192, matrix_type="fp16") == pytest.approx(
        product(load_profile("a100-80"), 8192, 8192, 8192, matrix_type="bf16"), rel=0.1
    )


# Nothing is known of a portable kernel's backward pass on Ascend.
@pytest.mark.parametrize(
    ("machine", "kind"),
    [
        (m, k)
        for m in MACHINES
        for k in ("attention", "attention_backward")
        if (m, k) != ("ascend-910b", "attention_backward")
    ],
)
def test_the_vendors_attention_is_never_slower(machine: str, kind: KernelKind) -> None:
    profile = load_profile(machine)
    portable, native = (seconds(profile, kind, 1e13, 1e6, type="fp16", native_attention=x) for x in (False, True))
    assert native <= portable
    assert seconds(profile, "product", 1e13, 1e6, 1, 8192, 8192, 8192, native_attention=True) == seconds(
        profile, "product", 1e13, 1e6, 1, 8192, 8192, 8192
    )


def test_products_of_rows_that_no_load_fits_take_longer_where_a_profile_says_so() -> None:
    stated, silent = load_profile("h200"), load_profile("a100-80")
    assert stated.device is not None
    assert stated.device.product_efficiency_by_alignment

    def of(profile: HardwareProfile, aligned: int, kind: KernelKind = "product", type: str = "bf16") -> float:
        n = 4096
        arrays = KernelArrays.of([Kernel(kind, 2.0 * n**3, 6.0 * n**2, 1, n, n, n, aligned=aligned)])
        return float(kernel_seconds(profile, arrays, matrix_type=type, type=type)[0])

    times = [of(stated, a) for a in (1, 2, 4, 8, 16)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 3 * times[-1]
    assert times[-2] == times[-1]
    assert of(stated, 1, "convolution") == of(stated, 16, "convolution")
    assert of(stated, 1, type="tf32") >= of(stated, 16, type="tf32")
    assert of(silent, 1) == of(silent, 16)


def test_columns_are_priced_one_by_one() -> None:
    profile = load_profile("a100-80")
    sizes = [(512, 512, 512), (4096, 1024, 64), (100, 3, 7)]
    kernels = [Kernel("product", 2.0 * m * n * k, 2.0 * m * n, 1, m, n, k) for m, n, k in sizes]
    together = kernel_seconds(profile, KernelArrays.of(kernels), matrix_type="bf16", type="bf16")
    alone = [seconds(profile, "product", 2.0 * m * n * k, 2.0 * m * n, 1, m, n, k) for m, n, k in sizes]
    assert together.tolist() == alone


def test_without_a_device_nothing_takes_time_and_unknown_types_are_refused() -> None:
    profile = load_profile("a100-80")
    assert seconds(replace(profile, device=None), "elementwise", 1e9, 1e9) == 0
    with pytest.raises((ValueError, KeyError)):
        product(profile, 64, 64, 64, matrix_type="fp7")
