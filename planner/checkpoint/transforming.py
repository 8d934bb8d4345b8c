"""From a checkpoint to another: what of it goes where, and the copying of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from planner.checkpoint.carried import Carried, carried, with_names
from planner.checkpoint.layouts import Layouts
from planner.checkpoint.options import UNIVERSAL, Options, Transformed
from planner.checkpoint.reading import check_whole, pieces_read, ranks_read
from planner.checkpoint.renaming import renamed
from planner.checkpoint.sides import Chosen, check_source, chosen
from planner.checkpoint.source import Checkpoint
from planner.checkpoint.steps import with_steps
from planner.checkpoint.target import kind_of, target_of
from planner.errors import InputError, UsageError
from planner.stored.copying import block_bytes, copy
from planner.stored.moves import Held, Move
from planner.stored.writing import Writing, identity
from planner.transfer.pieces import Pieces

__all__ = ["Options", "Planned", "Transformed", "planned", "planned_by_rank", "transform", "transform_all"]


@dataclass(frozen=True, slots=True)
class Planned:
    """A transformation that can be run.  `stamps`: of the source's files, as they were read."""

    source: Checkpoint
    writing: Writing
    moves: tuple[Move, ...]
    format: str
    read_ranks: tuple[int, ...]
    chosen: Chosen
    along: Carried
    options: Options
    stamps: tuple[tuple[str, int, int], ...]

    @property
    def target_bytes(self) -> int:
        """Bytes of tensors that will be written, replicas included."""
        return sum(e.nbytes for f in self.writing.files for e in f.entries)

    def done(self, read: int = 0, written: int = 0, found: int = 0) -> Transformed:
        return Transformed(
            str(self.writing.place), self.format, len(self.moves), self.target_bytes, read, written, found,
            self.read_ranks, tuple(f.path for f in self.writing.files) + tuple(self.writing.small),
            self.chosen.skipped, self.along.left, self.chosen.everywhere, self.along.names,
        )  # fmt: skip

    @property
    def job(self) -> str:
        """What is copied from where to where, in a digest: nothing else goes on with what was written for it."""
        moves = [[m.name, _held(m.source), _held(m.target)] for m in self.moves]
        files = [(f.path, f.format.name, [(e.name, str(e.dtype), e.shape) for e in f.entries])
                 for f in self.writing.files]  # fmt: skip
        fixed = [d.hex() for a in self.writing.arranged for _, d in a.fixed]
        return identity([self.stamps, moves, files, {n: d.hex() for n, d in self.writing.small.items()}, fixed])


def _held(h: Held) -> list[Any]:
    """All that says which element of which file is which of the tensor."""
    p = h.pieces
    geometry = [x.tobytes().hex() for x in (p.boxes.starts, p.boxes.stops, p.holders, p.inside)]
    arrays = [(a.file.name, a.offset, str(a.dtype), a.shape, a.strides, a.extents, a.data) for a in h.arrays]
    return [h.shape, str(h.dtype), h.order, identity([geometry, arrays])]


def transform(plan: Planned, progress: Callable[[int, int], None] | None = None) -> Transformed:
    """Copies; `progress` is called with the bytes done and of all.

    Raises:
        InputError: a source file is shorter than its header says, or was changed meanwhile.
        UsageError: the target's disk is full, or it cannot be written to, or another process is writing it.
    """
    o, writing = plan.options, plan.writing
    done, total = 0, plan.target_bytes

    def tell(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total)

    try:
        with writing.locked():
            job = writing.begin({"what": plan.job, "block": block_bytes(o.memory, o.workers)}, resume=o.resume)
            copied = copy(plan.moves, writing.journal, block=int(job["block"]), workers=o.workers, progress=tell)
            if _stamps(plan.source) != plan.stamps:
                raise InputError(f"{plan.source.place}: was changed while it was copied; begin again, without --resume")
            writing.finish(plan.moves, copied, sync=o.sync)
    except OSError as e:
        if e.filename is not None and Path(e.filename) in plan.source.files:
            raise InputError(f"{e.filename}: cannot be read: {e.strerror}") from e
        raise UsageError(f"{writing.place}: cannot be written: {e.strerror or e}; {writing.left}") from e
    return plan.done(copied.read, copied.written, copied.found)


