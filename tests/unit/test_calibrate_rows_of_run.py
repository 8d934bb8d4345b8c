"""Operators that a run has measured, as rows that `planner calibrate` fits to."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner.builder import build
from planner.cli.main import main
from planner.cost_models import HardwareProfile, load_profile
from planner.cost_models.calibrate import ComputeSample
from planner.cost_models.device import compute_seconds
from planner.frontends import import_bytes
from planner.planning import Planned, Request, describe, make_plan
from planner.planning.constraints import parse_pin
from planner.pricing import Settings
from planner.report.profiled import Profile, profiled
from planner.runtime.timed import Timed

SIZES: dict[str, Any] = {"layers": 2, "hidden": 256, "heads": 8, "vocab": 1024, "seq": 64, "batch": 8}


@cache
def planned() -> Planned:
    graph = import_bytes(build("gpt", SIZES).SerializeToString(), name="gpt")
    request = Request(2, load_profile("cpu"), Settings(True, "fp32"), constraints=parse_pin("rest=data_parallel"))
    return make_plan(graph, request)


def slow() -> HardwareProfile:
    """A machine whose products take three times as long, and whose memory twice."""
    truth = load_profile("cpu")
    device = truth.device
    assert device is not None
    rates = {k: v / 3 for k, v in device.matmul_flops_per_s.items()}
    memory = device.memory_bandwidth_bytes_per_s / 2
    return replace(truth, device=replace(device, matmul_flops_per_s=rates, memory_bandwidth_bytes_per_s=memory))


def seconds_of(profile: HardwareProfile, s: ComputeSample) -> float:
    about: Any = {"kind": s.kind, "flops": s.flops, "bytes_moved": s.bytes_moved, "dtype": s.dtype}
    return float(compute_seconds(profile, **about, launches=s.launches))


def measured(machine: HardwareProfile) -> Profile:
    """The profile of a run whose every operator takes what the machine's price is."""
    made = planned()
    names = [op.name for op in made.priced.graph.ops]
    once = [Timed(k, n, "", 0, 0.0, 1.0) for n in names for k in ("forward", "backward")]  # type: ignore[arg-type]
    amounts = {
        s.label: s for s in profiled(describe(made, bind={}, batch=None), [[once]], 1.0, program=made.program).samples
    }
    step = []
    for t in once:
        sample = amounts.get(f"{t.name} {t.kind}")
        step.append(replace(t, end_s=1e-6 if sample is None else seconds_of(machine, sample)))
    return profiled(describe(made, bind={}, batch=None), [[step, step]] * 2, 1.0, program=made.program)


def test_samples_are_what_operators_do_on_a_rank() -> None:
    samples = {s.label: s for s in measured(slow()).samples}
    graph = planned().priced.graph
    product = next(op for op in graph.ops if op.type == "MatMul" and "c_attn" in op.name)
    forward, backward = (samples[f"{product.name} {way}"] for way in ("forward", "backward"))
    rows = SIZES["batch"] // 2 * SIZES["seq"]
    assert forward.flops == 2 * rows * 256 * 768
    assert backward.flops == 2 * forward.flops
    assert forward.bytes_moved == 4 * (rows * 256 + 256 * 768 + rows * 768)
    assert {s.dtype for s in samples.values()} == {"fp32"}


def test_a_machine_is_recovered_from_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = measured(slow())
    profile.save(tmp_path)
    out = tmp_path / "here.toml"
    assert main(["calibrate", "--rows", str(tmp_path / "profile.json"), "--base", "cpu", "--out", str(out)]) == 0
    assert f"cpu fitted to {len(profile.samples)} operators of gpt" in capsys.readouterr().out
    found = load_profile(str(out))
    for s in profile.samples:
        assert seconds_of(found, s) == pytest.approx(seconds_of(slow(), s), rel=0.1)
    before = load_profile("cpu")
    heavy = max(profile.samples, key=lambda s: s.flops)
    assert seconds_of(found, heavy) > 2.5 * seconds_of(before, heavy)


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        ([], "expected operators of one element type"),
        ([{"label": "x"}], "missing"),
        ([asdict(ComputeSample("a", "matmul", 1e6, 1e3, "fp32", 1e-3))], "expected products and memory-bound"),
        ("x", "cannot be fitted to"),
    ],
)
def test_what_cannot_be_fitted_to_is_refused(
    samples: Any, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile.json").write_text(json.dumps({"model": "m", "samples": samples}))
    out = tmp_path / "here.toml"
    assert main(["calibrate", "--rows", str(tmp_path / "profile.json"), "--out", str(out)]) == 3
    said = capsys.readouterr().err
    assert why in said
    assert "profile another run" in said
    assert not out.exists()


def test_rows_of_redistributions_are_of_collectives_whatever_operators_are_called() -> None:
    """A tensor often has the name of the operator that makes it."""
    made = planned()
    tensor = next(op.outputs[0] for op in made.priced.graph.ops if op.outputs[0] == op.name)
    found = profiled(describe(made, bind={}, batch=None), [[[Timed("value", tensor, "", 0, 0.0, 1.0)]]], 1.0)
    assert [r.type for r in found.rows] == ["nothing sent"]
    assert found.samples == ()
