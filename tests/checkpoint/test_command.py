"""`planner checkpoint`: a training's state moved by plans that the planner itself makes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planner
from planner.checkpoint.layouts import read_layouts
from tests.checkpoint.layouts import write_file
from tests.checkpoint.test_transforming import arrays_of
from tests.cli.command import run

STRATEGIES = {"fsdp8": (8, "fsdp"), "tp4": (4, "megatron:tp=4"), "tp2pp2": (4, "megatron:tp=2,pp=2"),
              "zero": (8, "megatron:tp=2,dp=4,zero=1")}  # fmt: skip


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GPT under four plans, and a checkpoint of whole tensors with Adam's state."""
    folder = tmp_path_factory.mktemp("plans")
    model = planner.build("gpt", layers=2, hidden=64, heads=4, vocab=512, seq=32, batch=8)
    for name, (devices, strategy) in STRATEGIES.items():
        planner.search(model, devices=devices, hardware="a100-80", strategy=strategy).save(folder / name / "plan.json")
    rng = np.random.default_rng(0)
    tensors: dict[str, Any] = {}
    for n, spread in read_layouts(folder / "tp4").parameters.items():
        assert spread.shape is not None
        tensors[n] = rng.standard_normal(spread.shape).astype(np.float32)
        tensors |= {f"{n}.{s}": rng.standard_normal(spread.shape).astype(np.float32) for s in ("exp_avg", "exp_avg_sq")}
        tensors[f"{n}.step"] = np.array(3, np.float32)
    write_file(folder / "whole.safetensors", tensors)
    return folder


def test_a_training_goes_round_through_plans_and_formats(plans: Path, tmp_path: Path) -> None:
    def step(*arguments: object) -> None:
        assert run("checkpoint", *arguments) == 0

    step("split", plans / "whole.safetensors", tmp_path / "a", "--to", plans / "fsdp8")
    step(
        "transform", tmp_path / "a", tmp_path / "b", "--from", plans / "fsdp8", "--to", plans / "tp4", "--format", "npz"
    )
    step("transform", tmp_path / "b", tmp_path / "c", "--from", plans / "tp4", "--to", plans / "tp2pp2",
         "--format", "mindspore", "--memory", "1MiB", "--workers", 3)  # fmt: skip
    step("transform", tmp_path / "c", tmp_path / "d", "--from", plans / "tp2pp2", "--format", "dcp")
    step("transform", tmp_path / "d", tmp_path / "e", "--to", plans / "zero", "--format", "torch")
    step("transform", tmp_path / "e", tmp_path / "f", "--from", plans / "zero", "--format", "huggingface")
    step("verify", tmp_path / "f", "--against", plans / "whole.safetensors")
    weights = arrays_of(tmp_path / "f/model.safetensors")
    state = arrays_of(tmp_path / "f/optimizer.safetensors")
    expected = arrays_of(plans / "whole.safetensors")
    assert {**weights, **state}.keys() == expected.keys()
    for name, value in (weights | state).items():
        np.testing.assert_array_equal(value, expected[name])
    for place in "abcdef":
        step("verify", tmp_path / place)


