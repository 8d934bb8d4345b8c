"""The contracted problem as flat arrays for the compiled kernels."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.search.native.library import pointer
from planner.search.reduced import Reduced

__all__ = ["Core", "flatten"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """`forest.c` says what each array holds; costs and bytes are integers in float64."""

    start: Integers
    unary: Floats
    at: Integers
    neighbour: Integers
    matrix: Integers
    twin: Integers
    pool: Floats
    term_at: Integers
    begin: Integers
    end: Integers
    held: Integers
    uses: Floats
    limits: Floats
    offset: int

    @property
    def nodes(self) -> int:
        return len(self.start) - 1

    @property
    def rows(self) -> int:
        return len(self.limits)

    @property
    def sizes(self) -> Integers:
        return np.diff(self.start)

    @property
    def widest(self) -> int:
        return int(self.sizes.max(initial=1))


class _Structure(ctypes.Structure):
    _fields_ = [
        ("nodes", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "start", "at", "neighbour", "matrix", "twin", "pool", "term_at", "begin", "end", "held", "uses",
            )
        ),
    ]  # fmt: skip


def structure(core: Core) -> _Structure:
    arrays = (getattr(core, name) for name, _ in _Structure._fields_[2:])
    return _Structure(core.nodes, core.rows, *(pointer(a) for a in arrays))


def flatten(reduced: Reduced) -> Core:
    """All edges must be finite and without usage."""
    arrays = reduced.arrays
    n = len(reduced.nodes)
    place: dict[tuple[int, bool], int] = {}
    pieces: list[Floats] = []
    filled = 0

    def matrix(number: int, flipped: bool) -> int:
        nonlocal filled
        key = (number, flipped)
        if key not in place:
            place[key] = filled
            pieces.append(np.ascontiguousarray(arrays[number].T if flipped else arrays[number]).ravel())
            filled += pieces[-1].size
        return place[key]

    sides: list[list[tuple[int, int, int]]] = [[] for _ in range(n)]  # (neighbour, matrix, edge)
    for e, (u, v, factor) in enumerate(reduced.edges):
        sides[v].append((u, matrix(factor.costs, False), e))  # [state of u][state of v]
        sides[u].append((v, matrix(factor.costs, True), e))
    flat = [s for side in sides for s in side]
    twin = np.zeros(len(flat), np.int64)
    seen: dict[int, int] = {}
    for q, (_, _, e) in enumerate(flat):
        if e in seen:
            twin[q], twin[seen[e]] = seen[e], q
        else:
            seen[e] = q
    use_place: dict[int, int] = {}
    use_pieces: list[Floats] = []
    use_filled = 0
    terms: list[tuple[int, int, int]] = []
    term_at = [0]
    for node in reduced.nodes:
        for (a, b), number in node.usage:
            if number not in use_place:
                use_place[number] = use_filled
                use_pieces.append(arrays[number].astype(np.float64))
                use_filled += use_pieces[-1].size
            terms.append((a, b, use_place[number]))
        term_at.append(len(terms))
    return Core(
        start=_starts([len(s) for s in reduced.states]),
        unary=np.concatenate([np.zeros(0), *(arrays[f.costs] for f in reduced.nodes)]),
        at=_starts([len(s) for s in sides]),
        neighbour=_column(flat, 0),
        matrix=_column(flat, 1),
        twin=twin,
        pool=np.concatenate([np.zeros(0), *pieces]),
        term_at=np.array(term_at, np.int64),
        begin=_column(terms, 0),
        end=_column(terms, 1),
        held=_column(terms, 2),
        uses=np.concatenate([np.zeros(0), *use_pieces]),
        limits=np.asarray(reduced.limits, np.float64),
        offset=reduced.offset,
    )


def _starts(counts: list[int]) -> Integers:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64))).astype(np.int64)


def _column(rows: list[tuple[int, int, int]], k: int) -> Integers:
    return np.array([r[k] for r in rows], np.int64)
