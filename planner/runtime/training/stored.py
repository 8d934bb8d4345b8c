"""Tensors that lie in files and are not read yet: arrays over memory that the system maps, read where they are touched.

Of files that hold a compressed or encoded tensor (`.npz`, ONNX data beside `raw_data`) the tensor is read whole when it
is asked for.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import external_data_helper, helper, numpy_helper

from planner.errors import InputError
from planner.kernels.shards import Array
from planner.stored.formats.safetensors import Safetensors

__all__ = ["Stored", "in_onnx", "npy", "npz", "safetensors"]


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a file: `read()` gives it, mapped or read; `where` names it in messages."""

    where: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], Array]


def _mapped(file: Path, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> Array:
    if 0 in shape:
        return np.empty(shape, dtype)
    found: Array = np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape or (1,)).reshape(shape)
    return found


def safetensors(file: Path) -> dict[str, Stored]:
    """The tensors of a .safetensors file by name.  InputError for a file that is none."""
    return {
        n: Stored(f"{n} of {file}", a.shape, a.dtype, partial(_mapped, file, a.dtype, a.shape, a.offset))
        for n, a in Safetensors().read(file).arrays.items()
    }


def npy(file: Path) -> Stored:
    """The array of a .npy file.  InputError for a file that is none, or one of Python objects."""
    try:
        found = np.load(file, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise InputError(f"{file}: expected an array that numpy.save wrote, found {error}") from None
    return Stored(f"{file}", found.shape, found.dtype, lambda: found)


def npz(file: Path) -> dict[str, Stored]:
    """The arrays of a .npz file by name; they are read whole.  InputError for a file that is none."""
    try:
        with np.load(file, allow_pickle=False) as opened:
            held: dict[str, Array] = {n: opened[n] for n in opened.files}
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{file}: expected arrays that numpy.savez wrote, found {error}") from None
    return {n: Stored(f"{n} of {file}", x.shape, x.dtype, partial(np.asarray, x)) for n, x in held.items()}


def in_onnx(file: Path) -> tuple[dict[str, Stored], set[str]]:
    """Initializers of an ONNX file by name, data in other files included, and the names of those whose data is nowhere.

    InputError for a file that is none.
    """
    try:
        model = onnx.load(str(file), load_external_data=False)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from None
    except DecodeError:
        raise InputError(f"{file}: expected an ONNX model, which these bytes are not") from None
    found: dict[str, Stored] = {}
    absent: set[str] = set()
    for t in model.graph.initializer:
        shape, dtype = tuple(t.dims), np.dtype(helper.tensor_dtype_to_np_dtype(t.data_type))
        if t.data_location != onnx.TensorProto.EXTERNAL:
            whole = partial(numpy_helper.to_array, t)
            found[t.name] = Stored(f"{t.name} of {file}", shape, dtype, whole)
            continue
        about = external_data_helper.ExternalDataInfo(t)
        beside = (file.parent / about.location).resolve()
        # A file names its data by a path below its own folder; another is as if it were not there.
        if not beside.is_relative_to(file.parent.resolve()) or not beside.is_file():
            absent.add(t.name)
            continue
        offset, needed = int(about.offset or 0), int(np.prod(shape)) * dtype.itemsize
        if offset + needed > beside.stat().st_size:
            raise InputError(
                f"{file}: tensor {t.name} takes {needed} bytes from {offset} on of {about.location}, which has "
                f"{beside.stat().st_size}; copy that file again"
            )
        found[t.name] = Stored(f"{t.name} of {beside}", shape, dtype, partial(_mapped, beside, dtype, shape, offset))
    return found, absent
