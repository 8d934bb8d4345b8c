"""Which pieces of a source are read: of ranks that hold the same, those that make the fewest files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from planner.checkpoint.source import Checkpoint
from planner.errors import InputError
from planner.stored.moves import Held, Move, lacking, without_repeats
from planner.transfer.holders import fewest
from planner.transfer.overlaps import overlaps
from planner.transfer.pieces import Pieces

__all__ = ["check_whole", "pieces_read", "ranks_read"]


def pieces_read(source: Checkpoint, pieces: Mapping[str, tuple[Pieces, dict[int, str]]]) -> dict[str, Held]:
    """Of each tensor the pieces that are read: from as few ranks as have them."""
    if source.kind != "ranks":
        return {n: Held(without_repeats(h.pieces), h.arrays, h.dtype, h.order) for n, h in source.tensors.items()}
    ranks = dict(zip(source.files, source.ranks, strict=True))
    needs: set[frozenset[int]] = set()
    for name, (where, _) in pieces.items():
        held = source.tensors[name]
        own = np.array([ranks[a.file] if a.data is None else -1 for a in held.arrays], np.int64)
        first, which = held.pieces.distinct()
        met = overlaps(held.pieces.boxes.chosen(first), where.boxes)
        needed = np.isin(which, np.unique(met.left))
        for box in np.unique(which[needed]):
            having = frozenset(int(own[h]) for h in held.pieces.holders[which == box])
            if -1 not in having:  # which is of no file
                needs.add(having)
    preferred = fewest(needs)
    out = {}
    for name, held in source.tensors.items():
        numbers: dict[int, list[int]] = {}  # of a rank's arrays: several, where tensors were joined
        for i, a in enumerate(held.arrays):
            if a.data is None:
                numbers.setdefault(ranks[a.file], []).append(i)
        order = [i for r in preferred for i in numbers.get(r, ())]
        out[name] = Held(without_repeats(held.pieces, order), held.arrays, held.dtype, held.order)
    return out


def ranks_read(source: Checkpoint, moves: Sequence[Move]) -> tuple[int, ...]:
    if source.kind != "ranks":
        return ()
    ranks = dict(zip(source.files, source.ranks, strict=True))
    found = set()
    for m in moves:
        met = overlaps(m.source.pieces.boxes, m.target.pieces.boxes)
        arrays = [m.source.arrays[int(h)] for h in np.unique(m.source.pieces.holders[met.left])]
        found |= {ranks[a.file] for a in arrays if a.data is None}
    return tuple(sorted(found))


def check_whole(source: Checkpoint, name: str, held: Held, into: Held) -> None:
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
