"""Element types: ONNX's numbers ↔ the names the planner uses."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import onnx

__all__ = ["ELEM_TYPE", "array_dtype_name", "content_of", "dtype_name"]

_NAMES = {"float": "float32", "double": "float64"}

# Name → TensorProto.DataType, for every type a tensor of the graph may have.
ELEM_TYPE: dict[str, int] = {
    _NAMES.get(key.lower(), key.lower()): number
    for key, number in onnx.TensorProto.DataType.items()
    if key != "UNDEFINED"
}
_BY_NUMBER = {number: name for name, number in ELEM_TYPE.items()}


def dtype_name(elem_type: int) -> str | None:
    """Name of a TensorProto.DataType; None when undefined or unknown to this version of onnx."""
    return _BY_NUMBER.get(elem_type)


@lru_cache(maxsize=256)
def array_dtype_name(dtype: np.dtype[Any]) -> str:
    """Name of the type of a NumPy array's elements, which NumPy makes up anew each time."""
    return str(dtype)


def content_of(array: np.ndarray[Any, Any]) -> tuple[str, tuple[int, ...], bytes]:
    """All of an array, as a key: equal for equal ones, and for no others."""
    return array_dtype_name(array.dtype), array.shape, array.tobytes()
