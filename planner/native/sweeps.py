"""Message-passing sweeps (`messages.c`), with the same in NumPy for machines without the compiled library."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.native.library import library, pointer

__all__ = ["EdgeLayout", "certify", "decode", "sweep"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class EdgeLayout:
    """Nodes and class-compressed edges as flat arrays; `messages.c` says what each holds."""

    start: Integers
    map_u: Integers
    map_v: Integers
    rows: Integers
    columns: Integers
    matrix: Integers
    maps: NDArray[np.int32]
    to_v_at: Integers
    to_u_at: Integers
    later_at: Integers
    later: Integers
    earlier_at: Integers
    earlier: Integers

    @property
    def nodes(self) -> int:
        return len(self.start) - 1

    @property
    def widest(self) -> int:
        """Most classes on a side of an edge."""
        return int(max(self.rows.max(initial=1), self.columns.max(initial=1)))

    @property
    def most_states(self) -> int:
        return int(np.diff(self.start).max(initial=1))


class _Structure(ctypes.Structure):
    _fields_ = [("nodes", ctypes.c_int64), *((f.name, ctypes.c_void_p) for f in fields(EdgeLayout))]


def _structure(layout: EdgeLayout) -> Any:
    return ctypes.byref(_Structure(layout.nodes, *(pointer(getattr(layout, f.name)) for f in fields(layout))))


def sweep(
    layout: EdgeLayout,
    unary: Floats,
    costs: Floats,
    flipped: Floats,
    to_v: Floats,
    to_u: Floats,
    scores: Floats,
    *,
    forward: bool,
) -> float:
    """One sweep; updates the messages ahead and the scores, and returns the bound that holds after it."""
    native = library()
    if native is None:
        return _sweep(layout, unary, costs, flipped, to_v, to_u, scores, forward)
    work = np.empty(layout.widest)
    native.messages_sweep.restype = ctypes.c_double
    arrays = map(pointer, (unary, costs, flipped, to_v, to_u, scores, work))
    return float(native.messages_sweep(_structure(layout), ctypes.c_int32(forward), *arrays))


def certify(
    layout: EdgeLayout, unary: Integers, flipped: Integers, to_v: Integers, to_u: Integers
) -> tuple[Integers, Integers]:
    """(what is left on each node, by how much each state lies above it); the messages become the certificate."""
    certified, above = np.empty(layout.nodes, np.int64), np.empty(len(unary), np.int64)
    native = library()
    if native is None:
        _certify(layout, unary, flipped, to_v, to_u, certified, above)
    else:
        work = np.empty(2 * layout.widest + layout.most_states, np.int64)
        arrays = map(pointer, (unary, flipped, to_v, to_u, certified, above, work))
        native.messages_certify(_structure(layout), *arrays, ctypes.c_int64(layout.widest))
    return certified, above


def decode(layout: EdgeLayout, unary: Floats, costs: Floats, to_u: Floats, ends: Integers) -> Integers:
    """A choice: every node's best state beside those of earlier nodes and the messages of later ones; `ends[e]` is
    the earlier node of edge e."""
    choice = np.zeros(layout.nodes, np.int64)
    native = library()
    if native is None:
        _decode(layout, unary, costs, to_u, ends, choice)
    else:
        work = np.empty(layout.most_states)
        native.messages_decode(_structure(layout), *map(pointer, (unary, costs, to_u, ends, choice, work)))
    return choice


def _edges(layout: EdgeLayout, v: int, later: bool) -> Integers:
    at, edges = (layout.later_at, layout.later) if later else (layout.earlier_at, layout.earlier)
    return edges[at[v] : at[v + 1]]


def _received(layout: EdgeLayout, v: int, unary: Any, to_v: Any, to_u: Any) -> Any:
    begin, end = layout.start[v], layout.start[v + 1]
    score = unary[begin:end].copy()
    for e in _edges(layout, v, later=False):
        score += to_v[layout.to_v_at[e] + layout.maps[layout.map_v[e] :][: end - begin]]
    for e in _edges(layout, v, later=True):
        score += to_u[layout.to_u_at[e] + layout.maps[layout.map_u[e] :][: end - begin]]
    return score


def _ahead(
    layout: EdgeLayout, v: int, matrices: Any, to_v: Any, to_u: Any, forward: bool
) -> Iterator[tuple[NDArray[np.int32], Any, Any, Any]]:
    """(class of each state, matrix [own class, other class], message back, message ahead) of the edges ahead."""
    count = layout.start[v + 1] - layout.start[v]
    for e in _edges(layout, v, later=forward):
        into_v = to_v[layout.to_v_at[e] :][: layout.columns[e]]
        into_u = to_u[layout.to_u_at[e] :][: layout.rows[e]]
        back, out, at = (into_u, into_v, layout.map_u[e]) if forward else (into_v, into_u, layout.map_v[e])
        matrix = matrices[layout.matrix[e] :][: back.size * out.size].reshape(back.size, out.size)
        yield layout.maps[at:][:count], matrix, back, out


def _sweep(
    layout: EdgeLayout,
    unary: Floats,
    costs: Floats,
    flipped: Floats,
    to_v: Floats,
    to_u: Floats,
    scores: Floats,
    forward: bool,
) -> float:
    bound = 0.0
    for v in range(layout.nodes) if forward else range(layout.nodes - 1, -1, -1):
        score = _received(layout, v, unary, to_v, to_u)
        scores[layout.start[v] : layout.start[v + 1]] = score
        share = 1.0 / max(len(_edges(layout, v, later=True)), len(_edges(layout, v, later=False)), 1)
        share_left = 1.0
        for classes, matrix, back, out in _ahead(layout, v, costs if forward else flipped, to_v, to_u, forward):
            least = np.full(back.size, np.inf)
            np.minimum.at(least, classes, score)
            message = np.min((share * least - back)[:, None] + matrix, axis=0)
            low = float(message.min())
            out[:] = message - low
            bound += low
            share_left -= share
        bound += share_left * float(score.min())
    return bound


def _decode(layout: EdgeLayout, unary: Floats, costs: Floats, to_u: Floats, ends: Integers, choice: Integers) -> None:
    for v in range(layout.nodes):
        begin, end = layout.start[v], layout.start[v + 1]
        score = unary[begin:end].copy()
        for e in _edges(layout, v, later=False):
            own = layout.maps[layout.map_v[e] :][: end - begin]
            line = layout.maps[layout.map_u[e] + choice[ends[e]]] * layout.columns[e]
            score += costs[layout.matrix[e] + line + own]
        for e in _edges(layout, v, later=True):
            score += to_u[layout.to_u_at[e] + layout.maps[layout.map_u[e] :][: end - begin]]
        choice[v] = np.argmin(score)


def _certify(
    layout: EdgeLayout,
    unary: Integers,
    flipped: Integers,
    to_v: Integers,
    to_u: Integers,
    certified: Integers,
    above: Integers,
) -> None:
    for v in range(layout.nodes - 1, -1, -1):
        rise = above[layout.start[v] : layout.start[v + 1]]
        rise[:] = 0
        score = _received(layout, v, unary, to_v, to_u)
        most = max(len(_edges(layout, v, later=True)), len(_edges(layout, v, later=False)), 1)
        for classes, matrix, back, out in _ahead(layout, v, flipped, to_v, to_u, False):
            gift = np.full(back.size, np.iinfo(np.int64).max)
            np.minimum.at(gift, classes, score)
            gift //= most
            out[:] = np.min((gift - back)[:, None] + matrix, axis=0)
            rise += (gift - back + np.min(matrix - out[None, :], axis=1))[classes]
            back -= gift
        score = _received(layout, v, unary, to_v, to_u)
        certified[v] = score.min()
        rise += score - certified[v]
