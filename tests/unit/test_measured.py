"""What is said of configurations that no published step was measured with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.clock import Configuration, extrapolated, measured
from planner.clock.measured import features
from planner.planning.schemes import parse_strategy
from tests.bench.measured_kinds import written

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
ROWS = Path(__file__).parents[3] / "shared" / "measured" / "measured.json"


def made(strategy: str, devices: int = 64) -> Configuration:
    return parse_strategy(strategy, devices=devices, batch=512)


@pytest.mark.parametrize("strategy", ["zero2:micro_batch=8", "zero3:micro_batch=1", "megatron:tp=8,pp=4", "ddp"])
def test_what_published_steps_have_is_known(strategy: str) -> None:
    assert extrapolated(made(strategy)) == ()


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("megatron:pp=4,schedule=zb-v", "ZB-V"),
        ("megatron:pp=4,stage_layers=9-8-8-7", "uneven stages"),
        ("zero2:micro_batch=4,offload=0.5", "activations in the host's memory"),
        ("megatron:tp=2,pp=32", "TP 2 together with more than 16 stages"),
    ],
)
def test_what_they_do_not_have_is_named(strategy: str, said: str) -> None:
    assert said in extrapolated(made(strategy))


def test_features_are_those_of_the_fields() -> None:
    c = made("megatron:tp=4,sp=false,pp=2,cp=2,zero=2,recompute=full,recompute_blocks=0.5")
    assert features(c) == (
        "TP 4", "TP without sequence parallelism", "CP", "up to 4 stages", "1F1B", "ZeRO 2",
        "full recomputation of a part of the blocks",
    )  # fmt: skip
    assert features(made("ddp", 1)) == ()


def test_every_set_that_was_measured_is_known_whole() -> None:
    document = json.loads(Path(measured.__file__).with_name("measured.json").read_text())
    assert document["rows"] > 1000
    assert len(document["features"]) == len({tuple(s) for s in document["features"]})
    assert all(s == sorted(s) for s in document["features"])


@pytest.mark.skipif(not ROWS.exists(), reason="the wide rows are not there")
def test_the_sets_are_those_of_the_published_rows() -> None:
    assert written(ROWS) == Path(measured.__file__).with_name("measured.json").read_text()


def test_search_and_evaluate_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [str(SAMPLES / "gpt_tiny.onnx"), "--devices", "4", "--batch", "8"]
    options += ["--strategy", "megatron:pp=2,micro_batch=2,schedule=zb-h1"]
    assert main(["evaluate", *options]) == 0
    assert "extrapolated   no published step was measured with ZB-H1" in capsys.readouterr().out
    assert main(["search", *options, "--no-cache", "--out", str(tmp_path)]) == 0
    assert "extrapolated: no published step was measured with ZB-H1" in capsys.readouterr().out
    assert main(["search", *options, "--no-cache", "--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["extrapolated"] == ["ZB-H1"]
