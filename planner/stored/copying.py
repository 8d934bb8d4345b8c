"""Copies tensors between files, block by block: within a bound of memory, by several threads, and anew where it was cut
off.

    PART/               the files as they come to be; renamed to their place when all is done
        .journal        a line for each unit that is written: its number, and a checksum of every strip of it

A unit is a block of one tensor with all its targets.  What was written when the process died is in the system's hands,
so that a line is true as soon as it is there; a second run reads such units back, compares checksums, and makes anew
what does not agree.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash

from planner.errors import InputError
from planner.stored.arrays import Array, Files, Range, bytes_of
from planner.stored.moves import Held, Move
from planner.transfer.blocks import blocks
from planner.transfer.overlaps import overlaps
from planner.transfer.pieces import Boxes, Pieces

__all__ = ["Copied", "Strip", "block_bytes", "copy", "read_block", "units"]

Progress = Callable[[int], None]
BLOCK = 8 << 20  # bytes of a block, where memory allows
_COPIES = (
    4  # of a block that a thread holds at most: as read, as another type, a strip of it, in the order of the array
)


@dataclass(frozen=True, slots=True)
class Strip:
    """What of an array one unit writes: `box`, in the array's own order, of array `array` of the move's target, and its
    checksum (XXH3, 64 bits)."""

    array: int
    box: tuple[Range, ...]
    digest: str

    def text(self) -> bytes:
        """As the checksums of a file have it: JSON, of [box, digest]."""
        return f'[[{",".join(f"[{low},{high}]" for low, high in self.box)}],"{self.digest}"]'.encode()


@dataclass(slots=True)
class Copied:
    """Bytes that were read and written, and by (move, array of its target) the strips of which the array consists: as
    text with commas between them, since there are millions where a checkpoint has terabytes."""

    read: int = 0
    written: int = 0
    found: int = 0
    strips: dict[tuple[int, int], bytearray] = field(default_factory=dict)

    def add(self, move: int, strips: Sequence[Strip]) -> None:
        for s in strips:
            text = self.strips.setdefault((move, s.array), bytearray())
            text += b"," + s.text() if text else s.text()


@dataclass(frozen=True, slots=True)
class _Unit:
    number: int
    move: int
    block: tuple[Range, ...]


def block_bytes(memory: int, workers: int) -> int:
    """The size of a block so that what all threads hold stays within so many bytes."""
    return max(1, min(BLOCK, memory // (workers * _COPIES)))


def units(moves: Sequence[Move], block: int) -> Iterator[_Unit]:
    """What is copied at once, in blocks of so many bytes: the same units for the same moves."""
    number = 0
    for i, m in enumerate(moves):
        item = max(m.source.dtype.itemsize, m.target.dtype.itemsize)
        for each in blocks(m.target.shape, block // item):
            yield _Unit(number, i, tuple(each))
            number += 1


def copy(
    moves: Sequence[Move], journal: Path, *, block: int = BLOCK, workers: int = 1, progress: Progress | None = None
) -> Copied:
    """Fills the arrays of all targets, whose files are there.

    `block`: bytes that are copied at once by a thread; `progress` is called with the bytes that are done since.

    Raises:
        InputError: a source file is shorter than its arrays.
        OSError: a target cannot be written to.
    """
    known = _journaled(journal)
    out, lock = Copied(), threading.Lock()
    local = threading.local()
    opened: list[tuple[Files, Files]] = []

    def files() -> tuple[Files, Files]:
        if not hasattr(local, "files"):
            local.files = Files(), Files(write=True)
            with lock:
                opened.append(local.files)
        return local.files

    with journal.open("a", encoding="ascii") as log:

        def work(unit: _Unit) -> tuple[_Unit, list[Strip], bool]:
            source, target = files()
            before = known.get(unit.number)
            if before is not None:
                there = _read_back(moves[unit.move], unit.block, target)
                if [s.digest for s in there] == before:
                    return unit, there, True
            strips = _copied(moves[unit.move], unit.block, source, target)
            line = f"{unit.number} {' '.join(s.digest for s in strips)}\n"
            with lock:
                log.write(line)
                log.flush()
            return unit, strips, False

        try:
            for unit, strips, found in _ordered(work, units(moves, block), workers):
                out.add(unit.move, strips)
                held = moves[unit.move].target
                done = sum(_volume(s.box) for s in strips) * held.dtype.itemsize
                out.found += done if found else 0
                if progress is not None:
                    progress(done)
        finally:
            for source, target in opened:
                out.read += source.read_bytes
                out.written += target.written_bytes
                source.close()
                target.close()
    return out


def _ordered(
    work: Callable[[_Unit], tuple[_Unit, list[Strip], bool]], todo: Iterable[_Unit], workers: int
) -> Iterator[tuple[_Unit, list[Strip], bool]]:
    """Results in the order of the units; a few are under way ahead of the one that is waited for."""
    if workers == 1:
        yield from map(work, todo)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[tuple[_Unit, list[Strip], bool]]] = deque()
        try:
            for unit in todo:
                waiting.append(pool.submit(work, unit))
                if len(waiting) >= 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()


def _journaled(journal: Path) -> dict[int, list[str]]:
    """Digests of units that an earlier run has written; a line that was cut off is none."""
    found: dict[int, list[str]] = {}
    if not journal.is_file():
        return found
    text = journal.read_text(encoding="ascii", errors="replace")
    for line in text[: text.rfind("\n") + 1].splitlines():
        number, *digests = line.split(" ")
        if number.isdecimal() and len(number) < 19:
            found[int(number)] = digests
    if not text.endswith("\n") and text:
        journal.write_text(text[: text.rfind("\n") + 1], encoding="ascii")
    return found


def _volume(box: Sequence[Range]) -> int:
    out = 1
    for low, high in box:
        out *= high - low
    return out


def _targets(held: Held, block: Sequence[Range]) -> Iterator[tuple[Boxes, list[tuple[int, tuple[Range, ...]]]]]:
    """(what of the block a target's box has, as one box; its places: array, box in the array's order)."""
    pieces = held.pieces
    met = overlaps(pieces.boxes, _one(block))
    grouped: dict[bytes, list[int]] = {}
    for k in range(len(met)):
        key = met.boxes.starts[k].tobytes() + met.boxes.stops[k].tobytes()
        grouped.setdefault(key, []).append(k)
    for same in grouped.values():
        box = met.boxes.chosen(np.asarray(same[:1]))
        places = []
        for k in same:
            piece = int(met.left[k])
            low = pieces.inside[piece] + box.starts[0] - pieces.boxes.starts[piece]
            size = box.stops[0] - box.starts[0]
            ranges = [(int(a), int(a + n)) for a, n in zip(low, size, strict=True)]
            places.append((int(pieces.holders[piece]), tuple(held.in_array(ranges))))
        yield box, places


def _one(block: Sequence[Range]) -> Boxes:
    d = len(block)
    return Boxes(
        np.array([a for a, _ in block], np.int64).reshape(1, d), np.array([b for _, b in block], np.int64).reshape(1, d)
    )


def _copied(move: Move, block: Sequence[Range], files: Files, into: Files) -> list[Strip]:
    held = move.source
    targets = list(_targets(move.target, block))
    if not targets:
        return []
    wanted = Boxes(np.concatenate([b.starts for b, _ in targets]), np.concatenate([b.stops for b, _ in targets]))
    values = _read(held, wanted, files)
    met = overlaps(held.pieces.boxes, wanted)
    out = []
    for t, (box, places) in enumerate(targets):
        parts = [(int(met.left[k]), met.boxes.starts[k], met.boxes.stops[k]) for k in np.flatnonzero(met.right == t)]
        value = _assembled(box, parts, values, move)
        if move.target.order is not None:
            value = value.transpose(move.target.order)
        value = np.ascontiguousarray(value)
        digest = _digest(value)
        for array, inside in places:
            into.write(move.target.arrays[array], inside, value)
            out.append(Strip(array, inside, digest))
    return out


def _read(held: Held, wanted: Boxes, files: Files) -> dict[int, tuple[np.ndarray, Array]]:
    """Piece → (where in the tensor what was read of it begins, that), so that all wanted boxes are in it."""
    met = overlaps(held.pieces.boxes, wanted)
    values = {}
    for piece in np.unique(met.left):
        mine = met.left == piece
        low, high = met.boxes.starts[mine].min(axis=0), met.boxes.stops[mine].max(axis=0)
        at = held.pieces.inside[piece] - held.pieces.boxes.starts[piece]
        ranges = [(int(a), int(b)) for a, b in zip(low + at, high + at, strict=True)]
        read = files.read(held.arrays[int(held.pieces.holders[piece])], held.in_array(ranges))
        values[int(piece)] = low, _turned(read, held.order)
    return values


def _turned(read: Array, order: Sequence[int] | None) -> Array:
    """An array with dimensions in the tensor's order."""
    return read if order is None else read.transpose([order.index(d) for d in range(len(order))])


