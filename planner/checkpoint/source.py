"""A checkpoint that is there: its files found, their tensors named, and where each piece of a tensor lies.

| kind | what lies there |
|---|---|
| `ranks` | a file of each rank: `rank_N/*.ckpt`, `rank_N.safetensors`, `NAME_rank_N.npz`, … |
| `file` | one file with whole tensors |
| `huggingface` | whole tensors in `*.safetensors`, with `model.safetensors.index.json` or without |
| `dcp` | torch.distributed.checkpoint: `.metadata`, which says where everything lies, and `*.distcp` |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from planner.checkpoint.layouts import Layouts, Spread
from planner.checkpoint.naming import SHAPED, Tensor, parameters_among, parse
from planner.errors import InputError, UsageError
from planner.stored.arrays import Files, StoredArray
from planner.stored.formats.dcp import METADATA, read_dcp
from planner.stored.formats.registry import FORMATS, read_file
from planner.stored.moves import Held
from planner.transfer.pieces import Boxes, Pieces, whole

__all__ = ["Checkpoint", "open_checkpoint", "rank_files"]

_SUFFIXES: Final = tuple(s for f in FORMATS.values() for s in f.suffixes)
_FOLDER: Final = re.compile(r"rank[_-]?(\d{1,7})")
_FILE: Final = re.compile(r"(?:.*[_\-.])?rank[_-]?(\d{1,7})(?:[_\-.].*)?")
_SMALL: Final = 1 << 16  # bytes of what is compared between ranks because no layout is known for it


@dataclass(slots=True)
class Checkpoint:
    """`tensors`: by their names in the files; `values`: what else the files hold; `ranks`: files of ranks that are
    there; `size`: bytes of all files."""

    place: Path
    kind: str
    format: str
    tensors: dict[str, Held]
    said: dict[str, Tensor]
    values: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    layouts: Layouts | None = None
    files: tuple[Path, ...] = ()

    @property
    def size(self) -> int:
        return sum(f.stat().st_size for f in self.files)


def open_checkpoint(place: Path, layouts: Layouts | None) -> Checkpoint:
    """The checkpoint at a place, of ranks that lie as `layouts` say.

    InputError where nothing is there that could be one, files do not fit the layouts, or a rank's cannot be read.
    UsageError where files are of ranks and no layouts are given.
    """
    if not place.exists():
        raise InputError(f"{place}: there is no such file or folder; give a checkpoint")
    if place.is_file():
        return _of_whole(place, "file", [place], layouts)
    if (place / METADATA).is_file():
        return _of_dcp(place, layouts)
    ranks = rank_files(place)
    if ranks:
        return _of_ranks(place, ranks, layouts)
    files = sorted(f for f in place.iterdir() if f.suffix in _SUFFIXES and not f.name.startswith("."))
    if not files:
        raise InputError(
            f"{place}: expected a checkpoint (rank_N/, *.safetensors, or .metadata of PyTorch), found "
            f"{_listed(sorted(f.name for f in place.iterdir())) or 'an empty folder'}"
        )
    kind = "huggingface" if all(f.suffix == ".safetensors" for f in files) else "file"
    if kind == "file" and len(files) > 1:
        raise InputError(f"{place}: expected one file of tensors, found {_listed([f.name for f in files])}; give one")
    return _of_whole(place, kind, files, layouts)


def rank_files(folder: Path) -> dict[int, Path]:
    """Rank → its file.  InputError where a rank has several."""
    found: dict[int, list[Path]] = {}
    for inside in sorted(folder.iterdir()):
        if inside.name.startswith("."):
            continue
        if inside.is_dir() and (m := _FOLDER.fullmatch(inside.name)):
            own = [f for f in sorted(inside.iterdir()) if f.suffix in _SUFFIXES and not f.name.startswith(".")]
            if own:
                found.setdefault(int(m[1]), []).extend(own)
        elif inside.is_file() and inside.suffix in _SUFFIXES and (m := _FILE.fullmatch(inside.stem)):
            found.setdefault(int(m[1]), []).append(inside)
    for rank, files in found.items():
        if len(files) > 1:
            raise InputError(
                f"{folder}: rank {rank} has several files ({_listed([f.name for f in files])}); leave that of one step"
            )
    return {rank: files[0] for rank, files in sorted(found.items())}


def _of_whole(place: Path, kind: str, files: list[Path], layouts: Layouts | None) -> Checkpoint:
    tensors: dict[str, Held] = {}
    values: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    for file in files:
        content = read_file(file)
        for name, array in content.arrays.items():
            if name in tensors:
                raise InputError(f"{place}: tensor {name!r} is in several files; leave those of one checkpoint")
            tensors[name] = Held(whole(array.shape), (array,), array.dtype)
        values |= content.values
        metadata |= content.metadata
    known = set(layouts.parameters) if layouts is not None else parameters_among(tensors)
    said = {n: parse(n, known) for n in tensors}
    file_format = next(f.name for f in FORMATS.values() if files[0].suffix in f.suffixes)
    return Checkpoint(place, kind, file_format, tensors, said, values, metadata, (), layouts, tuple(files))


def _of_dcp(place: Path, layouts: Layouts | None) -> Checkpoint:
    tensors, values, files = read_dcp(place)
    known = set(layouts.parameters) if layouts is not None else parameters_among(tensors)
    said = {n: parse(n, known) for n in tensors}
    return Checkpoint(place, "dcp", "torch", tensors, said, values, {}, (), layouts, files)


def _of_ranks(place: Path, ranks: Mapping[int, Path], layouts: Layouts | None) -> Checkpoint:
    if layouts is None:
        raise UsageError(
            f"{place}: holds files of {len(ranks)} ranks; say with --from how tensors lie in them (a plan.json, or a "
            "strategy file of MindSpore)"
        )
    if max(ranks) >= layouts.ranks:
        raise InputError(
            f"{place}: has a file of rank {max(ranks)}, where {layouts.said} is for {layouts.ranks} ranks; give the "
            "plan that it was written under"
        )
    contents = {rank: read_file(file) for rank, file in ranks.items()}
    held: dict[str, dict[int, StoredArray]] = {}
    for rank, content in contents.items():
        for name, array in content.arrays.items():
            held.setdefault(name, {})[rank] = array
    said = {n: parse(n, layouts.parameters) for n in held}
    with Files() as files:
        tensors = {n: _tensor(place, said[n], arrays, layouts, files) for n, arrays in held.items()}
    first = next(iter(contents.values()))
    values = {k: v for c in contents.values() for k, v in c.values.items()}
    file_format = next(f.name for f in FORMATS.values() if next(iter(ranks.values())).suffix in f.suffixes)
    return Checkpoint(place, "ranks", file_format, tensors, said, values, dict(first.metadata), tuple(ranks), layouts,
                      tuple(ranks.values()))  # fmt: skip


def _tensor(place: Path, tensor: Tensor, arrays: Mapping[int, StoredArray], layouts: Layouts, files: Files) -> Held:
    types = {a.dtype for a in arrays.values()}
    if len(types) > 1:
        raise InputError(f"{place}: tensor {tensor.name}: ranks hold it as {_listed(map(str, types))}; save it alike")
    spread = _spread_of(tensor, arrays, layouts)
    if spread is None:
        return _alike(place, tensor, arrays, files)
    shape = _whole_shape(place, tensor, spread, arrays)
    pieces = spread.pieces(shape)
    expected = local_shapes(pieces)
    for rank, array in arrays.items():
        if rank not in expected:
            raise InputError(f"{place}: rank {rank} has {tensor.name}, which {layouts.said} gives to other ranks")
        if array.shape != expected[rank]:
            raise InputError(
                f"{place}: rank {rank}: tensor {tensor.name}: expected the shape {list(expected[rank])} of a shard of "
                f"{list(shape)} under {spread.layout}, found {list(array.shape)}; give the plan it was written under"
            )
    return _held(pieces, arrays)


def _held(pieces: Pieces, arrays: Mapping[int, StoredArray]) -> Held:
    """Of the ranks whose arrays are there."""
    ranks = sorted(arrays)
    numbers = {r: i for i, r in enumerate(ranks)}
    there = pieces.chosen(np.isin(pieces.holders, ranks))
    holders = np.array([numbers[int(r)] for r in there.holders], np.int64)
    found = Pieces(pieces.shape, there.boxes, holders, there.inside)
    return Held(found, tuple(arrays[r] for r in ranks), arrays[ranks[0]].dtype)


def _spread_of(tensor: Tensor, arrays: Mapping[int, StoredArray], layouts: Layouts) -> Spread | None:
    """None of what belongs to no parameter, or is a scalar beside one, such as a count of steps."""
    if not tensor.parameter:
        return None
    if not tensor.slot:
        return layouts.parameters[tensor.parameter]
    spread = layouts.of_slot(tensor.parameter)
    if tensor.slot in SHAPED:
        return spread
    rank, array = next(iter(arrays.items()))
    alike = len(array.shape) == len(spread.layout.dims) and array.shape != () and tensor.slot != "step"
    if alike and spread.shape is not None:
        alike = local_shapes(spread.pieces(spread.shape)).get(rank) == array.shape
    return spread if alike else None


def _whole_shape(place: Path, tensor: Tensor, spread: Spread, arrays: Mapping[int, StoredArray]) -> tuple[int, ...]:
    rank, array = next(iter(arrays.items()))
    try:
        found = spread.whole_shape(array.shape)
        if len(found) != len(array.shape):
            raise ValueError(f"expected {len(found)} dimensions, found {list(array.shape)}")
        return found
    except ValueError as e:
        raise InputError(f"{place}: rank {rank}: tensor {tensor.name}: {e}; give the plan it was written under") from e


def local_shapes(pieces: Pieces) -> dict[int, tuple[int, ...]]:
    """Rank → the shape of its array, of those that have one."""
    ranks, which = np.unique(pieces.holders, return_inverse=True)
    ends = pieces.inside + pieces.boxes.stops - pieces.boxes.starts
    out = np.zeros((len(ranks), len(pieces.shape)), np.int64)
    np.maximum.at(out, which.reshape(-1), ends)
    return {int(r): tuple(int(n) for n in row) for r, row in zip(ranks, out, strict=True)}


def _alike(place: Path, tensor: Tensor, arrays: Mapping[int, StoredArray], files: Files) -> Held:
    """A tensor for which no layout is known: small ones have to be equal on all ranks; others are refused, since a
    shard taken for the whole would be lost in silence."""
    first = next(iter(arrays.values()))
    if any(a.shape != first.shape for a in arrays.values()) or first.nbytes > _SMALL:
        raise InputError(
            f"{place}: tensor {tensor.name} {list(first.shape)} is of no parameter that the layouts name, so that "
            "nobody knows how it lies on the ranks; say with --map which parameter it is, or leave it out with --skip"
        )
    everything = [(0, n) for n in first.shape]
    values = {r: files.read(a, everything).tobytes() for r, a in arrays.items()}
    differing = [r for r, v in values.items() if v != next(iter(values.values()))]
    if differing:
        raise InputError(
            f"{place}: tensor {tensor.name} differs between rank {next(iter(values))} and rank {differing[0]}, and no "
            "layout says how it lies; say with --map which parameter it is, or leave it out with --skip"
        )
    return Held(whole(first.shape, range(len(arrays))), tuple(arrays.values()), first.dtype)


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")


def boxes_of(array: StoredArray) -> Boxes:
    """All of an array as one box."""
    d = len(array.shape)
    return Boxes(np.zeros((1, d), np.int64), np.array(array.shape, np.int64).reshape(1, d))