def test_what_is_said_of_a_checkpoint(plans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("checkpoint", "split", plans / "whole.safetensors", tmp_path / "a", "--to", plans / "tp4", "--json")
    document = json.loads(capsys.readouterr().out)
    assert document["tensors"] == 112
    assert document["files"] == [f"rank_{r}/checkpoint.safetensors" for r in range(4)]
    assert run("checkpoint", "inspect", tmp_path / "a", "--from", plans / "tp4") == 0
    shown = capsys.readouterr().out
    assert "ranks, safetensors: 112 tensors" in shown
    assert "exp_avg of transformer.h.0.attn.c_attn.weight" in shown
    assert run("checkpoint", "ranks", "--from", plans / "zero", "--to", plans / "tp4", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["ranks"]) == {"0", "1", "2", "3"}
    assert (
        run("checkpoint", "plan", "--from", plans / "fsdp8", "--to", plans / "tp4", "--out", tmp_path / "p.json") == 0
    )
    assert "move between 8 devices" in capsys.readouterr().out
    moves = json.loads((tmp_path / "p.json").read_text())
    assert moves["moved_bytes"] + moves["kept_bytes"] == moves["held_bytes"]


def test_a_dry_run_writes_nothing(plans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("checkpoint", "split", plans / "whole.safetensors", tmp_path / "a", "--to", plans / "tp4", "--dry-run")
    assert run(*arguments) == 0
    assert "would be written: 112 tensors, 1.65 MB in 4 files" in capsys.readouterr().out
    assert run(*arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out)["seconds"] > 0
    assert not list(tmp_path.iterdir())


def test_ranks_fill_one_folder_from_several_runs(
    plans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["checkpoint", "split", plans / "whole.safetensors"]
    each = [sys.executable, "-m", "planner", *map(str, arguments), str(tmp_path / "b"), "--to", str(plans / "tp4")]
    running = [subprocess.Popen([*each, "--rank", str(r)], stdout=subprocess.DEVNULL) for r in (0, 1)]
    assert [p.wait(timeout=120) for p in running] == [0, 0]
    assert run(*arguments, tmp_path / "b", "--to", plans / "tp4", "--rank", "2", "--rank", "3", "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert done["files"] == ["rank_2/checkpoint.safetensors", "rank_3/checkpoint.safetensors"]
    assert run(*arguments, tmp_path / "a", "--to", plans / "tp4") == 0
    for rank in range(4):
        one, other = (tmp_path / place / f"rank_{rank}/checkpoint.safetensors" for place in "ab")
        assert one.read_bytes() == other.read_bytes()
    assert run("checkpoint", "verify", tmp_path / "b") == 0
    with (tmp_path / "b/rank_3/checkpoint.safetensors").open("r+b") as opened:
        opened.seek(-1, 2)
        opened.write(b"\x7f")
    assert run("checkpoint", "verify", tmp_path / "b") == 1
    capsys.readouterr()
    assert run(*arguments, tmp_path / "b", "--to", plans / "tp4", "--rank", "1") == 2
    assert "rank_1: is there already" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "status", "message"), [
    (("transform", "{plans}/nothing", "{out}"), 3, "there is no such file or folder"),
    (("transform", "{plans}/whole.safetensors", "{out}", "--to", "{plans}/nothing"), 3, "there is no such file"),
    (("split", "{plans}/whole.safetensors", "{out}", "--to", "{plans}/tp4", "--rank", "4"), 2, "ranks 0 to 3"),
    (("transform", "{plans}/whole.safetensors", "{out}", "--format", "zip"), 2, "expected one of safetensors"),
    (("transform", "{plans}/whole.safetensors", "{out}", "--to", "{plans}/tp4", "--format", "dcp"), 2, "leave --to"),
    (("transform", "{plans}/whole.safetensors", "{out}", "--dtype", "int5"), 2, "expected an element type"),
    (("verify", "{plans}/whole.safetensors"), 3, "has no checksums"),
    (("plan", "--from", "{plans}/tp4", "--to", "{plans}/tp4", "--lost", "7"), 2, "ranks 0 to 3"),
])  # fmt: skip
def test_mistakes_are_said_in_one_line(
    arguments: tuple[str, ...], status: int, message: str, plans: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    given = [a.format(plans=plans, out=tmp_path / "out") for a in arguments]
    assert run("checkpoint", *given) == status
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_python_moves_checkpoints_too(plans: Path, tmp_path: Path) -> None:
    plan = planner.load_plan(plans / "tp4")
    done = planner.checkpoint.split(plans / "whole.safetensors", tmp_path / "a", target=plan)
    assert done.tensors == 112
    planner.checkpoint.merge(tmp_path / "a", tmp_path / "b.pt", source=plan, dtype="bf16")
    assert planner.checkpoint.verify(tmp_path / "b.pt") == []
    assert planner.checkpoint.ranks(plan, plans / "zero", [0])
    with pytest.raises(planner.OptionError, match="dtype"):
        planner.checkpoint.merge(tmp_path / "a", tmp_path / "c.pt", source=plan, dtype="b16")


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_mindspore_s_files_lie_as_its_strategy_files_say(name: str, plans: Path, tmp_path: Path) -> None:
    """What is written for a plan in MindSpore's format is what its own tools take by the files that are emitted."""
    assert run("emit", plans / name, "--target", "mindspore", "--out", tmp_path / "job") == 0
    told = read_layouts(tmp_path / "job")
    known = read_layouts(plans / name).in_format("mindspore")
    assert set(told.parameters) == set(known.parameters)
    for n, spread in known.parameters.items():
        assert spread.shape is not None
        for ours, theirs in ((spread, told.parameters[n]), (known.of_slot(n), told.of_slot(n))):
            a, b = ours.pieces(spread.shape), theirs.pieces(spread.shape)
            np.testing.assert_array_equal(a.boxes.starts, b.boxes.starts)
            np.testing.assert_array_equal(a.holders, b.holders)
    ckpt = ("transform", plans / "whole.safetensors", tmp_path / "a", "--to", plans / name, "--format", "mindspore")
    assert run("checkpoint", *ckpt) == 0
    back = ("merge", tmp_path / "a", tmp_path / "b.safetensors", "--from", tmp_path / "job")
    assert run("checkpoint", *back) == 0
    assert run("checkpoint", "verify", tmp_path / "b.safetensors", "--against", plans / "whole.safetensors") == 0
    found, expected = arrays_of(tmp_path / "b.safetensors"), arrays_of(plans / "whole.safetensors")
    for n, value in expected.items():
        if not n.endswith(".step"):  # MindSpore counts once
            np.testing.assert_array_equal(found[n], value)
    assert found["global_step"].tolist() == [3]
