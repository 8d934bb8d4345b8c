"""torch.distributed.checkpoint: `.metadata`, a pickle that says which chunk of which tensor lies where, and `*.distcp`,
in which each chunk is a file of torch.save behind others.

A folder that is written here has every tensor in one chunk, or in chunks that a writer asks for; any reader of DCP
takes it apart as its own plan wants it.
Source: torch/distributed/checkpoint/{metadata,filesystem}.py of PyTorch 2.13.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from planner.errors import InputError
from planner.stored.arrays import Range, StoredArray
from planner.stored.elements import TORCH, name_in
from planner.stored.formats.archive import Zipped
from planner.stored.formats.crc import patches
from planner.stored.formats.layout import DCP_METADATA, Arranged, Content, Entry, slice_name
from planner.stored.formats.nested import Index, place_of
from planner.stored.formats.pickled import Call, Made, Name, read_pickle, write_pickle
from planner.stored.formats.torch_file import TorchFile, read_saved, saved
from planner.stored.moves import Held
from planner.transfer.pieces import Boxes, Pieces

__all__ = ["METADATA", "DistCp", "Folder", "Objects", "metadata", "read_dcp", "values_file"]

METADATA: Final = DCP_METADATA
_MODULE: Final = "torch.distributed.checkpoint.metadata"
_LONGEST: Final = 1 << 29
_SHARDED: Final = "/shard_"  # in names of Megatron's objects, which are not looked into


# Reading


@dataclass(frozen=True, slots=True)
class Folder:
    """`tensors` with their pieces; `values`: what else is there; `paths`: where names lie among nested dictionaries."""

    tensors: dict[str, Held]
    values: dict[str, Any]
    paths: dict[str, tuple[Any, ...]]
    files: tuple[Path, ...]


def read_dcp(folder: Path) -> Folder:
    """InputError for a folder that is no such checkpoint."""
    try:
        file = folder / METADATA
        if file.stat().st_size > _LONGEST:
            raise ValueError(f"{file.stat().st_size:,} bytes of metadata")
        found = _state(read_pickle(file.read_bytes()), "Metadata")
        places: dict[str, dict[tuple[int, ...], StoredArray | Any]] = {}
        files: set[Path] = set()
        for key, info in _pairs(found["storage_data"]):
            index, where = _state(key, "MetadataIndex"), _state(info, "_StorageInfo")
            path = _inside(folder, where["relative_path"])
            if where.get("transform_descriptors"):
                raise ValueError(f"{index['fqn']!r:.80} in a compressed form")
            files.add(path)
            offset = index.get("offset")
            at = () if offset is None else _size(offset)
            places.setdefault(str(index["fqn"]), {})[at] = (path, int(where["offset"]), int(where["length"]))
        tensors: dict[str, Held] = {}
        values: dict[str, Any] = {}
        for name, about in _pairs(found["state_dict_metadata"]):
            if about.name.name == "TensorStorageMetadata":
                tensors[str(name)] = _tensor(str(name), _state(about, "TensorStorageMetadata"), places)
            elif _SHARDED in str(name):  # one of each rank, or layer: as many as there are layers and experts
                values[str(name)] = None
            else:
                values[str(name)] = _value(places.get(str(name), {}))
        return Folder(tensors, values, _paths(found.get("planner_data")), tuple(sorted(files)))
    except OSError as e:
        raise InputError(f"{folder}: cannot be read: {e.strerror} ({e.filename})") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as e:
        raise InputError(
            f"{folder}: expected a checkpoint of torch.distributed.checkpoint, found {e}; save it anew"
        ) from None


def _paths(found: Any) -> dict[str, tuple[Any, ...]]:
    """Of the keys of nested dictionaries; numbers among them are indices of lists, as torch reads them."""
    if not isinstance(found, dict):
        return {}
    return {
        str(n): tuple(Index(k) if type(k) is int else str(k) for k in path)
        for n, path in found.items()
        if isinstance(path, tuple) and path
    }


def _state(call: Any, name: str) -> dict[str, Any]:
    if not isinstance(call, Call) or call.name.name != name or not isinstance(call.state, dict):
        raise ValueError(f"{type(call).__name__} in place of {name}")
    return call.state


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    raise ValueError(f"{type(value).__name__} in place of a dictionary")


def _size(value: Any) -> tuple[int, ...]:
    """Of a torch.Size."""
    found = (
        value.arguments[0] if isinstance(value, Call) and value.arguments else () if isinstance(value, Call) else value
    )
    if not isinstance(found, (tuple, list)) or any(not isinstance(n, int) or not 0 <= n < 1 << 62 for n in found):
        raise ValueError(f"a size {found!r:.80}")
    return tuple(found)


def _inside(folder: Path, name: Any) -> Path:
    """A file of the folder; a path that leaves it is refused."""
    path = (folder / str(name)).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ValueError(f"a file {str(name)!r:.80} outside of the folder")
    return folder / str(name)


def _tensor(name: str, about: Mapping[str, Any], places: Mapping[str, Any]) -> Held:
    shape = _size(about["size"])
    arrays, starts, stops = [], [], []
    for chunk in about["chunks"]:
        state = _state(chunk, "ChunkStorageMetadata")
        low, sizes = _size(state["offsets"]), _size(state["sizes"])
        if len(low) != len(shape) or any(a + n > s for a, n, s in zip(low, sizes, shape, strict=True)):
            raise ValueError(f"{name!r} {list(shape)} with a chunk {list(sizes)} at {list(low)}")
        held = places.get(name, {})
        place = held.get(low, held.get(()))
        if place is None:
            raise ValueError(f"{name!r} without its chunk at {list(low)}")
        if 0 in sizes:
            continue
        value = read_saved(*place)
        if not isinstance(value, StoredArray) or value.shape != sizes:
            raise ValueError(f"{name!r} with a chunk that is no tensor of {list(sizes)}")
        arrays.append(value)
        starts.append(low)
        stops.append(tuple(a + n for a, n in zip(low, sizes, strict=True)))
    if len({a.dtype for a in arrays}) > 1:
        raise ValueError(f"{name!r} with chunks of several types")
    n, d = len(arrays), len(shape)
    boxes = Boxes(np.array(starts, np.int64).reshape(n, d), np.array(stops, np.int64).reshape(n, d))
    pieces = Pieces(shape, boxes, np.arange(n, dtype=np.int64), np.zeros((n, d), np.int64))
    dtype = arrays[0].dtype if arrays else _dtype(about)
    return Held(pieces, tuple(arrays), dtype)


def _dtype(about: Mapping[str, Any]) -> np.dtype[Any]:
    kind = about["properties"].state[0]
    return TORCH[kind.name]


def _value(places: Mapping[tuple[int, ...], Any]) -> Any:
    for place in places.values():
        return read_saved(*place)
    return None


# Writing


@dataclass(frozen=True, slots=True)
class Objects:
    """Values that are no tensors, by name: each is the value that a file of torch.save at `path` has, whole."""

    path: str
    size: int
    names: tuple[str, ...]


class DistCp:
    """A data file of DCP: for each chunk of an entry a file of torch.save, behind each other.

    `chunks`: the boxes of arrays that are not in one chunk, in order, each one range of the row-major array.  A reader
    reads a chunk whole, whatever part of it it wants.
    """

    name = "dcp"
    suffixes: tuple[str, ...] = (".distcp",)

    def __init__(self, chunks: Mapping[str, Sequence[Sequence[Range]]] | None = None) -> None:
        self.chunks = chunks or {}

    def read(self, file: Path) -> Content:
        return TorchFile().read(file)

    def arrange(self, entries: Sequence[Entry], metadata: Mapping[str, str]) -> Arranged:
        at, fixed = 0, []
        offsets: dict[str, int] = {}
        extents: dict[str, list[tuple[int, int]]] = {}
        for e in entries:
            begin = 0
            for box in self.of(e):
                made, size = _saved(e.dtype, _extent(box)), math.prod(_extent(box)) * e.dtype.itemsize
                fixed += [(at + offset, data) for offset, data in made.fixed]
                place = at + made.begins["archive/data/0"]
                offsets.setdefault(e.name, place)
                if e.name in self.chunks:
                    extents.setdefault(e.name, []).append((begin, place))
                begin, at = begin + size, at + made.size
        return Arranged(at, tuple(fixed), offsets, True, {n: tuple(x) for n, x in extents.items()})

    def finished(self, entries: Sequence[Entry], sums: Mapping[str, int]) -> list[tuple[int, bytes]]:
        at, out = 0, []
        for e in entries:
            for k, box in enumerate(self.of(e)):
                made, size = _saved(e.dtype, _extent(box)), math.prod(_extent(box)) * e.dtype.itemsize
                found = sums[slice_name(e.name, k) if e.name in self.chunks else e.name]
                out += patches([at + o for o in made.sums["archive/data/0"]], b"", found, size)
                at += made.size
        return out

    def of(self, e: Entry) -> Sequence[Sequence[Range]]:
        """The boxes of an entry's chunks."""
        return self.chunks.get(e.name) or [[(0, n) for n in e.shape]]


