"""A checkpoint that is there: its files found, their tensors named, and where each piece of a tensor lies.

| kind | what lies there |
|---|---|
| `ranks` | a file of each rank: `rank_N/*.ckpt`, `rank_N.safetensors`, `NAME_rank_N.npz`, … |
| `file` | one file with whole tensors |
| `huggingface` | whole tensors in `*.safetensors`, with `model.safetensors.index.json` or without |
| `deepspeed` | DeepSpeed's own files, of ZeRO 0 to 3, and universal ones |
| `dcp` | torch.distributed.checkpoint: `.metadata`, which says where everything lies, and `*.distcp` |
| `megatron` | the same of Megatron-core, with `metadata.json` and `common.pt` |
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from planner.checkpoint.layouts import Layouts, Spread
from planner.checkpoint.naming import SHAPED, Tensor, parameters_among, parse, spelled, style_of
from planner.checkpoint.wording import listed
from planner.errors import InputError, UsageError
from planner.stored.arrays import Files, StoredArray
from planner.stored.copying import BLOCK
from planner.stored.formats.deepspeed.folder import is_deepspeed
from planner.stored.formats.layout import DCP_METADATA
from planner.stored.formats.registry import FORMATS, format_of, read_file
from planner.stored.moves import Held
from planner.transfer.blocks import blocks
from planner.transfer.pieces import Pieces, whole

__all__ = ["Checkpoint", "open_checkpoint", "rank_files"]

_SUFFIXES: Final = tuple(s for f in FORMATS.values() for s in f.suffixes)
_FOLDER: Final = re.compile(r"rank[_-]?(\d{1,7})")
_FILE: Final = re.compile(r"(?:.*[_\-.])?rank[_-]?(\d{1,7})(?:[_\-.].*)?")
_INDEX: Final = ".safetensors.index.json"
_LONGEST: Final = 1 << 28  # bytes of an index


@dataclass(slots=True)
class Checkpoint:
    """`tensors`: by their names in the files; `values`: what else is there, `differing` of them between ranks; `paths`:
    where names lie among nested dictionaries; `beside`: files without tensors; `ranks`: files of ranks that are there;
    `skipped`: names that are not looked at; `size`: bytes of all files with tensors."""

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
    skipped: tuple[str, ...] = ()
    paths: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    differing: frozenset[str] = frozenset()
    beside: tuple[Path, ...] = ()

    @property
    def style(self) -> str:
        """How the tensors are spelled."""
        return style_of(self.tensors, self.kind, self.paths.values())

    @property
    def folders(self) -> tuple[Path, ...]:
        """In which one more file would be taken for a part of it: those of its files, not that of several steps."""
        if not self.place.is_dir():
            return ()
        return tuple(dict.fromkeys((*(f.parent for f in self.files), *([self.place] if self.ranks else []))))

    @property
    def size(self) -> int:
        return sum(f.stat().st_size for f in self.files)


def open_checkpoint(place: Path, layouts: Layouts | None, skip: Sequence[str] = ()) -> Checkpoint:
    """The checkpoint at a place, of ranks that lie as `layouts` say; `skip`: patterns of names that are not looked at.

    InputError where nothing is there that could be one, files do not fit the layouts, or a rank's cannot be read.
    UsageError where files are of ranks and no layouts are given.
    """
    if not place.exists():
        raise InputError(f"{place}: there is no such file or folder; give a checkpoint")
    if place.is_file():
        return _of_whole(place, "file", {place: None}, layouts)
    if (place / DCP_METADATA).is_file():
        return _of_dcp(place, layouts)
    if is_deepspeed(place):
        return _of_deepspeed(place, layouts)
    ranks = rank_files(place)
    if ranks:
        return _of_ranks(place, ranks, layouts, skip)
    inside = sorted(f for f in place.iterdir() if not f.name.startswith("."))
    files = [f for f in inside if f.suffix in _SUFFIXES]
    safetensors = [f for f in files if f.suffix == ".safetensors"]
    if not files:
        steps = [f.name for f in inside if f.is_dir() and ((f / DCP_METADATA).is_file() or f.name.startswith("rank"))]
        raise InputError(
            f"{place}: expected a checkpoint (rank_N/, *.safetensors, or .metadata of PyTorch), found "
            f"{listed([f.name for f in inside]) or 'an empty folder'}"
            + (f"; give {place / steps[-1]}" if steps else "")
        )
    if len(files) > 1 and not safetensors:
        raise InputError(f"{place}: expected one file of tensors, found {listed([f.name for f in files])}; give one")
    index = [f for f in inside if f.name.endswith(_INDEX)]
    chosen = _indexed(place, index, safetensors) if index else dict.fromkeys(safetensors or files)
    found = _of_whole(place, "huggingface" if safetensors else "file", chosen, layouts)
    found.values |= {f"file {f.name}": None for f in files if f not in chosen}
    found.values |= {f"folder {f.name}": None for f in inside if f.is_dir()}
    found.beside = tuple(f for f in inside if f.is_file() and f not in files and f not in index)
    return found


def _indexed(place: Path, index: list[Path], there: list[Path]) -> dict[Path, set[str] | None]:
    """File → the tensors that the index says are in it; with an optimizer's state, as it is written here."""
    if len(index) > 1:
        raise InputError(
            f"{place}: expected one index, found {listed([f.name for f in index])}; leave that of one model"
        )
    try:
        if index[0].stat().st_size > _LONGEST:
            raise ValueError(f"{index[0].stat().st_size:,} bytes")
        held = json.loads(index[0].read_text(encoding="utf-8"))["weight_map"]
        files: dict[Path, set[str] | None] = {}
        for name, file in held.items():
            if Path(file).name != file:
                raise ValueError(f"the file {file!r:.80} elsewhere")
            known = files.setdefault(place / file, set())
            assert known is not None
            known.add(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise InputError(f"{index[0]}: expected an index of safetensors files, found {e}; write it anew") from None
    gone = [f.name for f in files if not f.is_file()]
    if gone:
        raise InputError(f"{index[0]}: names {listed(gone)}, which {place} lacks; bring back the files")
    state = place / "optimizer.safetensors"
    return files | ({state: None} if state in there else {})


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
                f"{folder}: rank {rank} has several files ({listed([f.name for f in files])}); leave that of one step"
            )
    return {rank: files[0] for rank, files in sorted(found.items())}