def _stamps(source: Checkpoint) -> tuple[tuple[str, int, int], ...]:
    found = [(f, f.stat()) for f in source.files]
    return tuple((str(f), s.st_size, s.st_mtime_ns) for f, s in found)


def planned_by_rank(source: Checkpoint, place: Path, target: Layouts | None, options: Options) -> list[Planned]:
    """As `planned`; of ranks that are asked for, each by itself, so that several runs fill one folder."""
    if len(options.ranks) < 2:
        return [planned(source, place, target, options)]
    return [planned(source, place, target, replace(options, ranks=(r,))) for r in options.ranks]


def transform_all(plans: Sequence[Planned], progress: Callable[[int, int], None] | None = None) -> list[Transformed]:
    """As `transform`, one behind the other; `progress` counts all of them."""
    total, begun, out = sum(p.target_bytes for p in plans), 0, []
    for plan in plans:

        def tell(done: int, _: int, begun: int = begun) -> None:
            if progress is not None:
                progress(begun + done, total)

        out.append(transform(plan, tell))
        begun += plan.target_bytes
    return out


def planned(source: Checkpoint, place: Path, target: Layouts | None, options: Options) -> Planned:
    """What is to be copied so that the source's tensors lie at a place as `target` says, or whole where it is None.

    The file of a single rank becomes the folder `rank_R` of the place, whatever else lies there.

    Raises:
        InputError: a tensor fits no layout, lacks a part, or has no place on the other side.
        UsageError: options that do not go together; something is at the place already.
    """
    stamps = _stamps(source)
    if len(options.ranks) > 1:
        raise ValueError("ranks are planned one by one")
    check_source(source, options)
    if source.kind == "megatron":
        from planner.checkpoint.megatron import check_reshardable

        check_reshardable(source.place, source.tensors, source.said, options.skip)
    if options.rules:
        made = renamed(source.tensors, source.said, options.rules, source.place)
        values = with_names(source.values, source.tensors, source.said, made.tensors, made.said)
        source = replace(
            source, tensors=made.tensors, said=made.said, skipped=(*source.skipped, *made.cut), values=values
        )
    kind, style = kind_of(source, place, target, options)
    target = None if target is None else target.in_format(kind)
    own = source.style
    # PyTorch and what has its names plainly count updates beside each parameter.
    counted = "torch" if kind in UNIVERSAL or (own == "megatron" and style == "plain") else style
    if style != own or counted != style:
        tensors, said = with_steps(source.tensors, source.said, counted)
        source = replace(source, tensors=tensors, said=said)
    names = chosen(source, target, options, style)
    along = carried(source, kind, names.names, options)
    found = target_of(source, place, kind, names.names, target, options, along)
    place = place / f"rank_{options.ranks[0]}" if options.ranks else place
    writing = Writing(
        place, found.files, found.small, replaces=options.force, keeps=(source.place, *source.files),
        apart=source.folders,
    )  # fmt: skip
    arrays = writing.arrays()
    reduced = pieces_read(source, found.pieces)
    moves = []
    for name, (where, held) in found.pieces.items():
        new, ranks = names.names[name], sorted(held)
        numbers = {r: i for i, r in enumerate(ranks)}
        holders = np.array([numbers[int(h)] for h in where.holders], np.int64)
        pieces = Pieces(where.shape, where.boxes, holders, where.inside)
        stored = tuple(arrays[held[r], new] for r in ranks)
        into = Held(pieces, stored, stored[0].dtype)
        check_whole(source, name, reduced[name], into)
        moves.append(Move(new, reduced[name], into))
    along = along.with_more(found.carried)
    read = ranks_read(source, moves)
    return Planned(source, writing, tuple(moves), kind, read, names, along, options, stamps)