def values_file(values: Mapping[str, Any]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """(a data file with a file of torch.save for each value, behind each other; name → its first byte, and bytes)."""
    out = io.BytesIO()
    places = {}
    for name, value in values.items():
        made, begin = saved([], value), out.tell()
        for offset, data in made.fixed:
            out.seek(begin + offset)
            out.write(data)
        places[name] = begin, made.size
        out.seek(begin + made.size)
    return out.getvalue(), places


def _extent(box: Sequence[Range]) -> tuple[int, ...]:
    return tuple(high - low for low, high in box)


@lru_cache(maxsize=1024)
def _saved(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Zipped:
    e = Entry("", dtype, shape)
    return saved([e], e)


def metadata(
    files: Mapping[str, Sequence[Entry]], written: DistCp | None = None, objects: Objects | None = None, *,
    aliases: Mapping[str, str] | None = None, nested: bool = True, paths: Mapping[str, tuple[Any, ...]] | None = None,
    values: tuple[str, Mapping[str, tuple[int, int]]] = ("", {}),
) -> bytes:  # fmt: skip
    """`.metadata` of files that `written` arranged, every tensor in one of them.

    Args:
        files: path → what lies there.
        written: how; every tensor in one chunk without it.
        objects: those of a file that have no content.
        aliases: other names → entries that they mean, too.
        nested: whether names are keys of nested dictionaries.
        paths: where they lie among these; others lie where their names say.
        values: the path of what `values_file` made, and where each value lies in it.
    """
    described: dict[str, Made] = {}
    stored = {}
    written = written or DistCp()
    others: dict[str, list[str]] = {}
    for other, name in (aliases or {}).items():
        others.setdefault(name, []).append(other)
    for path, entries in files.items():
        at = 0
        for e in entries:
            boxes = written.of(e)
            names = (e.name, *others.get(e.name, ()))
            described |= dict.fromkeys(names, _described(e, boxes))
            for k, box in enumerate(boxes):
                length = _saved(e.dtype, _extent(box)).size
                for n in names:
                    stored[_index(n, _sized(low for low, _ in box), k)] = _place(path, at, length)
                at += length
    blobs = {n: (values[0], *place) for n, place in values[1].items()}
    if objects is not None:
        blobs |= dict.fromkeys(objects.names, (objects.path, 0, objects.size))
    for name, blob in blobs.items():
        described[name] = Made(Name(_MODULE, "BytesStorageMetadata"), {})
        stored[_index(name, None, None)] = _place(*blob)
    keys = {n: _path(n, paths or {}) for n in described} if nested else {}
    state = {
        "state_dict_metadata": described, "planner_data": keys, "storage_data": stored,
        "storage_meta": None, "version": None,
    }  # fmt: skip
    return write_pickle(Made(Name(_MODULE, "Metadata"), state), protocol=4)


def _index(name: str, offset: Call | None, number: int | None) -> Made:
    return Made(Name(_MODULE, "MetadataIndex"), {"fqn": name, "offset": offset, "index": number})


def _place(path: str, offset: int, length: int) -> Made:
    where = {"relative_path": path, "offset": offset, "length": length, "transform_descriptors": None}
    return Made(Name("torch.distributed.checkpoint.filesystem", "_StorageInfo"), where)


def _path(name: str, paths: Mapping[str, tuple[Any, ...]]) -> tuple[Any, ...]:
    """Keys of the nested dictionary that the name stands for; indices of lists are numbers."""
    return tuple(int(k) if isinstance(k, Index) else str(k) for k in paths.get(name) or _usual_path(name, paths))


def _usual_path(name: str, paths: Mapping[str, tuple[Any, ...]]) -> tuple[Any, ...]:
    """Keys of the nested dictionary that the name stands for, as planner.torch.state_dict and torch's own have it."""
    if name.startswith("model."):
        return "model", name.removeprefix("model.")
    if name.startswith("optimizer.state.") and name.count(".") > 2:
        parameter, _, slot = name.removeprefix("optimizer.state.").rpartition(".")
        return "optimizer", "state", parameter, slot
    return place_of(name, paths)


def _sized(sizes: Any) -> Call:
    return Call(Name("torch", "Size"), (tuple(sizes),))


def _described(e: Entry, boxes: Sequence[Sequence[Range]]) -> Made:
    layout = Call(Name("torch.serialization", "_get_layout"), ("torch.strided",))
    memory = Call(Name(_MODULE, "_MEM_FORMAT_ENCODING"), (0,))
    properties = Made(
        Name(_MODULE, "TensorProperties"), (Name("torch", name_in(TORCH, e.dtype)), layout, False, memory, False)
    )
    chunks = [
        Made(Name(_MODULE, "ChunkStorageMetadata"),
             {"offsets": _sized(low for low, _ in box), "sizes": _sized(_extent(box))})
        for box in boxes
    ]  # fmt: skip
    return Made(
        Name(_MODULE, "TensorStorageMetadata"),
        {"properties": properties, "size": _sized(e.shape), "chunks": chunks},
    )