def _of_whole(place: Path, kind: str, files: Mapping[Path, set[str] | None], layouts: Layouts | None) -> Checkpoint:
    tensors: dict[str, Held] = {}
    values: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    paths: dict[str, tuple[Any, ...]] = {}
    for file, wanted in files.items():
        content = read_file(file)
        lacking = (wanted or set()) - set(content.arrays)
        if lacking:
            raise InputError(f"{file}: has no {listed(sorted(lacking))}, which the index says; write it anew")
        for name, array in content.arrays.items():
            if wanted is not None and name not in wanted:
                continue
            if name in tensors:
                raise InputError(f"{place}: tensor {name!r} is in several files; leave those of one checkpoint")
            tensors[name] = Held(whole(array.shape), (array,), array.dtype)
        values |= content.values
        metadata |= content.metadata
        paths |= content.paths
    known = set(layouts.parameters) if layouts is not None else parameters_among(tensors, kind, paths.values())
    said = {n: parse(n, known) for n in tensors}
    if layouts is not None:
        _check_whole(place, tensors, said, layouts)
    file_format = format_of(next(iter(files))).name
    return Checkpoint(place, kind, file_format, tensors, said, values, metadata, (), layouts, tuple(files), paths=paths)


def _check_whole(place: Path, tensors: Mapping[str, Held], said: Mapping[str, Tensor], layouts: Layouts) -> None:
    """InputError where tensors that are taken for whole are shards of one rank.

    Other shapes than the plan's are let through: a vocabulary that is padded, or a matrix that lies the other way.
    """
    for name, held in tensors.items():
        spread = layouts.parameters.get(said[name].parameter)
        if spread is None or said[name].slot or spread.shape in (None, held.shape):
            continue
        assert spread.shape is not None
        rank = next((r for r, s in local_shapes(spread.pieces(spread.shape)).items() if s == held.shape), None)
        if rank is not None:
            raise InputError(
                f"{place}: tensor {name}: expected the shape {list(spread.shape)}, found {list(held.shape)}, a shard "
                f"under {spread.layout}: this is the file of one rank; give the folder with those of all ranks"
            )


