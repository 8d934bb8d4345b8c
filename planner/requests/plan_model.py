"""The model beside its plan: `model.onnx`, the file that was planned without its weights, so that what needs the model
later needs nobody to find it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from planner.errors import InputError
from planner.files import write_whole

__all__ = ["MODEL_FILE", "is_of", "keep_model", "model_content", "model_of_plan"]

MODEL_FILE: Final = "model.onnx"


def _entry(key: bytes, value: bytes) -> bytes:
    """A field `metadata_props` of ModelProto (number 14), all lengths below 128."""
    inner = b"\x0a" + bytes([len(key)]) + key + b"\x12" + bytes([len(value)]) + value
    return b"\x72" + bytes([len(inner)]) + inner


# By this end a file is known as one that was kept, and may be replaced: a message takes further fields behind it.
_MARK: Final = _entry(b"planner.kept", b"without weights")
_MOST: Final = len(_MARK)


def keep_model(stripped: bytes, folder: Path, given: Path) -> str | None:
    """Writes it to the plan's folder; why it is not there, in words, where it cannot be.

    A file of this name that is not one kept before is somebody's model, and stays as it is.
    """
    path = folder / MODEL_FILE
    try:
        if path.exists() and not _is_ours(path):
            return f"{path} is there already and is no model kept before: the model that was planned is not kept"
        if not (path.exists() and path.samefile(given)):
            write_whole(path, stripped if stripped.endswith(_MARK) else stripped + _MARK)
    except OSError as e:
        return f"{path}: the model cannot be kept beside the plan ({e}); give it with --model where it is needed"
    return None


def model_of_plan(plan: Path, given: Path | None, option: str) -> Path:
    """The model given by `option`, or else the one beside a plan file.  InputError where there is none."""
    path = plan.parent / MODEL_FILE
    if given is None and not path.is_file():
        raise InputError(f"plan {plan}: no {MODEL_FILE} lies beside it; give the model that was planned with {option}")
    return given or path


def model_content(folder: Path) -> bytes | None:
    """The file kept in the folder; None where there is none, or it is somebody's model."""
    path = folder / MODEL_FILE
    try:
        return path.read_bytes() if path.is_file() and _is_ours(path) else None
    except OSError:
        return None


def is_of(content: bytes, stripped: bytes) -> bool:
    """Whether what was kept is the model whose file without weights is `stripped`."""
    return content.removesuffix(_MARK) == stripped.removesuffix(_MARK)


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _MOST))
        return file.read() == _MARK
