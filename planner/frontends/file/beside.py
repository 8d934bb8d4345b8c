"""Numbers of a model that lie in another file of its folder."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx.external_data_helper import load_external_data_for_tensor

from planner.errors import InputError

__all__ = ["with_data"]


def with_data(given: onnx.TensorProto, folder: Path) -> onnx.TensorProto | None:
    """A copy that holds its numbers; None where their file is not there, or not in the folder: nothing that a model
    names elsewhere is opened, by whatever path or link.

    InputError where the file is shorter than the model says, or cannot be read.
    """
    t = onnx.TensorProto()
    t.CopyFrom(given)
    if t.data_location != onnx.TensorProto.EXTERNAL:
        return t
    file = folder / next((e.value for e in t.external_data if e.key == "location"), "")
    if not file.is_file() or not file.resolve().is_relative_to(folder.resolve()):
        return None
    try:
        load_external_data_for_tensor(t, str(folder))
        t.data_location = onnx.TensorProto.DEFAULT
        del t.external_data[:]
        onnx.numpy_helper.to_array(t)  # as long as its shape says
    except (OSError, ValueError, TypeError, onnx.checker.ValidationError) as e:
        raise InputError(f"{file}: the data of {t.name} cannot be read ({e}); give the file that the model had") from e
    return t
