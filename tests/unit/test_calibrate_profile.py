"""Profiles are recovered from what they price, and written down so that they price the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.cost_models import HardwareProfile, compute_seconds, load_profile
from planner.cost_models.accelerator import OperatorKind
from planner.cost_models.calibrate import (
    CollectiveSample,
    ComputeSample,
    base_document,
    calibrated_text,
    fit_device,
    fit_links,
)
from planner.cost_models.group import GroupShape
from planner.cost_models.link import CollectiveModel
from planner.cost_models.profile import parse_profile

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
PROFILES = ("cpu", "a100-80", "v100", "ascend-910a")
NAMED = {"name": "here", "description": "fitted", "source": "measured: here"}


def operators(profile: HardwareProfile, noise: float = 0.0, *, conv: bool = True) -> list[ComputeSample]:
    """Products, convolutions and memory-bound operators of all sizes, as `profile` prices them."""
    rng = np.random.default_rng(0)
    amounts = [("matmul", s**3 * 2.0, 12.0 * s**2) for s in (8, 32, 64, 128, 256, 512, 1024, 2048)]
    amounts += [("matmul", 32 * s**2 * 2.0, 4.0 * s**2) for s in (256, 1024, 4096)]
    amounts += [("conv", s**3 * 2.0, 12.0 * s**2) for s in (16, 64, 256, 1024)] if conv else []
    vector = ("elementwise", "normalization", "layout", "reduction", "pooling", "gather")
    amounts += [(k, f * n, 8.0 * n) for k in vector for n in (1e2, 1e4, 1e6, 1e7) for f in (0.0, 1.0, 40.0)]
    out = []
    for kind, flops, moved in amounts:
        seconds = compute_seconds(profile, kind=kind, flops=flops, bytes_moved=moved, dtype="fp32")
        disturbed = float(seconds) * float(np.exp(rng.normal(0, noise)))
        out.append(ComputeSample(kind, kind, flops, moved, "fp32", disturbed))
    return out


def collectives(profile: HardwareProfile, ranks: int = 2, noise: float = 0.0) -> list[CollectiveSample]:
    rng = np.random.default_rng(0)
    model = CollectiveModel(profile)
    out = []
    for kind in KINDS:
        for size in np.logspace(3, 8, 12):
            seconds = float(model.seconds(kind, size, GroupShape(ranks)))  # type: ignore[arg-type]
            out.append(CollectiveSample(kind, ranks, float(size), seconds * float(np.exp(rng.normal(0, noise)))))
    return out


def slower(profile: HardwareProfile, factor: float) -> HardwareProfile:
    """The machine with everything `factor` times slower."""
    device = profile.device
    assert device is not None
    return replace(
        profile,
        device=replace(
            device,
            matmul_flops_per_s={k: v / factor for k, v in device.matmul_flops_per_s.items()},
            vector_flops_per_s={k: v / factor for k, v in device.vector_flops_per_s.items()},
            memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s / factor,
            matrix_launch_latency_s=device.matrix_launch_latency_s * factor,
            vector_launch_latency_s=device.vector_launch_latency_s * factor,
        ),
    )


def rate(fitted: HardwareProfile, kind: str) -> float:
    """Attained operations per second of large operators."""
    device = fitted.device
    assert device is not None
    efficiency = {"matmul": device.matmul_efficiency, "conv": device.convolution_efficiency}[kind]
    return device.matmul_flops_per_s["fp32"] * efficiency


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_device_is_recovered_from_its_prices(noise: float) -> None:
    truth = load_profile("cpu")
    samples = operators(truth, noise)
    found = fit_device(slower(truth, 3.0), samples)
    tolerance = 0.02 + noise
    for kind in ("matmul", "conv"):
        assert rate(found.profile, kind) == pytest.approx(rate(truth, kind), rel=tolerance)
    device, expected = found.profile.device, truth.device
    assert device is not None
    assert expected is not None
    memory = device.memory_bandwidth_bytes_per_s * device.memory_efficiency
    assert memory == pytest.approx(expected.memory_bandwidth_bytes_per_s * expected.memory_efficiency, rel=tolerance)
    assert device.vector_launch_latency_s == pytest.approx(expected.vector_launch_latency_s, rel=tolerance)
    # Of the smallest product, launch and fill are one constant.
    amounts = {"kind": "matmul", "flops": 1.0, "bytes_moved": 1.0, "dtype": "fp32"}
    least = [float(compute_seconds(p, **amounts)) for p in (found.profile, truth)]  # type: ignore[arg-type]
    assert least[0] == pytest.approx(least[1], rel=tolerance)
    assert max(e.mape for e in found.errors.values()) < 0.02 + 1.5 * noise


def test_a_machine_twice_as_slow_has_half_the_rates() -> None:
    truth = load_profile("cpu")
    once, twice = (fit_device(truth, operators(slower(truth, f))) for f in (1.0, 2.0))
    for kind in ("matmul", "conv"):
        assert rate(once.profile, kind) / rate(twice.profile, kind) == pytest.approx(2.0, rel=0.02)
    key = "device.vector_launch_latency_s"
    assert twice.values[key] / once.values[key] == pytest.approx(2.0, rel=0.02)


def test_kinds_without_samples_keep_their_ratio() -> None:
    truth = load_profile("cpu")
    found = fit_device(truth, operators(slower(truth, 2.0), conv=False))
    assert rate(found.profile, "conv") / rate(found.profile, "matmul") == pytest.approx(0.9, rel=1e-6)


KIND_RATES: Mapping[OperatorKind, float] = {
    "matmul": 0.3,
    "conv": 0.15,
    "pooling": 0.05,
    "gather": 0.4,
    "normalization": 0.6,
}


def cpu_core(overlap: float, kinds: Mapping[OperatorKind, float]) -> HardwareProfile:
    """The packaged CPU with this overlap and these memory efficiencies by kind."""
    profile = load_profile("cpu")
    assert profile.device is not None
    device = replace(profile.device, arithmetic_traffic_overlap=overlap, memory_efficiency_by_kind=kinds)
    return replace(profile, device=device)


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_overlap_and_bandwidths_by_kind_are_recovered(overlap: float, noise: float) -> None:
    truth = cpu_core(overlap, KIND_RATES)
    found = fit_device(load_profile("cpu"), operators(truth, noise)).profile.device
    assert found is not None
    assert truth.device is not None
    assert found.arithmetic_traffic_overlap == pytest.approx(overlap, abs=0.02 + 2 * noise)
    for kind in ("elementwise", "pooling", "gather", "normalization", "reduction", "layout"):
        assert found.memory_rate(kind) == pytest.approx(truth.device.memory_rate(kind), rel=0.02 + 2 * noise)


def test_kinds_whose_samples_do_not_wait_for_memory_share_its_efficiency() -> None:
    """Under full overlap a square product's bandwidth shows nowhere."""
    truth = cpu_core(1.0, {})
    samples = [s for s in operators(truth) if s.kind not in ("matmul", "conv") or s.flops > 20 * s.bytes_moved]
    values = fit_device(truth, samples).values
    kinds = {k.rpartition(".")[2] for k in values if k.startswith("device.memory_efficiency_by_kind.")}
    assert {"pooling", "gather", "layout"} <= kinds
    assert not {"conv", "elementwise", "attention"} & kinds


