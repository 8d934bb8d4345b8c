"""docs/mindspore.md, step by step: a network exported by MindSpore, planned, and its files taken by MindSpore."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.cli.main import main

pytestmark = pytest.mark.peer
mindspore = pytest.importorskip("mindspore")
from mindspore import nn, ops  # noqa: E402  after the check


class Net(nn.Cell):  # type: ignore[misc,name-defined]  # MindSpore has no types
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.relu, self.fc2 = nn.Dense(64, 128), nn.ReLU(), nn.Dense(128, 10)

    def construct(self, x: Any) -> Any:
        return self.fc2(self.relu(self.fc1(x)))


class WithLoss(nn.Cell):  # type: ignore[misc,name-defined]  # MindSpore has no types
    def __init__(self, net: Any) -> None:
        super().__init__(auto_prefix=False)
        self.net, self.softmax, self.neg = net, ops.LogSoftmax(-1), ops.Neg()
        self.sum, self.mean = ops.ReduceSum(), ops.ReduceMean()

    def construct(self, x: Any, labels: Any) -> Any:
        return self.mean(self.neg(self.sum(self.softmax(self.net(x)) * labels, -1)))


def test_a_network_of_mindspore_is_planned_and_its_files_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cell = WithLoss(Net())
    x, labels = (mindspore.Tensor(np.zeros((32, n), np.float32)) for n in (64, 10))
    mindspore.export(cell, x, labels, file_name="model", file_format="ONNX")
    names = [{"name": p.name, "shape": list(p.shape)} for p in cell.trainable_params()]
    (tmp_path / "names.json").write_text(json.dumps(names), encoding="utf-8")
    pins = ("--pin", "type=Gemm shard=[[4,1],[2,1]]", "--pin", "mesh=4x2")
    arguments = ["search", "model.onnx", "--devices", "8", "--hardware", "ascend-910b", "--mode", "training"]
    assert main([*arguments, "--target", "mindspore", "--no-cache", "--out", "plan", *pins]) == 0
    assert main(["verify", "plan/plan.json", "model.onnx"]) == 0
    assert main(["emit", "plan/plan.json", "--target", "mindspore", "--names", "names.json", "--out", "out"]) == 0
    found = mindspore.build_searched_strategy("out/strategy.ckpt")
    slots: set[str] = set()
    for optimizer in (mindspore.nn.Adam, mindspore.nn.AdamWeightDecay):  # their own names, of which the file has all
        made = {p.name for p in optimizer(cell.trainable_params()).get_parameters()}
        slots |= {n for n in made if any(n.endswith(f".{p.name}") for p in cell.trainable_params())}
    assert len(slots) == 4 * len(names)
    assert set(found) == {n["name"] for n in names} | slots
    monkeypatch.syspath_prepend(str(tmp_path / "out"))
    sys.modules.pop("parallel", None)
    import parallel  # type: ignore[import-not-found]  # written just now

    net = parallel.parallel(cell)
    assert [p.name for p in net.trainable_params()] == [n["name"] for n in names]
    back = ["read", "out/strategy.ckpt", "--format", "mindspore", "--model", "model.onnx", "--names", "names.json"]
    assert main([*back, "--out", "back.json"]) == 0
