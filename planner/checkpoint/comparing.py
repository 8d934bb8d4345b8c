"""Whether a checkpoint is what it was made of: by its checksums, or element by element; and whether ranks that hold the
same hold it alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from planner.checkpoint.layouts import Layouts
from planner.checkpoint.source import Checkpoint, open_checkpoint
from planner.checkpoint.steps import COUNT, count_of, with_steps
from planner.stored.arrays import Files, Range
from planner.stored.copying import BLOCK, read_block
from planner.stored.moves import Held, lacking, without_repeats
from planner.stored.writing import checksums_of, faults
from planner.transfer.blocks import blocks
from planner.transfer.pieces import whole

__all__ = ["compared", "unlike", "unsound"]


def unsound(place: Path) -> tuple[list[str], int]:
    """(a line for each part that is not as it was written, arrays compared).  InputError without checksums.

    Ranks that were written one by one have checksums of their own.
    """
    places = [place]
    if place.is_dir() and not checksums_of(place).is_file():
        places = [f for f in sorted(place.iterdir()) if f.is_dir() and checksums_of(f).is_file()] or [place]
    with Files() as files:
        found = [faults(p, files) for p in places]
    return [line for lines, _ in found for line in lines], sum(count for _, count in found)


def compared(before: Path, after: Path, source: Layouts | None, target: Layouts | None) -> tuple[list[str], int]:
    """(a line for each tensor that differs, tensors compared), in the type of `after`; every copy on every rank is
    looked at.

    InputError where either cannot be read.
    """
    a, b = open_checkpoint(before, source), open_checkpoint(after, target)
    if (COUNT in a.tensors) != (COUNT in b.tensors):
        a, b = _with_one_count(a), _with_one_count(b)
    names = _paired(a, b)
    out = [f"{n}: is not in {after}" for n in a.tensors if n not in names]
    out += [f"{n}: is not in {before}" for n in b.tensors if n not in names.values()]
    with Files() as files:
        for name, other in names.items():
            out += _absent(a, name) or _absent(b, other) or _differences(name, a.tensors[name], b.tensors[other], files)
    return out, len(names)


def _with_one_count(checkpoint: Checkpoint) -> Checkpoint:
    """With one count of an optimizer's steps, where those beside parameters are equal."""
    tensors, said = with_steps(checkpoint.tensors, checkpoint.said, "mindspore")
    return replace(checkpoint, tensors=tensors, said=said)


def unlike(place: Path, layouts: Layouts) -> tuple[list[str], int]:
    """(a line for each tensor of which ranks hold unequal copies, tensors of which there are copies).

    A transformation reads one copy of each part; this says whether it would have mattered which.
    """
    found = open_checkpoint(place, layouts)
    out, compared = [], 0
    with Files() as files:
        for name, held in found.tensors.items():
            lines, copies = _unlike(found, name, held, files)
            out += lines
            compared += copies > 1
    return out, compared


def _unlike(checkpoint: Checkpoint, name: str, held: Held, files: Files) -> tuple[list[str], int]:
    turns = list(_copies(held))
    if len(turns) < 2:
        return [], len(turns)
    ranks = dict(zip(checkpoint.files, checkpoint.ranks, strict=True)) if checkpoint.ranks else {}
    for block in blocks(held.shape, BLOCK // held.dtype.itemsize):
        first = read_block(turns[0], block, files).tobytes()
        for turn in turns[1:]:
            if read_block(turn, block, files).tobytes() != first:
                there = sorted({ranks[turn.arrays[int(h)].file] for h in turn.pieces.holders if ranks})
                return [f"{name}: elements within {_text(block)} differ between ranks that hold the same, "
                        f"{', '.join(map(str, there[:8]))} among them"], len(turns)  # fmt: skip
    return [], len(turns)


def _copies(held: Held) -> Iterator[Held]:
    """The tensor once from the first holder of each part, once from the second, and so on, until all were used."""
    first, which = held.pieces.distinct()
    copies = int(np.bincount(which).max()) if len(which) else 0
    for turn in range(copies):
        chosen = [np.flatnonzero(which == k)[turn % int((which == k).sum())] for k in range(len(first))]
        pieces = held.pieces.chosen(np.asarray(chosen, np.int64))
        yield Held(without_repeats(pieces), held.arrays, held.dtype, held.order)


def _text(block: Sequence[Range]) -> str:
    return "[" + ", ".join(f"{low}:{high}" for low, high in block) + "]"


def _paired(a: Checkpoint, b: Checkpoint) -> dict[str, str]:
    """Names of the one → of the other: equal ones, and those that mean the same."""
    meant = {(s.parameter, s.slot): n for n, s in b.said.items() if s.parameter}
    out = {}
    for name, said in a.said.items():
        if name in b.tensors:
            out[name] = name
        elif (said.parameter, said.slot) in meant:
            out[name] = meant[said.parameter, said.slot]
    return out


def _absent(c: Checkpoint, name: str) -> list[str]:
    """A line where a rank lacks what its layout gives it, or a part is nowhere."""
    held, said, lays = c.tensors[name], c.said[name], c.layouts
    if len(lacking(without_repeats(held.pieces), whole(held.shape))):
        return [f"{name}: a part of it is nowhere in {c.place}"]
    if c.kind != "ranks" or lays is None or said.parameter not in lays.parameters:
        return []
    spread = lays.of_slot(said.parameter) if said.slot else lays.parameters[said.parameter]
    if len(held.shape) != len(spread.layout.dims):
        return []
    ranks = dict(zip(c.files, c.ranks, strict=True))
    there = {ranks[array.file] for array in held.arrays}
    gone = sorted({int(r) for r in spread.pieces(held.shape).holders} - there)
    return [f"{name}: rank {gone[0]} of {c.place} lacks it"] if gone else []


def _differences(name: str, a: Held, b: Held, files: Files) -> list[str]:
    if name == COUNT and a.shape in ((), (1,)) and b.shape in ((), (1,)):  # the same number, whatever it is held as
        counts = count_of(a), count_of(b)
        return [] if counts[0] == counts[1] else [f"{name}: expected {counts[0]}, found {counts[1]}"]
    if a.shape != b.shape:
        return [f"{name}: expected the shape {list(a.shape)}, found {list(b.shape)}"]
    source = Held(without_repeats(a.pieces), a.arrays, a.dtype, a.order)
    for target in _copies(b):
        for block in blocks(a.shape, BLOCK // max(a.dtype.itemsize, b.dtype.itemsize)):
            left = read_block(source, block, files).astype(b.dtype, copy=False)
            right = read_block(target, block, files)
            if left.tobytes() != right.tobytes():
                return [f"{name}: elements within {_text(block)} differ"]
    return []
