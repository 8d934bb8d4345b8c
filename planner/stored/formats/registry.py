"""All formats of single files, and which of them a file is."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from planner.errors import InputError
from planner.stored.formats.layout import Content, FileFormat
from planner.stored.formats.mindspore import MindSpore
from planner.stored.formats.npz import Npz
from planner.stored.formats.safetensors import Safetensors
from planner.stored.formats.torch_file import TorchFile

__all__ = ["FORMATS", "format_of", "read_file"]

FORMATS: Final[dict[str, FileFormat]] = {f.name: f for f in (Safetensors(), MindSpore(), Npz(), TorchFile())}


def format_of(file: Path) -> FileFormat:
    """The format that a file's name says it has.  InputError where its ending is of none."""
    for each in FORMATS.values():
        if file.suffix in each.suffixes:
            return each
    known = ", ".join(s for f in FORMATS.values() for s in f.suffixes)
    raise InputError(f"{file}: expected a file of tensors ({known}), found the ending {file.suffix or 'of none'!r}")


def read_file(file: Path) -> Content:
    """The arrays of a file of any format."""
    return format_of(file).read(file)
