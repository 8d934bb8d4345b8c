"""A model's file, read without the changes that an import makes."""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from planner.errors import InputError

__all__ = ["load_file"]


def load_file(path: Path, what: str = "--model") -> onnx.ModelProto:
    """The model with its external data left where it is.  InputError, calling it `what`, where it cannot be read."""
    try:
        return onnx.load(str(path), load_external_data=False)
    except (OSError, DecodeError) as e:
        raise InputError(f"{what} {path}: cannot be read ({e})") from e
