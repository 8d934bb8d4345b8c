"""MindSpore's `.ckpt`: the protobuf message `Checkpoint`, whose arrays lie raw in the field `tensor_content`.

    Checkpoint  {1 rep Value{1 req string tag; 2 TensorProto}}
    TensorProto {1 rep int64 dims; 2 req string tensor_type; 3 req bytes tensor_content}

Source: mindspore/train/serialization.py and checkpoint.proto of MindSpore 2.10.  Scalars have dims [0] there.  An array
of more than 512 MiB comes in slices, values with one tag behind each other.  The message is walked and not parsed, so
that a file of any size costs its names alone.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from planner.errors import InputError
from planner.stored.arrays import StoredArray
from planner.stored.elements import MINDSPORE, name_in
from planner.stored.formats.layout import Arranged, Content, Entry

__all__ = ["MindSpore"]

_SLICE: Final = 512 << 20  # bytes of one value, as MindSpore cuts them
_VALUE, _TAG, _TENSOR, _DIM, _TYPE, _CONTENT = 0x0A, 0x0A, 0x12, 0x08, 0x12, 0x1A
_NAME_BYTES: Final = 1 << 16


class MindSpore:
    name = "mindspore"
    suffixes: tuple[str, ...] = (".ckpt",)

    def read(self, file: Path) -> Content:
        try:
            with file.open("rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                if not size:
                    raise ValueError("an empty one")
                values: dict[str, str] = {}
                arrays = _arrays(file, _Bytes(opened.fileno(), size), values)
                return Content(arrays, values=values)
        except OSError as e:
            raise InputError(f"{file}: cannot be read: {e.strerror}") from None
        except ValueError as e:
            raise InputError(
                f"{file}: expected a checkpoint of MindSpore (not encrypted), found {e}; save it anew"
            ) from None

    def arrange(self, entries: Sequence[Entry], metadata: Mapping[str, str]) -> Arranged:
        at, fixed, offsets = 0, [], {}
        extents = {}
        for e in entries:
            slices: list[tuple[int, int]] = []
            begin = 0
            while begin < e.nbytes or not slices:
                length = min(_SLICE, e.nbytes - begin)
                head = _head(e, length)
                fixed.append((at, head))
                slices.append((begin, at + len(head)))
                at, begin = at + len(head) + length, begin + length
            offsets[e.name] = slices[0][1]
            if len(slices) > 1:
                extents[e.name] = tuple(slices)
        return Arranged(at, tuple(fixed), offsets, extents=extents)

    def finished(self, entries: Sequence[Entry], sums: Mapping[str, int]) -> list[tuple[int, bytes]]:
        return []


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _head(e: Entry, length: int) -> bytes:
    """All of a value but its content of so many bytes, which ends it."""
    dims = b"".join(bytes([_DIM]) + _varint(n) for n in e.shape or (0,))
    kind = name_in(MINDSPORE, e.dtype).encode()
    inner = dims + bytes([_TYPE]) + _varint(len(kind)) + kind + bytes([_CONTENT]) + _varint(length)
    tag = e.name.encode()
    tensor = bytes([_TENSOR]) + _varint(len(inner) + length)
    value = bytes([_TAG]) + _varint(len(tag)) + tag + tensor
    return bytes([_VALUE]) + _varint(len(value) + len(inner) + length) + value + inner


class _Bytes:
    """A file that is walked from field to field."""

    def __init__(self, handle: int, size: int) -> None:
        self._handle, self.size = handle, size
        self._begin, self._window = 0, b""

    def take(self, at: int, length: int) -> bytes:
        if at + length > self.size:
            raise ValueError(f"a field that ends at byte {at + length} of {self.size}")
        if not self._begin <= at or at + length > self._begin + len(self._window):
            self._begin, self._window = at, os.pread(self._handle, max(length, 1 << 12), at)
        return self._window[at - self._begin : at - self._begin + length]

    def varint(self, at: int) -> tuple[int, int]:
        """(value, where it ends)."""
        value = 0
        for i in range(10):
            byte = self.take(at + i, 1)[0]
            value |= (byte & 0x7F) << 7 * i
            if byte < 0x80:
                return value, at + i + 1
        raise ValueError(f"a number without an end at byte {at}")

    def fields(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(key, value of a number or where its bytes begin, where they end) of a message."""
        at = begin
        while at < end:
            key, at = self.varint(at)
            value, at = self.varint(at)
            if key & 7 == 0:
                yield key, value, at
            elif key & 7 == 2:
                if at + value > end:
                    raise ValueError(f"a field of {value} bytes at byte {at} of a message that ends at {end}")
                yield key, at, at + value
                at += value
            else:
                raise ValueError(f"a field of the kind {key & 7} at byte {at}")

    def text(self, begin: int, end: int) -> str:
        if end - begin > _NAME_BYTES:
            raise ValueError(f"a name of {end - begin} bytes")
        return self.take(begin, end - begin).decode()


