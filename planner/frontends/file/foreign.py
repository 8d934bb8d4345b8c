"""Files of models that are no ONNX: what each is, and what to do with it instead.

They are known by how they begin, whatever they are called, and where formats share a beginning with ONNX, by name.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

__all__ = ["HEAD_BYTES", "of_content", "of_folder", "of_missing", "of_name"]

HEAD_BYTES: Final = 16
_MOST_BYTES: Final = 1 << 20  # of a configuration

_EXPORT: Final = (
    "export the module that it belongs to: `planner export package.module:function --inputs 'ids:int64[8,2048]' --out "
    "model.onnx`, or from its configuration `planner export --hf config.json --out model.onnx`"
)
_TORCH: Final = f"is a file of PyTorch, which holds weights and no graph; {_EXPORT}"
_WEIGHTS: Final = f"holds weights and no graph; {_EXPORT}"
_TF: Final = (
    "is a model of TensorFlow; convert it first (python -m tf2onnx.convert --saved-model DIR --output model.onnx)"
)
_LITE: Final = (
    "is a model of TensorFlow Lite; convert it first (python -m tf2onnx.convert --tflite FILE --output model.onnx)"
)
_MINDIR: Final = (
    "is a graph of MindSpore in its own format; write ONNX of the same network: mindspore.export(network, *inputs, "
    'file_name="model", file_format="ONNX")'
)
_KERAS: Final = (
    'is a file of HDF5, as Keras and MATLAB save; write ONNX from Keras: model.export("model.onnx", format="onnx")'
)

# Beginning → what it is.  No ONNX model begins so: its first field is a number or a name with a length.
_BEGINNINGS: Final = (
    (b"PK\x03\x04", _TORCH),
    (b"\x80\x02", _TORCH),
    (b"\x80\x04", _TORCH),
    (b"GGUF", f"is a file of GGUF, which {_WEIGHTS}"),
    (b"\x89HDF", _KERAS),
)
_NAMES: Final = {
    ".mindir": _MINDIR,
    ".pb": _TF,
    ".tflite": _LITE,
    ".safetensors": f"is a file of safetensors, which {_WEIGHTS}",
    ".gguf": f"is a file of GGUF, which {_WEIGHTS}",
    ".pt": _TORCH,
    ".pth": _TORCH,
    ".bin": _TORCH,
    ".pt2": _TORCH,
    ".ckpt": f"is a checkpoint, which {_WEIGHTS}",
    ".h5": _KERAS,
    ".keras": "is a file of Keras; write ONNX with it: model.export(\"model.onnx\", format=\"onnx\")",
    ".py": "is Python code; what a function of it returns is exported: `planner export FILE.py:NAME --inputs "
    "'ids:int64[8,2048]' --out model.onnx`",
}  # fmt: skip
_HUB: Final = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
# As a path, which has no two slashes in a row.
_LINK: Final = re.compile(r"(?:hf:|https?:/(?:www\.)?huggingface\.co)/((?:[\w.-]+/)?[\w.-]+)")


def of_content(path: Path, head: bytes) -> str | None:
    """What a file is that begins so and is called so, and what to do; None where it may be ONNX."""
    for beginning, text in _BEGINNINGS:
        if head.startswith(beginning):
            return text if of_name(path) is None else of_name(path)
    if head[4:8] == b"TFL3":
        return _LITE
    if head.lstrip().startswith(b"{") and path.suffix.lower() in ("", ".json"):
        if _holds(path, b'"model_type"'):
            return _configuration(path)
        if _holds(path, b'"planner.plan/'):
            beside = path.with_name("model.onnx")
            return "is a plan, where a model is expected" + (f"; its model is {beside}" if beside.is_file() else "")
    if head[4:9] == b"\0\0\0\0{":  # the length of the header that follows, in JSON
        return _NAMES[".safetensors"]
    # These are messages of protobuf as ONNX is, and may parse as one.
    return _MINDIR if path.suffix.lower() == ".mindir" else _TF if path.name == "saved_model.pb" else None


def of_name(path: Path) -> str | None:
    """What a file of this name most likely is that turned out to be no ONNX, and what to do."""
    if path.name == "config.json":
        return _configuration(path)
    return _NAMES.get(path.suffix.lower())


def of_folder(path: Path) -> str | None:
    """What to do with a folder that holds a model of TensorFlow or of transformers."""
    if (path / "saved_model.pb").is_file():
        return f"It {_TF.replace('DIR', str(path))}."
    if (path / "config.json").is_file():
        return f"Its config.json is exported with `planner export --hf {shlex.quote(str(path))} --out model.onnx`."
    if any(path.glob("*.safetensors")):
        return f"Its files of safetensors hold weights and no graph; {_EXPORT}."
    return None


def of_missing(path: Path) -> str | None:
    """What to do where there is no file, but somebody meant a name on Hugging Face's hub or a file of another kind."""
    linked = _LINK.match(str(path))
    name = linked[1] if linked else str(path)
    of_hub = _HUB.fullmatch(name) and (linked or not path.parent.is_dir() or not set("./") & set(name))
    if path.suffix != ".onnx" and of_hub and of_name(path) is None:
        return (
            "Nothing is downloaded here: a model of Hugging Face's hub is planned from its configuration. "
            f"`hf download {name} config.json --local-dir DIR` fetches that, and `planner export --hf DIR --out "
            "model.onnx` writes its graph."
        )
    other = of_name(path)
    return None if other is None else f"A file with this ending {other}."


def _configuration(path: Path) -> str:
    command = f"planner export --hf {shlex.quote(str(path))} --out model.onnx"
    return f"is a configuration of Hugging Face; `{command}` writes its graph"


def _holds(path: Path, words: bytes) -> bool:
    """Whether a file of JSON has these words, at whatever place its entries are ordered to."""
    with path.open("rb") as file:
        return words in file.read(_MOST_BYTES)