def _assembled(
    box: Boxes, parts: Sequence[tuple[int, np.ndarray, np.ndarray]], values: dict[int, tuple[np.ndarray, Array]],
    move: Move,
) -> Array:  # fmt: skip
    start, stop = box.starts[0], box.stops[0]
    dtype = move.target.dtype

    def seen(piece: int, low: np.ndarray, high: np.ndarray) -> Array:
        begin, value = values[piece]
        return value[tuple(slice(int(a - c), int(b - c)) for a, b, c in zip(low, high, begin, strict=True))]

    if len(parts) == 1 and (parts[0][1] == start).all() and (parts[0][2] == stop).all():
        return _in_type(seen(*parts[0]), move)
    shape = tuple(int(n) for n in stop - start)
    out = np.zeros(shape, dtype) if move.filled else np.empty(shape, dtype)
    for piece, low, high in parts:
        into = tuple(slice(int(a - c), int(b - c)) for a, b, c in zip(low, high, start, strict=True))
        out[into] = _in_type(seen(piece, low, high), move)
    return out


def _in_type(value: Array, move: Move) -> Array:
    """In the target's type.  InputError where a number is too large for it: it would become infinite."""
    dtype = move.target.dtype
    if value.dtype == dtype:
        return value
    with np.errstate(over="ignore", invalid="ignore"):
        found = value.astype(dtype)
    if dtype.kind in "fV":
        lost = np.isfinite(value) & ~np.isfinite(found)
        if lost.any():
            raise InputError(
                f"tensor {move.name}: {value[lost][0]} is too large for {dtype}; give another --dtype, or leave the "
                "tensor out with --skip"
            )
    return found


def _read_back(move: Move, block: Sequence[Range], files: Files) -> list[Strip]:
    """The strips of a unit as they lie in the targets; a file that is too short has none."""
    out = []
    for _, places in _targets(move.target, block):
        for array, inside in places:
            try:
                value = files.read(move.target.arrays[array], inside)
            except InputError:
                return []
            out.append(Strip(array, inside, _digest(value)))
    return out


def _digest(value: Array) -> str:
    return xxhash.xxh3_64_hexdigest(bytes_of(np.ascontiguousarray(value)))


def read_block(held: Held, block: Sequence[Range], files: Files) -> Array:
    """The block's elements, of pieces that have nothing in common and leave nothing out."""
    whole = Held(
        Pieces(held.shape, _one(block), np.zeros(1, np.int64), np.zeros((1, len(block)), np.int64)), (), held.dtype
    )
    values = _read(held, _one(block), files)
    met = overlaps(held.pieces.boxes, whole.pieces.boxes)
    parts = [(int(p), met.boxes.starts[k], met.boxes.stops[k]) for k, p in enumerate(met.left)]
    return _assembled(whole.pieces.boxes, parts, values, Move("", held, whole))
