"""Measured samples count work as plans are priced, and profiles can be made of them."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.cli.main import main
from planner.cost_models import compute_seconds, load_profile
from planner.ir import DeviceMesh
from planner.pricing import Machine, Settings, bind_rules, price

pytest.importorskip("torch")  # before planner.runtime, which needs it, is imported
pytestmark = pytest.mark.peer

from planner.kernels import run_local  # noqa: E402
from planner.kernels.gradients import vjp  # noqa: E402
from planner.runtime.measure.cases import Case, operator_cases  # noqa: E402
from planner.runtime.measure.collectives import _seconds  # noqa: E402
from planner.runtime.measure.operators import _DeviceWatch, _floats, _HostWatch, alone, work  # noqa: E402
from planner.runtime.rank import Rank  # noqa: E402
from planner.runtime.registry import operator_types  # noqa: E402
from planner.runtime.workers import Context, device_of  # noqa: E402
from planner.verify.data import random_tensors  # noqa: E402

CASES = [c for c in operator_cases(128, quick=True) if max(map(np.prod, c.operands)) < 1 << 18]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.label)
def test_work_is_counted_as_plans_are_priced(case: Case) -> None:
    graph = case.graph()
    rules, missing = bind_rules(graph)
    assert not missing
    active = alone(graph).active
    profile = load_profile("cpu")
    assert profile.device is not None
    full = replace(profile.device, compute_units=1, tile_rows=1, tile_columns=1)  # as calibrated ones have them
    profile = replace(profile, device=full)
    machine = Machine(profile, DeviceMesh.of(1), Settings(training=True, precision="fp32"))
    (op,) = graph.ops
    table = price(graph, machine, rules, active, None).tables[op.name]
    priced = [int(table.work.forward[0]), int(table.work.backward[0])]
    for found, (flops, moved, launches) in zip(priced, work(graph, rules[op.name]), strict=True):
        kind = "layout" if rules[op.name].cost.kind == "free" else rules[op.name].cost.kind
        seconds = compute_seconds(profile, kind=kind, flops=flops, bytes_moved=moved, dtype="fp32", launches=launches)
        assert found == pytest.approx(float(seconds) / machine.unit_s, abs=1)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.label)
def test_measured_operators_compute_what_kernels_compute(case: Case) -> None:
    import torch

    graph = case.graph()
    values = random_tensors(graph, 0)
    rng = np.random.default_rng(0)
    for i, below in case.integers.items():
        values[graph.ops[0].inputs[i]] = rng.integers(0, below, size=case.operands[i])
    program = alone(graph)
    rank = Rank(program, values, Context(0, 1, torch.device("cpu")))
    rank.step()
    assert not rank.fallbacks
    (op,) = graph.ops
    operands = [np.asarray(values[n] if graph.tensors[n].value is None else graph.tensors[n].value) for n in op.inputs]
    results = run_local(op, operands)
    by_name = {name: y for (name, _), y in rank.values.items()}
    for name, y in zip(op.outputs, results, strict=True):
        assert y is not None
        np.testing.assert_allclose(by_name[name].numpy(), y, rtol=1e-4, atol=1e-4 * float(np.abs(y).max() or 1))
    given = [rank.seeds[k].numpy() for k in rank.seeds]
    differentiable = program.rules[op.name].differentiable
    wanted = [i in differentiable and n in program.active for i, n in enumerate(op.inputs)]
    expected = vjp(op, operands, results, given, wanted)
    found = {name: g.numpy() for (name, _), g in rank.gradients.items()}
    for name, g in zip(op.inputs, expected, strict=True):
        if g is not None:
            scale = float(np.abs(g).max() or 1)
            np.testing.assert_allclose(found[name], g, rtol=1e-3, atol=1e-4 * scale, err_msg=name)


def test_cases_have_torch_functions() -> None:
    assert {c.type for c in operator_cases(1024)} <= operator_types()


def test_large_operands_repeat_what_is_drawn() -> None:
    case = Case("Where", ((4, 4), (1 << 11, 1 << 10), ()), ((1 << 11, 1 << 10),), given={0: np.eye(4, dtype=bool)})
    found = _floats(case.graph(), 1)
    assert found["x0"].dtype == bool
    assert found["x1"].shape == (1 << 11, 1 << 10)
    assert found["x1"].dtype == np.float32
    assert np.array_equal(found["x1"][: 1 << 10], found["x1"][1 << 10 :])
    assert float(found["x1"].std()) == pytest.approx(1.0, abs=0.01)
    assert found["x2"].shape == ()
    assert not np.array_equal(found["x1"], _floats(case.graph(), 2)["x1"])


class _Event:
    """Stands for an event in a device's queue: it notes the time of the host."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, other: _Event) -> float:
        return 1e3 * (other.at - self.at)


def test_a_gpu_is_timed_by_events_behind_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    waited: list[int] = []
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "_sleep", waited.append)
    context = Context(0, 1, torch.device("cpu"))
    graph = Case("Gelu", ((64, 64),), ((64, 64),)).graph()
    rank = Rank(alone(graph), _floats(graph, 0), context)
    watches: list[Any] = [_DeviceWatch(context), _HostWatch(context)]
    for watch in watches:
        for _ in range(3):
            watch.step(rank)
        assert [len(watch.times[way]) for way in ("forward", "backward")] == [3, 3]
        assert min(watch.times["forward"] + watch.times["backward"]) > 0
    assert len(waited) == 3
    assert min(waited) > 0


def test_what_is_in_single_precision_computes_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # as PyTorch starts, and as it is left
    assert device_of("cuda", 3) == torch.device("cuda", 1)
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.slow
def test_a_profile_is_measured_fitted_and_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "here.toml"
    assert main(["calibrate", "--out", str(path), "--quick", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    profile = load_profile(path)
    assert profile.name == "here"
    assert profile.sources["device.memory_efficiency"].startswith("measured: 2 processes")
    assert 0 <= profile.framework.collective_interference < 1
    assert profile.sources["framework.collective_interference"].startswith("measured: 2 processes")
    assert document["errors"].keys() >= {"matmul", "conv", "elementwise", "all_reduce", "all_gather"}
    assert profile.server is not None
    assert profile.server.devices == 2


def test_a_collective_begins_when_its_last_rank_arrives() -> None:
    """A rank that waits for another one measures what the machine does to that one."""
    early, late = (0.0, 3.5), (3.0, 3.7)
    assert _seconds([[early] * 3, [late] * 3]) == pytest.approx((0.5 + 0.7) / 2)
    sent, received = (0.0, 0.1), (1.0, 1.4)  # a message that waits in a buffer
    assert _seconds([[sent], [received]]) == pytest.approx(0.2)
    assert _seconds([[(0.0, 1.0), (2.0, 3.0), (4.0, 9.0)], [(0.0, 1.0), (2.0, 3.0), (4.0, 9.0)]]) == 1.0
