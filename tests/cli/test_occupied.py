"""What lies where a result goes: nothing of another request is lost without --force."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.command import MLP, SAMPLES, run

SEARCH = ("search", "mlp.onnx")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(MLP, "mlp.onnx")
    return tmp_path


def devices(path: str = "mlp.plan/plan.json") -> int:
    return int(json.loads(Path(path).read_text())["cluster"]["devices"])


def test_the_same_request_is_written_again(folder: Path) -> None:
    for options in ((), (), ("--no-cache",), ("--time-limit", "60"), ("--solver", "dp"), ("--reproducible",)):
        assert run(*SEARCH, "--devices", 2, *options) == 0


@pytest.mark.parametrize("options", [("--space", "whole"), ("--space", "whole", "--batch", "64")])
def test_so_is_one_whose_answer_is_a_configuration(folder: Path, options: tuple[str, ...]) -> None:
    for cache in ((), (), ("--no-cache",)):
        assert run(*SEARCH, "--devices", 2, "--hardware", "alpha-beta", *options, *cache) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--devices", "4"), "--devices 2 there, 4 here"),
        (("--devices", "2", "--batch", "16"), "--batch not given there, 16 here"),
        (("--devices", "2", "--hardware", "h100"), "--hardware a100-80 there, h100 here"),
        (("--devices", "2", "--memory-limit", "1GiB"), "--memory-limit not given there, 1073741824 here"),
        (("--devices", "2", "--strategy", "ddp"), "--strategy not given there, ddp here"),
        (("--devices", "2", "--pin", "rest=data_parallel"), "--pin not given there, 'rest=data_parallel' here"),
        (("--devices", "2", "--target", "megatron"), "--target any there, megatron here"),
    ],
)
def test_another_request_is_not(
    folder: Path, options: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*SEARCH, "--devices", 2) == 0
    before = Path("mlp.plan/plan.json").read_bytes()
    capsys.readouterr()
    assert run(*SEARCH, *options) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert "--out" in said.err
    assert "--force" in said.err
    assert len(said.err.splitlines()) == 1, "before anything is searched"
    assert Path("mlp.plan/plan.json").read_bytes() == before


def test_force_replaces_it(folder: Path) -> None:
    assert run(*SEARCH, "--devices", 2) == 0
    assert run(*SEARCH, "--devices", 4, "--force") == 0
    assert devices() == 4


def test_a_plan_of_a_strategy_is_not_replaced_by_a_free_search(folder: Path) -> None:
    assert run(*SEARCH, "--devices", 2, "--strategy", "ddp") == 0
    assert run(*SEARCH, "--devices", 2) == 2


def test_a_verified_plan_is_of_the_same_request(folder: Path) -> None:
    assert run(*SEARCH, "--devices", 2) == 0
    assert run("verify", "mlp.plan") == 0
    assert run(*SEARCH, "--devices", 2) == 0
    assert run(*SEARCH, "--devices", 4) == 2


def test_another_model_of_the_same_name_is_another_request(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SEARCH, "--devices", 2) == 0
    Path("other").mkdir()
    shutil.copy(SAMPLES / "moe_tiny.onnx", "other/mlp.onnx")
    for cache in ((), ("--no-cache",)):
        assert run("search", "other/mlp.onnx", "--devices", 2, *cache) == 2
        assert "is of another model" in capsys.readouterr().err
    assert run("search", "other/mlp.onnx", "--devices", 2, "--force") == 0


def test_several_counts_have_a_file_each(folder: Path) -> None:
    assert run(*SEARCH, "--devices", "2,4") == 0
    assert run(*SEARCH, "--devices", "4,2") == 0
    assert run(*SEARCH, "--devices", "2,4", "--batch", 16) == 2
    assert run(*SEARCH, "--devices", "2", "--batch", 16) == 0, "plan.json is another place"


def test_the_best_of_several_meshes_may_come_again(folder: Path) -> None:
    for count in (1, 2, 2, 1):
        assert run(*SEARCH, "--devices", 4, "--top-k", count, "--out", "k") == 0


def test_what_is_no_plan_is_not_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine").mkdir()
    for text in ("{}", "no JSON", '{"schema": "planner.plan/1", "search": null, "model": {"name": "mlp"}}'):
        Path("mine/plan.json").write_text(text)
        assert run(*SEARCH, "--devices", 2, "--out", "mine") == 2
        assert "does not say what request it is of" in capsys.readouterr().err


def test_an_evaluation_of_another_strategy_is_not_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("evaluate", "mlp.onnx", "--devices", 2, "--batch", 16, "--out", "e", "--strategy")
    assert run(*asked, "ddp") == 0
    assert run("evaluate", folder / "mlp.onnx", *asked[2:], "ddp") == 0, "the same model by another name"
    assert run(*asked, "fsdp") == 2
    assert "strategy ddp there, fsdp here" in capsys.readouterr().err
    assert run(*asked, "fsdp", "--force") == 0


def test_a_model_is_built_over_none_but_its_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("build", "mlp", "--out", "mlp.onnx") in (0, 2)
    Path("net.onnx").write_bytes(b"\x08\x08\x12\x07pytorch")
    assert run("build", "mlp", "--out", "net.onnx") == 2
    assert "is another model" in capsys.readouterr().err
    assert run("build", "mlp", "--out", "net.onnx", "--force") == 0
    assert run("build", "mlp", "--out", "net.onnx", "--layers", 3) == 0


def test_pages_are_not_written_over_what_they_are_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SEARCH, "--devices", 2) == 0
    for arguments in (
        ("report", "mlp.plan", "--trace", "mlp.plan/plan.json"),
        ("report", "mlp.plan", "--trace", "mlp.onnx"),
        ("report", "mlp.plan", "--out", "mlp.onnx"),
        ("diff", "mlp.plan", "mlp.plan", "--out", "mlp.plan/plan.json"),
        ("diff", "mlp.plan", "mlp.plan", "--out", "mlp.onnx"),
    ):
        assert run(*arguments) == 2, arguments
        assert "would be written over" in capsys.readouterr().err
    assert run("report", "mlp.plan", "--out", "r.html") == 0
    assert run("report", "mlp.plan", "--out", "r.html") == 0


@pytest.mark.parametrize(
    "command",
    [("verify", "mlp.plan"), ("report", "mlp.plan"), ("diff", "mlp.plan", "mlp.plan"), ("explain", "mlp.plan"),
     ("emit", "mlp.plan", "--target", "torch", "--out", "t"), ("evaluate", "mlp.onnx", "--plan", "mlp.plan"),
     ("search", "mlp.onnx", "--devices", "2", "--warm-start", "mlp.plan", "--out", "w"),
     ("search", "mlp.onnx", "--devices", "2", "--constraints", "mlp.plan", "--out", "c")],
    ids=lambda c: c[0] + c[-3].strip("-") if len(c) > 5 else c[0],
)  # fmt: skip
def test_a_folder_stands_for_the_plan_in_it(folder: Path, command: tuple[str, ...]) -> None:
    assert run(*SEARCH, "--devices", 2) == 0
    assert run(*command) == 0
