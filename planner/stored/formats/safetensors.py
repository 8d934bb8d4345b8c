"""Safetensors: eight bytes that give the length of a JSON header, the header, and the arrays behind it.

Source: the format's own description (huggingface/safetensors, README, "Format").
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from planner.errors import InputError
from planner.stored.arrays import StoredArray
from planner.stored.elements import SAFETENSORS, name_in
from planner.stored.formats.layout import MOST_DIMENSIONS, Arranged, Content, Entry

__all__ = ["Safetensors"]

_LONGEST: Final = 100_000_000  # bytes of a header, as the format has it
_ALIGNED: Final = 8


class Safetensors:
    name = "safetensors"
    suffixes: tuple[str, ...] = (".safetensors",)

    def read(self, file: Path) -> Content:
        try:
            size = file.stat().st_size
            with file.open("rb") as opened:
                length = int.from_bytes(opened.read(8), "little")
                if not 2 <= length <= min(_LONGEST, size - 8):
                    raise ValueError(f"a header of {length} bytes in a file of {size}")
                header = json.loads(opened.read(length))
            if not isinstance(header, dict):
                raise ValueError("a header that is no object")
            metadata = header.pop("__metadata__", {})
            if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
                raise ValueError("metadata that is no text")
            arrays = {name: _array(file, name, about, 8 + length, size) for name, about in header.items()}
            return Content(arrays, metadata)
        except OSError as e:
            raise InputError(f"{file}: cannot be read: {e.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as e:
            raise InputError(f"{file}: expected a safetensors file, found {e}; write it anew") from None

    def arrange(self, entries: Sequence[Entry], metadata: Mapping[str, str]) -> Arranged:
        header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        at, begins = 0, {}
        # Widest elements first, so that each array begins at a multiple of its element's size.
        for e in sorted(entries, key=lambda e: (-e.dtype.itemsize, e.name)):
            header[e.name] = {
                "dtype": name_in(SAFETENSORS, e.dtype), "shape": list(e.shape), "data_offsets": [at, at + e.nbytes],
            }  # fmt: skip
            begins[e.name] = at
            at += e.nbytes
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % _ALIGNED)
        head = len(text).to_bytes(8, "little") + text
        return Arranged(len(head) + at, ((0, head),), {n: len(head) + b for n, b in begins.items()})

    def finished(self, entries: Sequence[Entry], sums: Mapping[str, int]) -> list[tuple[int, bytes]]:
        return []


def _array(file: Path, name: str, about: Mapping[str, Any], begin: int, size: int) -> StoredArray:
    dtype = SAFETENSORS.get(about["dtype"])
    if dtype is None:
        raise ValueError(f"tensor {name!r} of the type {about['dtype']!r:.40}")
    shape = tuple(about["shape"])
    first, last = about["data_offsets"]
    if len(shape) > MOST_DIMENSIONS or any(
        isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < 1 << 62 for n in (*shape, first, last)
    ):
        raise ValueError(f"tensor {name!r} of the shape {list(shape)!r:.80}")
    if last - first != math.prod(shape) * dtype.itemsize or begin + last > size:
        raise ValueError(f"tensor {name!r} {list(shape)} in bytes {first} to {last} of {size - begin}")
    return StoredArray(file, begin + first, dtype, shape)
