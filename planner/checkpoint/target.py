"""The files of a target: which format, which files, and which tensors lie in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from planner.checkpoint.carried import Carried
from planner.checkpoint.layouts import Layouts, Spread
from planner.checkpoint.naming import SHAPED, Tensor, parse
from planner.checkpoint.options import FORMAT_NAMES, UNIVERSAL, Options
from planner.checkpoint.source import Checkpoint, local_shapes
from planner.checkpoint.wording import listed
from planner.errors import InputError, UsageError
from planner.stored.formats.layout import Entry, FileFormat
from planner.stored.formats.registry import FORMATS, format_of
from planner.stored.formats.torch_file import TorchFile
from planner.stored.moves import Held
from planner.stored.writing import FileToWrite
from planner.transfer.pieces import Pieces, whole

__all__ = ["Target", "element_of", "kind_of", "target_of"]

_SHARD: Final = 5 << 30  # bytes of a file of Hugging Face, as its own tools cut them
_STYLE: Final = {"mindspore": "mindspore", "huggingface": "plain", "dcp": "torch", "megatron": "megatron",
                 **dict.fromkeys(UNIVERSAL, "plain")}  # fmt: skip
_WHOLE: Final = ("huggingface", "dcp", "megatron", *UNIVERSAL)  # folders without ranks


@dataclass(frozen=True, slots=True)
class Target:
    """`files`, `small` ones with their content, and of each tensor of the source (its pieces on ranks, the file of each
    rank); `carried`: values of the source, which it has as well."""

    files: list[FileToWrite]
    small: dict[str, bytes]
    pieces: dict[str, tuple[Pieces, dict[int, str]]]
    carried: frozenset[str] = frozenset()


def target_of(
    source: Checkpoint, place: Path, kind: str, names: Mapping[str, str], layouts: Layouts | None, options: Options,
    along: Carried,
) -> Target:  # fmt: skip
    """`along`: what goes with the tensors.

    InputError where a tensor does not fit the layouts; UsageError where options do not go together.
    """
    if layouts is None:
        return _whole_files(source, place, kind, names, options, along)
    return _rank_files(source, kind, names, layouts, options, along)


def kind_of(source: Checkpoint, place: Path, target: Layouts | None, options: Options) -> tuple[str, str]:
    """(format of the target's files, style of its names)."""
    kind = options.format
    if kind and kind not in FORMAT_NAMES:
        raise UsageError(f"--format: expected one of {', '.join(FORMAT_NAMES)}, found {kind!r}")
    if target is not None and kind in _WHOLE:
        raise UsageError(f"--format {kind} and --to: that form has whole tensors, which any plan reads; leave --to out")
    if not kind:
        if target is None and place.suffix in (s for f in FORMATS.values() for s in f.suffixes):
            kind = format_of(place).name
        elif target is None and source.kind != "ranks" and not place.suffix:
            kind = source.kind if source.kind in _WHOLE else source.format
        else:
            kind = source.format
    own = source.style
    return kind, _STYLE.get(kind, own if source.format == FORMATS.get(kind, FORMATS["npz"]).name else "plain")


def element_of(held: Held, said: Tensor, options: Options) -> np.dtype[Any]:
    """Weights in the type that was asked for, if they are floats; an optimizer's state and what counts stay as they
    are."""
    is_weight = bool(said.parameter) and not said.slot and held.dtype.kind in "fV"
    return options.dtype if options.dtype is not None and is_weight else held.dtype


def _file_format(kind: str, along: Carried) -> FileFormat:
    return TorchFile(along.values, along.paths) if kind == "torch" else FORMATS[kind]


def _rank_files(
    source: Checkpoint, kind: str, names: Mapping[str, str], target: Layouts, options: Options, along: Carried
) -> Target:
    chosen = options.ranks or tuple(range(target.ranks))
    outside = [r for r in chosen if not 0 <= r < target.ranks]
    if outside:
        raise UsageError(f"--rank {outside[0]}: {target.said} is for ranks 0 to {target.ranks - 1}")
    file_format = _file_format(kind, along)
    # One rank's file is all of the folder that is written (`transforming.planned`).
    paths = {r: f"{'' if options.ranks else f'rank_{r}/'}checkpoint{file_format.suffixes[0]}" for r in chosen}
    entries: dict[int, list[Entry]] = {r: [] for r in chosen}
    pieces: dict[str, tuple[Pieces, dict[int, str]]] = {}
    for name, new in names.items():
        held = source.tensors[name]
        said = parse(new, target.parameters)
        where = _where(said, held, target)
        shapes = local_shapes(where)
        if 0 in held.shape:  # no element, on every rank that has the parameter
            shapes = dict.fromkeys(target.parameters[said.parameter].ranks if said.parameter else chosen, held.shape)
        dtype = element_of(held, source.said[name], options)
        own = {r: paths[r] for r in chosen if r in shapes}
        if not own:
            continue
        for r in own:
            entries[r].append(Entry(new, dtype, shapes[r]))
        pieces[name] = where.chosen(np.isin(where.holders, list(own))), own
    # A rank that holds nothing has no file: an empty one could not be told from one that was cut short.
    files = [FileToWrite(paths[r], file_format, tuple(entries[r]), source.metadata) for r in chosen if entries[r]]
    return Target(files, {}, pieces)


def _where(tensor: Tensor, held: Held, target: Layouts) -> Pieces:
    spread: Spread | None = None
    if tensor.parameter:
        spread = target.of_slot(tensor.parameter) if tensor.slot else target.parameters[tensor.parameter]
        if tensor.slot and tensor.slot not in SHAPED and held.shape != spread.shape:
            return whole(held.shape, spread.ranks)  # a count beside each shard
    if spread is None:
        return whole(held.shape, range(target.ranks))
    if spread.shape not in (None, held.shape) or len(spread.layout.dims) != len(held.shape):
        expected = f"the shape {list(spread.shape)}" if spread.shape is not None else (
            f"{len(spread.layout.dims)} dimensions"
        )  # fmt: skip
        raise InputError(
            f"{target.said}: parameter {tensor.parameter}: expected {expected}, found {list(held.shape)} of "
            f"{tensor.name}; give a checkpoint of this model"
        )
    counts = spread.layout.counts(spread.mesh)
    if spread.shape is None and any(n % c for n, c in zip(held.shape, counts, strict=True)):
        raise InputError(
            f"{target.said}: parameter {tensor.parameter} of shape {list(held.shape)} does not divide into "
            f"{list(counts)} parts, as MindSpore demands; give a checkpoint of this model"
        )
    try:
        return spread.pieces(held.shape)
    except ValueError as e:
        raise InputError(f"{target.said}: parameter {tensor.parameter}: {e}") from e


def _whole_files(
    source: Checkpoint, place: Path, kind: str, names: Mapping[str, str], options: Options, along: Carried
) -> Target:
    if options.ranks:
        raise UsageError("--rank: the target has no ranks without --to")
    if kind in UNIVERSAL:
        if options.dtype is not None:
            raise UsageError(
                f"--dtype and --format {kind}: its weights are in fp32, of which a training makes its own type; "
                "leave --dtype out"
            )
        from planner.checkpoint.universal import universal_files

        made = universal_files(source, names, kind)
        return Target(made.files, made.small, made.pieces, made.carried)
    entries = {
        n: Entry(new, element_of(source.tensors[n], source.said[n], options), source.tensors[n].shape)
        for n, new in names.items()
    }
    files: list[FileToWrite]
    small: dict[str, bytes] = {}
    if kind == "dcp":
        from planner.stored.formats.dcp import METADATA, DistCp, metadata, values_file

        path = "__0_0.distcp"
        files = [FileToWrite(path, DistCp(), tuple(entries.values()), {})]
        held, places = values_file(along.values)
        small |= {"__0_1.distcp": held} if along.values else {}
        small[METADATA] = metadata({path: tuple(entries.values())}, paths=along.paths, values=("__0_1.distcp", places))
    elif kind == "megatron":
        from planner.checkpoint import megatron
        from planner.checkpoint.steps import count_of

        counted = source.tensors.get(megatron.COUNT)
        count = None if counted is None else count_of(counted)
        entries.pop(megatron.COUNT, None)
        files, small = megatron.written(place, list(entries.values()), count)
    elif kind == "huggingface":
        files, small = _sharded(source, entries)
        small |= dict(options.beside)
    else:
        if place.suffix not in FORMATS[kind].suffixes:
            raise UsageError(
                f"{place}: as {kind}, give a name with the ending {FORMATS[kind].suffixes[0]}, or say --format "
                f"{listed(_WHOLE)}"
            )
        files = [FileToWrite(place.name, _file_format(kind, along), tuple(entries.values()), source.metadata)]
    paths = {e.name: f.path for f in files for e in f.entries}
    pieces = {n: (whole(source.tensors[n].shape), {0: paths[e.name]}) for n, e in entries.items()}
    return Target(files, {n: d for n, d in along.files.items() if n not in paths.values()} | small, pieces)


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
