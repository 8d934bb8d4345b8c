"""Bytes per parameter and the time of an optimizer step."""

from __future__ import annotations

import pytest

from planner.cost_models import (
    ParameterBytes,
    alpha_beta_profile,
    load_profile,
    optimizer_seconds,
    parameter_bytes,
    usable_memory_bytes,
)


@pytest.mark.parametrize(
    ("precision", "optimizer", "expected"),
    [
        ("bf16", "adam", ParameterBytes(2, 2, 4, 8)),
        ("fp16", "adam", ParameterBytes(2, 2, 4, 8)),
        ("fp32", "adam", ParameterBytes(4, 4, 0, 8)),
        ("bf16", "momentum", ParameterBytes(2, 2, 4, 4)),
        ("fp32", "sgd", ParameterBytes(4, 4, 0, 0)),
    ],
)
def test_bytes_per_element(precision: str, optimizer: str, expected: ParameterBytes) -> None:
    assert parameter_bytes(precision, optimizer) == expected  # type: ignore[arg-type]


def test_mixed_precision_adam_takes_sixteen_bytes() -> None:
    """ZeRO, section 3.1: 2 + 2 + 12 bytes per parameter; fp32 training takes as many."""
    assert parameter_bytes("bf16", "adam").total == parameter_bytes("fp32", "adam").total == 16


def test_inference_keeps_the_compute_copy_only() -> None:
    assert parameter_bytes("bf16", "adam", training=False) == ParameterBytes(2, 0, 0, 0)


def test_optimizer_update_is_memory_traffic() -> None:
    """bf16 Adam moves 2 + 8 + 16 + 2 bytes per element: gradient, master and moments twice, compute copy."""
    profile = load_profile("a100-80")
    assert profile.device is not None
    bandwidth = profile.device.memory_bandwidth_bytes_per_s * profile.device.memory_efficiency
    seconds = optimizer_seconds(profile, 1e9)
    assert seconds == pytest.approx(28e9 / bandwidth + profile.device.vector_launch_latency_s)
    assert optimizer_seconds(profile, [0, 1e9]).tolist() == [0, float(seconds)]


def test_usable_memory_leaves_the_reserve() -> None:
    profile = load_profile("ascend-910b")
    assert usable_memory_bytes(profile) == 62 * 2**30
    assert usable_memory_bytes(alpha_beta_profile([1], [1])) is None


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="precision 'fp8': expected one of bf16, fp16, fp32"):
        parameter_bytes("fp8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="optimizer 'lion': expected one of adam"):
        parameter_bytes("bf16", "lion")  # type: ignore[arg-type]