def _arrays(file: Path, data: _Bytes, values: dict[str, str]) -> dict[str, StoredArray]:
    """By name; `values` takes texts, which `append_dict` of save_checkpoint makes."""
    found: dict[str, StoredArray] = {}
    slices: dict[str, list[tuple[int, int]]] = {}
    came: dict[str, int] = {}  # bytes so far
    for key, begin, end in data.fields(0, data.size):
        if key != _VALUE:
            continue
        name, tensor = "", None
        for inner, low, high in data.fields(begin, end):
            if inner == _TAG:
                name = data.text(low, high)
            elif inner == _TENSOR:
                tensor = low, high
        if tensor is None:
            raise ValueError(f"{name!r}, which is no tensor")
        found_tensor = _tensor(file, data, name, *tensor, values)
        if found_tensor is None:
            continue
        array, length = found_tensor
        before = found.setdefault(name, array)
        if before is not array and (before.shape, before.dtype) != (array.shape, array.dtype):
            raise ValueError(f"{name!r} twice, of the shapes {list(before.shape)} and {list(array.shape)}")
        slices.setdefault(name, []).append((came.get(name, 0), array.offset))
        came[name] = came.get(name, 0) + length
    for name, array in found.items():
        if came[name] != array.nbytes:
            raise ValueError(f"{name!r} {list(array.shape)} of {array.dtype} in {came[name]} bytes")
        if len(slices[name]) > 1:
            found[name] = replace(array, extents=tuple(slices[name]))
    return found


def _tensor(
    file: Path, data: _Bytes, name: str, begin: int, end: int, values: dict[str, str]
) -> tuple[StoredArray, int] | None:
    """(array, bytes of it); None of a text, which becomes one of the `values`."""
    dims: list[int] = []
    kind, content = "", None
    for key, low, high in data.fields(begin, end):
        if key == _DIM:
            dims.append(low)
        elif key == _DIM | 2:  # packed
            at = low
            while at < high:
                value, at = data.varint(at)
                dims.append(value)
        elif key == _TYPE:
            kind = data.text(low, high)
        elif key == _CONTENT:
            content = low, high
    if kind == "str" and content is not None:
        shown = min(content[1] - content[0], _NAME_BYTES)
        values[name] = data.take(content[0], shown).decode("utf-32-le", "replace")  # as numpy holds texts
        return None
    dtype = MINDSPORE.get(kind)
    if dtype is None:
        raise ValueError(f"{name!r} of the type {kind!r:.40}")
    if content is None or len(dims) > 32:
        raise ValueError(f"{name!r} without content")
    length = content[1] - content[0]
    shape = () if dims == [0] and length == dtype.itemsize else tuple(dims)
    if any(n < 0 or n >= 1 << 62 for n in shape) or math.prod(shape) * dtype.itemsize < length:
        raise ValueError(f"{name!r} {list(shape)} of {dtype} in {length} bytes")
    return StoredArray(file, content[0], dtype, shape), length
