"""torch.distributed.checkpoint: `.metadata`, a pickle that says which chunk of which tensor lies where, and `*.distcp`,
in which each chunk is a file of torch.save behind others.

A folder that is written here has every tensor in one chunk; any reader of DCP takes it apart as its own plan wants it.
Source: torch/distributed/checkpoint/{metadata,filesystem}.py of PyTorch 2.13.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from planner.errors import InputError
from planner.stored.arrays import StoredArray
from planner.stored.elements import TORCH, name_in
from planner.stored.formats.crc import patches
from planner.stored.formats.layout import Arranged, Content, Entry
from planner.stored.formats.nested import Index, place_of
from planner.stored.formats.pickled import Call, Made, Name, read_pickle, write_pickle
from planner.stored.formats.torch_file import TorchFile, read_saved, saved
from planner.stored.moves import Held
from planner.transfer.pieces import Boxes, Pieces

__all__ = ["METADATA", "DistCp", "Folder", "metadata", "read_dcp", "values_file"]

METADATA: Final = ".metadata"
_MODULE: Final = "torch.distributed.checkpoint.metadata"
_LONGEST: Final = 1 << 29


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
        tensors, values = {}, {}
        for name, about in _pairs(found["state_dict_metadata"]):
            if about.name.name == "TensorStorageMetadata":
                tensors[str(name)] = _tensor(str(name), _state(about, "TensorStorageMetadata"), places)
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


class DistCp:
    """A data file of DCP: for each entry a file of torch.save, behind each other."""

    name = "dcp"
    suffixes: tuple[str, ...] = (".distcp",)

    def read(self, file: Path) -> Content:
        return TorchFile().read(file)

    def arrange(self, entries: Sequence[Entry], metadata: Mapping[str, str]) -> Arranged:
        at, fixed, offsets = 0, [], {}
        for e in entries:
            made = saved([e], e)
            fixed += [(at + offset, data) for offset, data in made.fixed]
            offsets[e.name] = at + made.begins["archive/data/0"]
            at += made.size
        return Arranged(at, tuple(fixed), offsets, summed=True)

    def finished(self, entries: Sequence[Entry], sums: Mapping[str, int]) -> list[tuple[int, bytes]]:
        at, out = 0, []
        for e in entries:
            made = saved([e], e)
            out += patches([at + o for o in made.sums["archive/data/0"]], b"", sums[e.name], e.nbytes)
            at += made.size
        return out


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


def metadata(
    files: Mapping[str, Sequence[Entry]],
    paths: Mapping[str, tuple[Any, ...]],
    values: tuple[str, Mapping[str, tuple[int, int]]] = ("", {}),
) -> bytes:
    """`.metadata` of files that `DistCp` arranged, every tensor whole in one of them.

    Args:
        files: path → what lies there.
        paths: where names lie among nested dictionaries; others lie where their names say.
        values: the path of what `values_file` made, and where each value lies in it.
    """
    described: dict[str, Made] = {}
    stored: dict[Made, Made] = {}
    keys: dict[str, tuple[Any, ...]] = {}

    def store(name: str, index: dict[str, Any], path: str, at: int, length: int) -> None:
        where = {"relative_path": path, "offset": at, "length": length, "transform_descriptors": None}
        found = Made(Name(_MODULE, "MetadataIndex"), {"fqn": name, **index})
        stored[found] = Made(Name("torch.distributed.checkpoint.filesystem", "_StorageInfo"), where)
        known = paths.get(name) or _path(name, paths)
        keys[name] = tuple(int(k) if isinstance(k, Index) else str(k) for k in known)

    for path, entries in files.items():
        at = 0
        for e in entries:
            length = saved([e], e).size
            described[e.name] = _described(e)
            store(e.name, {"offset": _sized(0 for _ in e.shape), "index": 0}, path, at, length)
            at += length
    for name, (begin, length) in values[1].items():
        described[name] = Made(Name(_MODULE, "BytesStorageMetadata"), {})
        store(name, {"offset": None, "index": None}, values[0], begin, length)
    state = {
        "state_dict_metadata": described, "planner_data": keys, "storage_data": stored, "storage_meta": None,
        "version": None,
    }  # fmt: skip
    return write_pickle(Made(Name(_MODULE, "Metadata"), state), protocol=4)


def _path(name: str, paths: Mapping[str, tuple[Any, ...]]) -> tuple[Any, ...]:
    """Keys of the nested dictionary that the name stands for, as planner.torch.state_dict and torch's own have it."""
    if name.startswith("model."):
        return "model", name.removeprefix("model.")
    if name.startswith("optimizer.state.") and name.count(".") > 2:
        parameter, _, slot = name.removeprefix("optimizer.state.").rpartition(".")
        return "optimizer", "state", parameter, slot
    return place_of(name, paths)


def _sized(sizes: Any) -> Call:
    return Call(Name("torch", "Size"), (tuple(sizes),))


def _described(e: Entry) -> Made:
    layout = Call(Name("torch.serialization", "_get_layout"), ("torch.strided",))
    memory = Call(Name(_MODULE, "_MEM_FORMAT_ENCODING"), (0,))
    properties = Made(
        Name(_MODULE, "TensorProperties"), (Name("torch", name_in(TORCH, e.dtype)), layout, False, memory, False)
    )
    chunk = Made(
        Name(_MODULE, "ChunkStorageMetadata"), {"offsets": _sized(0 for _ in e.shape), "sizes": _sized(e.shape)}
    )
    return Made(
        Name(_MODULE, "TensorStorageMetadata"),
        {"properties": properties, "size": _sized(e.shape), "chunks": [chunk]},
    )
