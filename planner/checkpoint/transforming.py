"""From a checkpoint to another: what of it goes where, and the copying of it."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from planner.checkpoint.layouts import Layouts, Spread
from planner.checkpoint.naming import Tensor, parse, spelled, style_of
from planner.checkpoint.renaming import Rule, renamed
from planner.checkpoint.source import Checkpoint, local_shapes
from planner.errors import InputError, UsageError
from planner.stored.copying import block_bytes, copy
from planner.stored.formats.dcp import METADATA, DistCp, metadata
from planner.stored.formats.layout import Entry, FileFormat
from planner.stored.formats.registry import FORMATS, format_of
from planner.stored.moves import Held, Move, lacking, without_repeats
from planner.stored.writing import FileToWrite, Writing, identity
from planner.transfer.holders import fewest
from planner.transfer.overlaps import overlaps
from planner.transfer.pieces import Pieces, whole

__all__ = ["FORMAT_NAMES", "Options", "Transformed", "planned", "transform"]

FORMAT_NAMES: Final = (*FORMATS, "huggingface", "dcp")
_SHARD: Final = 5 << 30  # bytes of a file of Hugging Face, as its own tools cut them
_STYLE: Final = {"mindspore": "mindspore", "huggingface": "plain", "dcp": "torch"}


@dataclass(frozen=True, slots=True)
class Options:
    """`format`: of the target's files, that of the source if empty; `ranks`: which to write, all if empty; `memory`:
    bytes that are held at once; `rules`: other names, as `renaming` has them; `skip`:
    patterns of names that are left out; `partial`: whether parameters of one side only are left out."""

    format: str = ""
    ranks: tuple[int, ...] = ()
    memory: int = 256 << 20
    workers: int = 1
    dtype: np.dtype[Any] | None = None
    rules: tuple[Rule, ...] = ()
    skip: tuple[str, ...] = ()
    partial: bool = False
    force: bool = False
    resume: bool = False
    sync: bool = True


@dataclass(frozen=True, slots=True)
class Transformed:
    """What was, or would be, done.  Bytes of tensors; `read_ranks`: ranks of the source whose files are read;
    `skipped`: names that are left out; `found_bytes`: those that an earlier run had written."""

    place: str
    format: str
    tensors: int
    target_bytes: int
    read_bytes: int
    written_bytes: int
    found_bytes: int
    read_ranks: tuple[int, ...]
    files: tuple[str, ...]
    skipped: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        return {name: list(v) if isinstance(v := getattr(self, name), tuple) else v for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Planned:
    """A transformation that can be run."""

    source: Checkpoint
    writing: Writing
    moves: tuple[Move, ...]
    format: str
    read_ranks: tuple[int, ...]
    skipped: tuple[str, ...]
    options: Options

    @property
    def target_bytes(self) -> int:
        """Bytes of tensors that will be written, replicas included."""
        return sum(e.nbytes for f in self.writing.files for e in f.entries)

    def done(self, read: int = 0, written: int = 0, found: int = 0) -> Transformed:
        return Transformed(
            str(self.writing.place), self.format, len(self.moves), self.target_bytes, read, written, found,
            self.read_ranks, tuple(f.path for f in self.writing.files) + tuple(self.writing.small), self.skipped,
        )  # fmt: skip


def transform(plan: Planned, progress: Callable[[int, int], None] | None = None) -> Transformed:
    """Copies; `progress` is called with the bytes done and of all.

    Raises:
        InputError: a source file is shorter than its header says.
        UsageError: the target's disk is full, or it cannot be written to.
    """
    o, writing = plan.options, plan.writing
    block = block_bytes(o.memory, o.workers)
    what = identity(
        [
            [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in plan.source.files],
            [(f.path, f.format.name, [(e.name, str(e.dtype), e.shape) for e in f.entries]) for f in writing.files],
            {n: d.hex()[:64] for n, d in writing.small.items()},
        ]
    )
    done, total = 0, plan.target_bytes

    def tell(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total)

    try:
        job = writing.begin({"what": what, "block": block}, resume=o.resume)
        copied = copy(plan.moves, writing.journal, block=int(job["block"]), workers=o.workers, progress=tell)
        writing.finish(plan.moves, copied, sync=o.sync)
    except OSError as e:
        raise UsageError(
            f"{writing.place}: cannot be written: {e.strerror or e}; what was written stays in {writing.part.name}: "
            "make room, and go on with --resume"
        ) from e
    return plan.done(copied.read, copied.written, copied.found)


def planned(source: Checkpoint, place: Path, target: Layouts | None, options: Options) -> Planned:
    """What is to be copied so that the source's tensors lie at a place as `target` says, or whole where it is None.

    Raises:
        InputError: a tensor fits no layout, lacks a part, or has no place on the other side.
        UsageError: options that do not go together; something is at the place already.
    """
    if options.rules:
        tensors, said = renamed(source.tensors, source.said, options.rules, source.place)
        source = replace(source, tensors=tensors, said=said)
    kind, style = _kind(source, place, target, options)
    names, skipped = _names(source, target, options, style)
    if target is None:
        files, small, pieces = _whole_files(source, place, kind, names, options)
    else:
        files, small, pieces = _rank_files(source, place, kind, names, target, options)
    writing = Writing(place, files, small, replaces=options.force)
    arrays = writing.arrays()
    reduced = _sources(source, names, pieces)
    moves = []
    for name, new in names.items():
        if name not in pieces:
            continue
        where, held = pieces[name]
        ranks = sorted(held)
        numbers = {r: i for i, r in enumerate(ranks)}
        holders = np.array([numbers[int(h)] for h in where.holders], np.int64)
        target_pieces = Pieces(where.shape, where.boxes, holders, where.inside)
        dtype = _dtype(source.tensors[name].dtype, options)
        into = Held(target_pieces, tuple(arrays[held[r], new] for r in ranks), dtype)
        moves.append(Move(new, reduced[name], into))
        _check_whole(source, name, reduced[name], into)
    return Planned(source, writing, tuple(moves), kind, _ranks_read(source, moves), skipped, options)


# What there will be

_Files = tuple[list[FileToWrite], dict[str, bytes], dict[str, tuple[Pieces, dict[int, str]]]]


def _kind(source: Checkpoint, place: Path, target: Layouts | None, options: Options) -> tuple[str, str]:
    """(format of the target's files, style of its names)."""
    kind = options.format
    if kind and kind not in FORMAT_NAMES:
        raise UsageError(f"--format: expected one of {', '.join(FORMAT_NAMES)}, found {kind!r}")
    if target is not None and kind in ("huggingface", "dcp"):
        raise UsageError(f"--format {kind} and --to: that form has whole tensors, which any plan reads; leave --to out")
    if not kind:
        if target is None and place.suffix in (s for f in FORMATS.values() for s in f.suffixes):
            kind = format_of(place).name
        elif target is None and source.kind != "ranks" and not place.suffix:
            kind = source.kind if source.kind in ("huggingface", "dcp") else source.format
        else:
            kind = source.format
    own = style_of(source.tensors)
    return kind, _STYLE.get(kind, own if source.format == FORMATS.get(kind, FORMATS["npz"]).name else "plain")


def _names(
    source: Checkpoint, target: Layouts | None, options: Options, style: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Source name → target name, and what is left out."""
    own = style_of(source.tensors)
    names: dict[str, str] = {}
    skipped, taken = [], set()
    for name in source.tensors:
        if any(fnmatch.fnmatchcase(name, p) for p in options.skip):
            skipped.append(name)
            continue
        new = spelled(source.said[name], style) if style != own else name
        if target is not None and source.layouts is not None and options.partial:
            said = parse(new, target.parameters)
            if source.said[name].parameter and not said.parameter:
                skipped.append(name)
                continue
        if new in taken:
            raise InputError(f"{name} and another tensor both become {new}; give --map so that names differ")
        names[name] = new
        taken.add(new)
    if target is not None:
        _check_sides(source, target, names, options)
    return names, tuple(skipped)


def _check_sides(source: Checkpoint, target: Layouts, names: Mapping[str, str], options: Options) -> None:
    there = {parse(n, target.parameters).parameter for n in names.values()}
    lacking_ = [p for p in target.parameters if p not in there]
    if lacking_ and not options.partial:
        raise InputError(
            f"{source.place}: has no {_listed(lacking_)}, which {target.said} lays out; it has "
            f"{_listed(names.values())}: say with --map how names differ, or leave them out with --partial"
        )
    if source.layouts is None:
        return
    for name, new in names.items():
        if source.said[name].parameter and not parse(new, target.parameters).parameter:
            raise InputError(
                f"{source.place}: {name} is no parameter of {target.said}, which lays out "
                f"{_listed(target.parameters)}: say with --map how names differ, or leave it out with --partial"
            )


def _dtype(dtype: np.dtype[Any], options: Options) -> np.dtype[Any]:
    """Floats in the type that was asked for; what counts stays as it is."""
    return options.dtype if options.dtype is not None and dtype.kind in "fV" else dtype


def _rank_files(
    source: Checkpoint, place: Path, kind: str, names: Mapping[str, str], target: Layouts, options: Options
) -> _Files:
    chosen = options.ranks or tuple(range(target.ranks))
    outside = [r for r in chosen if not 0 <= r < target.ranks]
    if outside:
        raise UsageError(f"--rank {outside[0]}: {target.said} is for ranks 0 to {target.ranks - 1}")
    file_format: FileFormat = FORMATS[kind]
    paths = {r: f"rank_{r}/checkpoint{file_format.suffixes[0]}" for r in chosen}
    entries: dict[int, list[Entry]] = {r: [] for r in chosen}
    pieces: dict[str, tuple[Pieces, dict[int, str]]] = {}
    for name, new in names.items():
        held = source.tensors[name]
        where = _where(parse(new, target.parameters), held, target)
        shapes = local_shapes(where)
        dtype = _dtype(held.dtype, options)
        own = {r: paths[r] for r in chosen if r in shapes}
        if not own:
            continue
        for r in own:
            entries[r].append(Entry(new, dtype, shapes[r]))
        pieces[name] = where.chosen(np.isin(where.holders, list(own))), own
    # A rank that holds nothing has no file: an empty one could not be told from one that was cut short.
    files = [FileToWrite(paths[r], file_format, tuple(entries[r]), source.metadata) for r in chosen if entries[r]]
    return files, {}, pieces


def _where(tensor: Tensor, held: Held, target: Layouts) -> Pieces:
    spread: Spread | None = None
    if tensor.parameter:
        spread = target.of_slot(tensor.parameter) if tensor.slot else target.parameters[tensor.parameter]
        if tensor.slot and len(held.shape) != len(spread.layout.dims):
            return whole(held.shape, spread.ranks)  # a scalar beside each shard
    if spread is None:
        return whole(held.shape, range(target.ranks))
    if spread.shape is not None and spread.shape != held.shape:
        raise InputError(
            f"{target.said}: parameter {tensor.parameter}: expected the shape {list(spread.shape)}, found "
            f"{list(held.shape)} of {tensor.name}; give a checkpoint of this model"
        )
    try:
        return spread.pieces(held.shape)
    except ValueError as e:
        raise InputError(f"{target.said}: parameter {tensor.parameter}: {e}") from e


def _whole_files(source: Checkpoint, place: Path, kind: str, names: Mapping[str, str], options: Options) -> _Files:
    if options.ranks:
        raise UsageError("--rank: the target has no ranks without --to")
    entries = {
        n: Entry(new, _dtype(source.tensors[n].dtype, options), source.tensors[n].shape) for n, new in names.items()
    }
    files: list[FileToWrite]
    small: dict[str, bytes] = {}
    if kind == "dcp":
        path = "__0_0.distcp"
        files = [FileToWrite(path, DistCp(), tuple(entries.values()), {})]
        small[METADATA] = metadata({path: tuple(entries.values())})
    elif kind == "huggingface":
        files, small = _sharded(source, entries)
    else:
        if not place.suffix:
            raise UsageError(
                f"{place}: give a name with the ending {FORMATS[kind].suffixes[0]}, or --format huggingface or dcp"
            )
        files = [FileToWrite(place.name, FORMATS[kind], tuple(entries.values()), source.metadata)]
    paths = {e.name: f.path for f in files for e in f.entries}
    pieces = {n: (whole(source.tensors[n].shape), {0: paths[e.name]}) for n, e in entries.items()}
    return files, small, pieces


def _sharded(source: Checkpoint, entries: Mapping[str, Entry]) -> tuple[list[FileToWrite], dict[str, bytes]]:
    """Weights as transformers reads them, under their own names; an optimizer's state in a file of its own beside."""
    weights: list[Entry] = []
    slots: list[Entry] = []
    for name, e in entries.items():
        said = source.said[name]
        is_slot = bool(said.slot) or e.name.startswith("optimizer.")
        (slots if is_slot else weights).append(e)
    shards: list[list[Entry]] = [[]]
    for e in weights:
        if shards[-1] and sum(x.nbytes for x in shards[-1]) + e.nbytes > _SHARD:
            shards.append([])
        shards[-1].append(e)
    count, about = len(shards), {"format": "pt"}
    paths = ["model.safetensors"] if count == 1 else [
        f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)
    ]  # fmt: skip
    safetensors = FORMATS["safetensors"]
    files = [FileToWrite(p, safetensors, tuple(s), about) for p, s in zip(paths, shards, strict=True)]
    small = {}
    if count > 1:
        held = {e.name: p for p, s in zip(paths, shards, strict=True) for e in s}
        index = {"metadata": {"total_size": sum(e.nbytes for e in weights)}, "weight_map": held}
        small["model.safetensors.index.json"] = (json.dumps(index, indent=1) + "\n").encode()
    if slots:
        files.append(FileToWrite("optimizer.safetensors", safetensors, tuple(slots), {}))
    return files, small


# What is read for it


def _sources(
    source: Checkpoint, names: Mapping[str, str], pieces: Mapping[str, tuple[Pieces, dict[int, str]]]
) -> dict[str, Held]:
    """Of each tensor the pieces that are read: from as few ranks as have them."""
    if source.kind != "ranks":
        return {n: Held(without_repeats(h.pieces), h.arrays, h.dtype, h.order) for n, h in source.tensors.items()}
    ranks = dict(zip(source.files, source.ranks, strict=True))
    needs: set[frozenset[int]] = set()
    for name, (where, _) in pieces.items():
        held = source.tensors[name]
        own = np.array([ranks[a.file] for a in held.arrays], np.int64)
        first, which = held.pieces.distinct()
        met = overlaps(held.pieces.boxes.chosen(first), where.boxes)
        needed = np.isin(which, np.unique(met.left))
        for box in np.unique(which[needed]):
            needs.add(frozenset(int(own[h]) for h in held.pieces.holders[which == box]))
    preferred = fewest(needs)
    out = {}
    for name, held in source.tensors.items():
        numbers = {ranks[a.file]: i for i, a in enumerate(held.arrays)}
        order = [numbers[r] for r in preferred if r in numbers]
        out[name] = Held(without_repeats(held.pieces, order), held.arrays, held.dtype, held.order)
    return out


def _ranks_read(source: Checkpoint, moves: Sequence[Move]) -> tuple[int, ...]:
    if source.kind != "ranks":
        return ()
    ranks = dict(zip(source.files, source.ranks, strict=True))
    found = set()
    for m in moves:
        met = overlaps(m.source.pieces.boxes, m.target.pieces.boxes)
        found |= {ranks[m.source.arrays[int(h)].file] for h in np.unique(m.source.pieces.holders[met.left])}
    return tuple(sorted(found))


def _check_whole(source: Checkpoint, name: str, held: Held, into: Held) -> None:
    rest = lacking(held.pieces, into.pieces)
    if not len(rest):
        return
    box = ", ".join(f"{a}:{b}" for a, b in zip(rest.starts[0], rest.stops[0], strict=True))
    said, lays = source.said[name], source.layouts
    who = ""
    if lays is not None and said.parameter in lays.parameters:
        spread = lays.of_slot(said.parameter) if said.slot else lays.parameters[said.parameter]
        met = overlaps(spread.pieces(held.shape).boxes, rest)
        ranks = sorted({int(r) for r in spread.pieces(held.shape).holders[met.left]})
        there = [r for r in ranks if r in source.ranks]
        lacks = "whose file is not there" if not there else f"whose file lacks it (rank {there[0]})"
        who = f", which rank {' or '.join(map(str, ranks[:4]))} would have, {lacks}"
    raise InputError(f"{source.place}: tensor {name}: lacks elements [{box}]{who}; bring back the file")


def _listed(names: Any) -> str:
    found = list(names)
    return ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