def test_the_base_keeps_its_overlap_where_no_sample_tells_it() -> None:
    """Operators that only compute or only move."""
    base = cpu_core(0.3, {})
    alone = [ComputeSample("", "matmul", f, 1.0, "fp32", 1e-5 + f / 1e11) for f in (1e4, 1e6, 1e8, 1e10)]
    alone += [ComputeSample("", "elementwise", f, 1.0, "fp32", 1e-5 + f / 1e10) for f in (1e4, 1e6, 1e8)]
    alone += [ComputeSample("", "layout", 0.0, b, "fp32", 1e-5 + b / 1e10) for b in (1e4, 1e6, 1e8)]
    found = fit_device(base, alone)
    assert "device.arithmetic_traffic_overlap" not in found.values
    assert found.profile.device is not None
    assert found.profile.device.arithmetic_traffic_overlap == 0.3


def test_a_new_fit_replaces_the_bases_efficiencies_by_kind() -> None:
    base = base_document("cpu")
    base["device"]["memory_efficiency_by_kind"] = {"optimizer": 0.5}
    base["sources"]["device.memory_efficiency_by_kind"] = "assumed: of another machine"
    values = fit_device(load_profile("cpu"), operators(cpu_core(0.0, KIND_RATES))).values
    written = parse_profile(calibrated_text(base, values, **NAMED))
    assert written.device is not None
    assert "optimizer" not in written.device.memory_efficiency_by_kind
    assert written.sources["device.memory_efficiency_by_kind.pooling"] == "measured: here"
    assert written.sources["device.arithmetic_traffic_overlap"] == "measured: here"


