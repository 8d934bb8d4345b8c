"""`planner export` before PyTorch is loaded: inputs as they are written, options that contradict each other."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.torch.export.tensors import TensorSpec, named_value, tensor_specs

SPECS = {
    "ids:int64[8,2048]": [("ids", "int64", (8, 2048))],
    "float32[32, 3,224,224]": [("", "float32", (32, 3, 224, 224))],
    "x:float16[4,4], mask:bool[4]": [("x", "float16", (4, 4)), ("mask", "bool", (4,))],
    "x:float32[2] y:bfloat16[]": [("x", "float32", (2,)), ("y", "bfloat16", ())],
}
REFUSED = {
    "": "expected inputs such as ids:int64",
    "ids[8,2048]": "expected one of the types float32",
    "ids:long[8]": "expected one of the types",
    "ids:int46[8]": "did you mean int64?",
    "ids:int64[8,-1]": "whole sizes of at least 1 between the brackets, found [8,-1]",
    "ids:int64[8,0]": "whole sizes of at least 1",
    "ids:int64[8,batch]": "whole sizes",
    "ids:int64[²]": "whole sizes",
    "ids:int64[8": "expected inputs such as",
    "ids:int64[8] nonsense": "expected inputs such as",
    "x:int8[999999999,999999999]": "at most 16 dimensions and",
    f"x:int8[{'1,' * 16}1]": "found 17 and 1",
    f"x:int8[{'9' * 5000}]": "whole sizes",
}


@pytest.mark.parametrize("text", SPECS)
def test_inputs_are_read(text: str) -> None:
    assert tensor_specs(text) == tuple(TensorSpec(*s) for s in SPECS[text])


@pytest.mark.parametrize("text", REFUSED)
def test_other_inputs_are_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as raised:
        tensor_specs(text)
    assert REFUSED[text] in str(raised.value)
    assert len(str(raised.value)) < 500


def test_arguments_are_values_of_python_or_words() -> None:
    given = ("layers=2", "ratio=0.5", "flags=(1, True)", "name=small", "path=a=b", "none=None")
    assert [named_value(t)[1] for t in given] == [2, 0.5, (1, True), "small", "a=b", None]
    for text in ("layers", "2=3", "=3", f"x{'(' * 4000}"):
        with pytest.raises(argparse.ArgumentTypeError, match="expected NAME=VALUE"):
            named_value(text)
    assert named_value(f"x={'(' * 4000}")[0] == "x"


MISTAKES = {
    "nothing to export": ([], "expected one of MODULE:FUNCTION and --hf CONFIG, found neither"),
    "both": (["m:build", "--hf", "d"], "found both"),
    "no inputs": (["m:build"], "missing --inputs: the tensors that m:build reads"),
    "sizes of Hugging Face": (["m:build", "--inputs", "int8[1]", "--sequence", "8"], "--sequence goes with --hf alone"),
    "a batch of a module": (["m:build", "--inputs", "int8[1]", "--batch", "8"], "--batch goes with --hf alone"),
    "an argument twice": (["m:b", "--inputs", "int8[1]", "--arg", "a=1", "--arg", "a=2"], "--arg a: is given twice"),
    "an input twice": (["m:b", "--inputs", "x:int8[1]", "--call", "x=2"], "--call x: is one of --inputs already"),
    "targets without a loss": (["m:b", "--inputs", "int8[1]", "--targets", "int8[1]"], "name it with --loss"),
    "two exporters": (["m:b", "--inputs", "int8[1]", "--exporter", "planner", "--opset", "18"], "need torch.onnx"),
    "an axis": (["m:b", "--inputs", "int8[1]", "--dynamic", "batch"], "such as ids.0=batch, found 'batch'"),
    "a folder": (["m:b", "--inputs", "int8[1]", "--out", "."], "--out .: is a folder"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_options_that_contradict_each_other(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, says = MISTAKES[name]
    out = [] if "--out" in arguments else ["--out", str(tmp_path / "m.onnx")]
    assert main(["export", *arguments, *out]) == 2
    said = capsys.readouterr()
    assert says in said.err.splitlines()[-1]
    assert not said.out


def test_a_file_of_something_else_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "notes.txt"
    out.write_text("mine")
    assert main(["export", "m:build", "--inputs", "int8[1]", "--out", str(out)]) == 2
    assert "is a file of something else" in capsys.readouterr().err
    assert out.read_text() == "mine"


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_the_extra_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "m:build", "--inputs", "int8[1]", "--out", str(tmp_path / "m.onnx")]) == 2
    assert "planner export needs PyTorch, which is not installed; install the extra" in capsys.readouterr().err