def _of_dcp(place: Path, layouts: Layouts | None) -> Checkpoint:
    # Formats that few checkpoints have are imported when one is met: copying a gigabyte takes half a second.
    from planner.checkpoint.megatron import is_megatron, with_common
    from planner.stored.formats.dcp import read_dcp

    found = read_dcp(place)
    kind = "dcp"
    if is_megatron(place):
        kind, found = "megatron", with_common(place, found)
    known = set(layouts.parameters) if layouts is not None else parameters_among(found.tensors, kind)
    said = {n: parse(n, known) for n in found.tensors}
    beside = (f for f in sorted(place.iterdir()) if f.is_file() and not f.name.startswith("."))
    others = tuple(f for f in beside if f not in found.files and f.suffix != ".distcp" and kind == "dcp")
    return Checkpoint(
        place, kind, "torch", found.tensors, said, found.values, {}, (), layouts, found.files, paths=found.paths,
        beside=others,
    )  # fmt: skip


def _of_deepspeed(place: Path, layouts: Layouts | None) -> Checkpoint:
    from planner.stored.formats.deepspeed.reading import read_deepspeed

    found = read_deepspeed(place)
    tensors: dict[str, Held] = {}
    said: dict[str, Tensor] = {}
    named = [(spelled(Tensor(p, p, slot), "plain"), p, slot, held) for (p, slot), held in found.parameters.items()]
    for name, parameter, slot, held in [*named, *((n, "", "", h) for n, h in found.others.items())]:
        if name in tensors:
            raise InputError(f"{place}: two tensors are called {name!r:.80}; save them under names that differ")
        tensors[name], said[name] = held, Tensor(name, parameter, slot)
    return Checkpoint(place, "deepspeed", "torch", tensors, said, found.values, {}, (), layouts, found.files)


def _of_ranks(place: Path, ranks: Mapping[int, Path], layouts: Layouts | None, skip: Sequence[str]) -> Checkpoint:
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
    file_format = format_of(next(iter(ranks.values()))).name
    layouts = layouts.in_format(file_format)
    contents = {rank: read_file(file) for rank, file in ranks.items()}
    held: dict[str, dict[int, StoredArray]] = {}
    skipped: dict[str, None] = {}
    for rank, content in contents.items():
        for name, array in content.arrays.items():
            if any(fnmatch.fnmatchcase(name, p) for p in skip):
                skipped[name] = None
                continue
            held.setdefault(name, {})[rank] = array
    said = {n: parse(n, layouts.parameters) for n in held}
    with Files() as files:
        tensors = {n: _tensor(place, said[n], arrays, layouts, files) for n, arrays in held.items()}
    first = next(iter(contents.values()))
    values: dict[str, Any] = {}
    differing = set()
    for c in contents.values():
        differing |= {k for k, v in c.values.items() if repr(values.setdefault(k, v)) != repr(v)}
    paths = {n: p for c in contents.values() for n, p in c.paths.items()}
    return Checkpoint(
        place, "ranks", file_format, tensors, said, values, dict(first.metadata), tuple(ranks), layouts,
        tuple(ranks.values()), tuple(skipped), paths, frozenset(differing),
    )  # fmt: skip


def _tensor(place: Path, tensor: Tensor, arrays: Mapping[int, StoredArray], layouts: Layouts, files: Files) -> Held:
    types = {a.dtype for a in arrays.values()}
    if len(types) > 1:
        raise InputError(f"{place}: tensor {tensor.name}: ranks hold it as {listed(map(str, types))}; save it alike")
    arrays = {r: a for r, a in arrays.items() if a.nbytes} or arrays  # shards of a part that is empty hold nothing
    if not any(a.nbytes for a in arrays.values()):
        first = next(iter(arrays.values()))
        return Held(whole(first.shape), (first,), first.dtype)
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
    """A tensor for which no layout is known: it has to be equal on all ranks; a shard that is taken for the whole would
    be lost in silence."""
    rank, first = next(iter(arrays.items()))
    everywhere = Held(whole(first.shape, range(len(arrays))), tuple(arrays.values()), first.dtype)
    differing = next((r for r, a in arrays.items() if a.shape != first.shape), None)
    for block in blocks(first.shape, BLOCK // first.dtype.itemsize) if differing is None else ():
        expected = files.read(first, block).tobytes()
        differing = next((r for r, a in arrays.items() if files.read(a, block).tobytes() != expected), None)
        if differing is not None:
            break
    if differing is not None:
        raise InputError(
            f"{place}: tensor {tensor.name} differs between rank {rank} and rank {differing}, and is of no parameter "
            "that the layouts name, so that nobody knows how it lies on the ranks; leave it out with --skip"
        )
    return everywhere
