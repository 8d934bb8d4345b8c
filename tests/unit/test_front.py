"""What less memory costs: a front of configurations, each slower and smaller than the one before."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from planner.builder import build
from planner.cli.main import main
from planner.cost_models import load_profile
from planner.frontends import import_bytes
from planner.uniform import Sample, Space, best_of, time_memory_front

SIZES = {"layers": 4, "hidden": 512, "heads": 4, "vocab": 4096, "seq": 256, "attention": "fused", "batch": 8}
MODEL = build("gpt", SIZES).SerializeToString()


def test_each_is_slower_and_smaller_and_the_fastest_within_its_memory() -> None:
    sample = Sample(import_bytes(MODEL, name="gpt"), load_profile("a100-80"))
    space = Space(4, 8, sample.layers, experts=False)
    (best,) = best_of(sample, space, None).best
    front = time_memory_front(sample, space, best)
    assert front[0] is best
    assert len(front) > 3
    for a, b in pairwise(front):
        assert b.prediction.step_time_s > a.prediction.step_time_s
        assert b.prediction.allocated_bytes <= 0.9 * a.prediction.allocated_bytes
    for s in front[1:]:
        (alone,) = best_of(sample, space, round(s.prediction.allocated_bytes)).best
        assert s.prediction.step_time_s <= alone.prediction.step_time_s
    assert not best_of(sample, space, int(0.9 * front[-1].prediction.allocated_bytes)).best


def test_it_is_listed_and_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "gpt.onnx"
    model.write_bytes(MODEL)
    arguments = ["search", str(model), "--devices", "2", "--front", "--no-cache", "--out", str(tmp_path)]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    front = json.loads(capsys.readouterr().out)["uniform"]["front"]
    assert said.count("\nwith        ") == len(front) > 1
    assert {"strategy", "parallelism", "step_time_s", "peak_memory_bytes"} == set(front[0])


@pytest.mark.parametrize("more", [["--strategy", "ddp"], ["--mesh", "2"], ["--mode", "inference"]])
def test_where_there_is_no_front_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    model = tmp_path / "gpt.onnx"
    model.write_bytes(MODEL)
    assert main(["search", str(model), "--devices", "2", "--front", "--no-cache", "--out", str(tmp_path), *more]) == 2
    assert "--front: " in capsys.readouterr().err
