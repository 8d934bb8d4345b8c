"""Models in other formats, and names of Hugging Face's hub: the answer says what to do instead."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.errors import InputError
from planner.frontends import load_model

CONTENTS = {
    "weights.safetensors": ((20).to_bytes(8, "little") + b'{"a":{}}            ', "is a file of safetensors"),
    "renamed.onnx": (b"GGUF" + bytes(20), "is a file of GGUF, which holds weights and no graph; export the module"),
    "old.bin": (b"\x80\x02ctorch\n", "is a file of PyTorch"),
    "small.tflite": (b"\x1c\0\0\0TFL3" + bytes(8), "is a model of TensorFlow Lite; convert it first"),
    "net.mindir": (b"\x08\x01\x12\x04abcd", 'mindspore.export(network, *inputs, file_name="model"'),
    "saved_model.pb": (b"\x08\x01\x12\x04abcd", "is a model of TensorFlow; convert it first"),
    "frozen.pb": (b"\x08\x01\x12\x04abcd", "no ONNX model; a file with this ending is a model of TensorFlow"),
    "weights.h5": (b"\x89HDF\r\n\x1a\n", "is a file of HDF5"),
    "train.py": (b"import torch", "planner export FILE.py:NAME --inputs"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_of_another_format_is_named(name: str, tmp_path: Path) -> None:
    content, says = CONTENTS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as raised:
        load_model(tmp_path / name)
    assert name in str(raised.value)
    assert says in str(raised.value)


def test_a_checkpoint_of_torch_is_an_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("model/data.pkl", b"")
    with pytest.raises(InputError, match=r"is a file of PyTorch, which holds weights and no graph; .*planner export"):
        load_model(tmp_path / "model.pt")


def test_a_folder_with_a_configuration_is_exported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(InputError, match=r"planner export --hf .* --out model.onnx"):
        load_model(tmp_path)
    with pytest.raises(InputError, match=r"is a configuration of Hugging Face; `planner export --hf "):
        load_model(tmp_path / "config.json")
    (tmp_path / "config.json").rename(tmp_path / "llama")
    with pytest.raises(InputError, match=r"is a configuration of Hugging Face; `planner export --hf "):
        load_model(tmp_path / "llama")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(InputError, match="safetensors hold weights and no graph"):
        load_model(tmp_path)


def test_what_does_not_parse_is_named_as_the_file_is(tmp_path: Path) -> None:
    (tmp_path / "cfg.txt").write_bytes(b"\xff" * 20)
    with pytest.raises(InputError, match=r"^cfg\.txt: not an ONNX model"):
        load_model(tmp_path / "cfg.txt")


def test_a_model_in_onnx_is_read_whatever_it_is_called(tmp_path: Path) -> None:
    file = tmp_path / "model.pb"
    file.write_bytes((Path(__file__).parents[2] / "sample_graphs" / "mlp.onnx").read_bytes())
    assert load_model(file).ops


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("meta-llama/Llama-3.1-8B", "Nothing is downloaded here: a model of Hugging Face's hub"),
        ("gpt2", "`hf download gpt2 config.json"),
        ("hf:/meta-llama/Llama-3.1-8B", "`hf download meta-llama/Llama-3.1-8B config.json"),
        ("https:/huggingface.co/openai/gpt-oss-20b/tree/main", "`hf download openai/gpt-oss-20b config.json"),
        ("model.pt", "A file with this ending is a file of PyTorch"),
        ("folder/model.onnx", "no such file. Give the path of an ONNX model."),
    ],
)
def test_what_is_not_there_is_named(
    name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["search", name, "--devices", "2"]) == 3
    assert f"{name}: no such file. " in (said := capsys.readouterr().err)
    assert says in said
