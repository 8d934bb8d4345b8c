"""What new users type first, each answered with one line that says what to do."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.cli.command import MLP, SAMPLES, run

SEARCH = ("search", "mlp.onnx")


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its plans, another model, a text, and an empty folder."""
    folder = tmp_path_factory.mktemp("furnished")
    model = folder / "mlp.onnx"
    shutil.copy(MLP, model)
    shutil.copy(SAMPLES / "moe_tiny.onnx", folder / "other.onnx")
    (folder / "notes.txt").write_text("to do: everything\n")
    (folder / "empty").mkdir()
    assert run("search", model, "--devices", 2, "--out", folder / "mlp.plan") == 0
    assert run("search", model, "--devices", "2,4", "--out", folder / "two") == 0
    return folder


@pytest.fixture
def desk(furnished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, in which a test begins."""
    shutil.copytree(furnished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


MISTAKES = {
    "a command that is mistyped": (["serch", "mlp.onnx", "--devices", "2"], 2, "did you mean search?"),
    "no command": (["mlp.onnx", "--devices", "2"], 2, "did you mean `planner search mlp.onnx --devices 2`?"),
    "options before the command": (["--devices", "2", *SEARCH], 2, "options follow the command"),
    "help as a command": (["help"], 2, "`planner --help`"),
    "another tool's word for it": (["plan", "mlp.onnx"], 2, "did you mean search?"),
    "an action that is mistyped": (["keys", "creat"], 2, "did you mean create?"),
    "devices left out": ([*SEARCH], 2, "missing --devices N[,N...]"),
    "an option abbreviated": ([*SEARCH, "--device", "2"], 2, "unknown option --device; did you mean --devices?"),
    "an option with one dash": ([*SEARCH, "-devices", "2"], 2, "did you mean --devices?"),
    "an option with underscores": (
        [*SEARCH, "--devices", "2", "--memory_limit", "64GiB"], 2, "did you mean --memory-limit?"
    ),
    "an abbreviated option of another package": (["keys", "create", "--tenan", "x"], 2, "did you mean --tenant?"),
    "an abbreviated size of a model": (["build", "gpt", "--layer", "2", "--out", "x"], 2, "did you mean --layers?"),
    "no device": ([*SEARCH, "--devices", "0"], 2, "expected a positive integer, found '0'"),
    "devices in words": ([*SEARCH, "--devices", "eight"], 2, "expected a positive integer, found 'eight'"),
    "devices with a blank between": ([*SEARCH, "--devices", "2", "4"], 2, "expected nothing beyond MODEL, found '4'"),
    "a value left out": ([*SEARCH, "--devices"], 2, "--devices: expected a value, found none"),
    "devices that stages do not divide": (
        [*SEARCH, "--devices", "6", "--stages", "4"], 2, "expected a divisor of --devices 6"
    ),
    "a size without its unit": (
        [*SEARCH, "--devices", "2", "--memory-limit", "100"], 2, "write 100GiB, 100MiB or 100B"
    ),
    "a time with a unit": ([*SEARCH, "--devices", "2", "--time-limit", "5m"], 2, "number of seconds, such as 300"),
    "hardware in capitals": ([*SEARCH, "--devices", "2", "--hardware", "H100"], 3, "did you mean h100?"),
    "hardware of a cluster in capitals": (
        [*SEARCH, "--devices", "4", "--hardware", "H100:2+a100-80:2"], 3, "did you mean h100?"
    ),
    "hardware to look at": (["hardware", "ascend910b"], 3, "did you mean ascend-910b?"),
    "a choice carried on": ([*SEARCH, "--devices", "2", "--optimizer", "adamw"], 2, "did you mean adam?"),
    "a choice in capitals": ([*SEARCH, "--devices", "2", "--precision", "BF16"], 2, "did you mean bf16?"),
    "a target by its long name": (["emit", "mlp.plan", "--target", "megatron-lm", "--out", "x"], 2, "megatron?"),
    "an architecture that is mistyped": (["build", "gtp", "--out", "x"], 2, "did you mean gpt?"),
    "a strategy that is mistyped": (
        ["evaluate", "mlp.onnx", "--devices", "2", "--strategy", "megatrn"], 2, "did you mean megatron?"
    ),
    "a key of a strategy that is mistyped": (
        ["evaluate", "mlp.onnx", "--devices", "2", "--strategy", "megatron:tpp=2"], 2, "did you mean tp?"
    ),
    "neither a strategy nor a plan": (["evaluate", "mlp.onnx", "--devices", "2"], 2, "missing --strategy SCHEME"),
    "a model that is not there": (["search", "mpl.onnx", "--devices", "2"], 3, "Give the path of an ONNX model"),
    "no ONNX": (["search", "notes.txt", "--devices", "2"], 3, "Give the path of an ONNX model"),
    "a folder as the model": (["search", "mlp.plan", "--devices", "2"], 3, "Give the path of an ONNX model"),
    "a plan as the model": (["search", "mlp.plan/plan.json", "--devices", "2"], 3, "its model is mlp.plan/model.onnx"),
    "a model as the plan": (["verify", "mlp.onnx"], 3, "make a plan with"),
    "model and plan the wrong way round": (["verify", "mlp.onnx", "mlp.plan"], 3, "takes one, goes behind it"),
    "a plan of another model": (["verify", "mlp.plan", "other.onnx"], 3, "give the model that was planned"),
    "a folder without a plan": (["verify", "empty"], 3, "empty/plan.json"),
    "a folder of several plans": (["report", "two"], 3, "plan-2.json and plan-4.json beside it: name one"),
    "an operator that is mistyped": (["explain", "mlp.plan", "no.such"], 3, "none of this name"),
    "a file in the way": ([*SEARCH, "--devices", "2", "--out", "notes.txt/x"], 3, "give another directory with --out"),
    "another request in its place": ([*SEARCH, "--devices", "4"], 2, "--devices 2 there, 4 here"),
    "a profile that is no file": (["calibrate", "--out", "mine"], 2, "give a name that ends in .toml"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_one_line_says_what_to_do(name: str, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, status, says = MISTAKES[name]
    assert run(*arguments) == status
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert said.out == ""
    assert says in lines[-1]
    assert lines[-1].startswith("planner")
    assert ": error: " in lines[-1]
    assert len(lines) == 1
    assert len(lines[-1]) < 400
    assert "Traceback" not in said.err


def test_a_folder_that_may_not_be_written_to_is_told_before_the_search(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "empty")  # root may write everywhere
    assert run(*SEARCH, "--devices", 2, "--out", "empty/x") == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "you may not write there); give another directory with --out" in line


def test_a_batch_left_out_is_a_warning_that_names_the_option(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SEARCH, "--devices", 7, "--out", "seven") == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "a batch that 7 divides (--batch) uses them all" in warnings[0]


def test_what_is_unknown_is_told_before_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("search", "--device", "2") == 2
    assert "unknown option --device;" in capsys.readouterr().err


def test_help_is_given_whatever_else_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("search", "--device", "2", "--help") == 0
    assert "--devices" in capsys.readouterr().out


def test_values_may_look_like_options_where_they_are_numbers(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("search", "mlp.onnx", "--devices", "-4") == 2
    assert "found '-4'" in capsys.readouterr().err
    assert run("verify", "mlp.plan", "--seed", "-1") == 2
    assert "--seed: expected an integer from 0 on, found '-1'" in capsys.readouterr().err


def test_no_option_of_any_command_is_abbreviated() -> None:
    import argparse
    from importlib import import_module

    from planner.cli.main import commands
    from planner.cli.parser import Parser

    def of(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
        inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        return [parser, *(p for a in inner for c in a.choices.values() for p in of(c))]

    for name, (module, _) in commands().items():
        parser = Parser(prog=name)
        import_module(module).configure(parser)
        for p in of(parser):
            assert isinstance(p, Parser)
            assert not p.allow_abbrev