def test_efficiencies_are_fractions_of_peaks_that_were_seen() -> None:
    samples = operators(load_profile("cpu"), 0.2)
    values = fit_device(load_profile("cpu"), samples).values
    assert values["device.matmul_flops_per_s.fp32"] >= max(s.flops / s.seconds for s in samples if s.kind == "matmul")
    assert all(0 < v <= 1 for k, v in values.items() if k.endswith("_efficiency"))


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("ranks", [2, 4])
def test_links_are_recovered_from_their_prices(ranks: int, noise: float) -> None:
    truth = load_profile("cpu")
    assert truth.server is not None
    found = fit_links(truth, collectives(truth, ranks, noise))
    kept = (truth.server.bandwidth_bytes_per_s or 0) * truth.protocols[0].bandwidth_fraction
    assert found.values["server.bandwidth_bytes_per_s"] == pytest.approx(kept, rel=0.02 + noise)
    assert max(e.mape for e in found.errors.values()) < 0.03 + 1.5 * noise


def test_a_permute_is_reported_and_decides_nothing() -> None:
    truth = load_profile("cpu")
    samples = collectives(truth)
    fast = [CollectiveSample("permute", 2, 1e6, 1e-6)]
    assert fit_links(truth, samples + fast).values == fit_links(truth, samples).values
    assert fit_links(truth, samples + fast).errors["permute"].samples == 1


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ([], "none"),
        ([ComputeSample("a", "matmul", 1.0, 1.0, "fp32", 1.0)], "memory-bound"),
        ([ComputeSample("a", "matmul", 1.0, 1.0, t, 1.0) for t in ("fp32", "bf16")], "one element type"),
    ],
)
def test_samples_that_do_not_suffice_are_refused(samples: Sequence[ComputeSample], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        fit_device(load_profile("cpu"), samples)


def test_profiles_without_a_machine_are_refused() -> None:
    with pytest.raises(ValueError, match="start from another profile"):
        fit_device(load_profile("alpha-beta"), operators(load_profile("cpu")))
    with pytest.raises(ValueError, match="start from another profile"):
        fit_links(load_profile("alpha-beta"), collectives(load_profile("cpu")))


@pytest.mark.parametrize("base", PROFILES)
def test_what_is_written_prices_as_what_was_fitted(base: str, tmp_path: Path) -> None:
    start = load_profile(base)
    device = fit_device(start, operators(load_profile("cpu")))
    links = fit_links(start, collectives(load_profile("cpu")))
    text = calibrated_text(base_document(base), {**device.values, **links.values}, **NAMED)
    path = tmp_path / "here.toml"
    path.write_text(text, encoding="utf-8")
    written = load_profile(path)
    for s in operators(load_profile("cpu")):
        amounts = {"flops": s.flops, "bytes_moved": s.bytes_moved, "dtype": "fp32"}
        prices = [float(compute_seconds(p, kind=s.kind, **amounts)) for p in (device.profile, written)]  # type: ignore[arg-type]
        assert prices[1] == pytest.approx(prices[0], rel=1e-3)
    for c in collectives(load_profile("cpu")):
        seconds = [
            float(CollectiveModel(p).seconds(c.kind, c.size_bytes, GroupShape(c.ranks)))  # type: ignore[arg-type]
            for p in (links.profile, written)
        ]
        assert seconds[1] == pytest.approx(seconds[0], rel=1e-3)


def test_every_value_says_whether_it_was_measured() -> None:
    values = fit_device(load_profile("a100-80"), operators(load_profile("cpu"))).values
    note = {"device.tile_rows": "derived: of no account"}
    profile = parse_profile(calibrated_text(base_document("a100-80"), values, notes=note, **NAMED))
    assert profile.sources["device.memory_efficiency"] == "measured: here"
    assert profile.sources["device.tile_rows"] == "derived: of no account"
    assert profile.sources["device.memory_bytes"] == load_profile("a100-80").sources["device.memory_bytes"]
    assert profile.server == load_profile("a100-80").server  # no link was measured
    assert profile.device is not None
    assert list(profile.device.matmul_flops_per_s) == ["fp32"]  # no other type was measured


def test_a_file_is_a_base_as_well(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(calibrated_text(base_document("cpu"), {"device.memory_bytes": 123456789}, **NAMED))
    again = parse_profile(calibrated_text(base_document(str(path)), {"allocator.reserve_bytes": 1}, **NAMED))
    assert again.device is not None
    assert (again.device.memory_bytes, again.allocator.reserve_bytes) == (123456789, 1)
