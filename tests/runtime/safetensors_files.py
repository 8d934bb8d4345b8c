"""Files of weights, written without the package of their format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from planner.kernels.shards import Array

__all__ = ["write_safetensors"]


def write_safetensors(file: Path, tensors: Mapping[str, Array]) -> None:
    """Single and half precision, and whole numbers of 64 bits."""
    names = {np.dtype(np.float32): "F32", np.dtype(np.int64): "I64", np.dtype(np.float16): "F16"}
    header, at = {}, 0
    for name, value in tensors.items():
        header[name] = {
            "dtype": names[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [at, at + value.nbytes],
        }
        at += value.nbytes
    text = json.dumps(header).encode()
    parts = [np.ascontiguousarray(v).tobytes() for v in tensors.values()]
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
