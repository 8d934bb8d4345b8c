"""Whether a checkpoint is what it was made of: by its checksums, or element by element."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from planner.checkpoint.layouts import Layouts
from planner.checkpoint.source import Checkpoint, open_checkpoint
from planner.stored.arrays import Files
from planner.stored.copying import BLOCK, read_block
from planner.stored.moves import Held, lacking, without_repeats
from planner.stored.writing import faults
from planner.transfer.blocks import blocks
from planner.transfer.pieces import whole

__all__ = ["compared", "unsound"]


def unsound(place: Path) -> tuple[list[str], int]:
    """(a line for each part that is not as it was written, arrays compared).  InputError without checksums."""
    with Files() as files:
        return faults(place, files)


def compared(before: Path, after: Path, source: Layouts | None, target: Layouts | None) -> tuple[list[str], int]:
    """(a line for each tensor that differs, tensors compared), in the type of `after`; every copy on every rank is
    looked at.

    InputError where either cannot be read.
    """
    a, b = open_checkpoint(before, source), open_checkpoint(after, target)
    names = _paired(a, b)
    out = [f"{n}: is not in {after}" for n in a.tensors if n not in names]
    out += [f"{n}: is not in {before}" for n in b.tensors if n not in names.values()]
    with Files() as files:
        for name, other in names.items():
            out += _absent(a, name) or _absent(b, other) or _differences(name, a.tensors[name], b.tensors[other], files)
    return out, len(names)


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
    if a.shape != b.shape:
        return [f"{name}: expected the shape {list(a.shape)}, found {list(b.shape)}"]
    source = Held(without_repeats(a.pieces), a.arrays, a.dtype, a.order)
    first, which = b.pieces.distinct()
    copies = int(np.bincount(which).max()) if len(which) else 0
    for turn in range(copies):  # every copy of each box once
        chosen = [np.flatnonzero(which == k)[turn % int((which == k).sum())] for k in range(len(first))]
        pieces = b.pieces.chosen(np.asarray(chosen, np.int64))
        target = Held(without_repeats(pieces), b.arrays, b.dtype, b.order)
        for block in blocks(a.shape, BLOCK // max(a.dtype.itemsize, b.dtype.itemsize)):
            left = read_block(source, block, files).astype(b.dtype, copy=False)
            right = read_block(target, block, files)
            if left.tobytes() != right.tobytes():
                text = ", ".join(f"{low}:{high}" for low, high in block)
                return [f"{name}: elements within [{text}] differ"]
    return []
