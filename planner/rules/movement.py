"""Static rearrangements along one dimension: slices, concatenations, splits, paddings, permuted channels.

Where a dimension changes its size and operand and result are split together, both are written with a common
major factor: (y u!) and (y v!).  Any even split of y cuts both evenly, and what a shard lacks is fetched from
the ranks that hold it.  The index map says what travels, so that the price of a halo is that of a halo.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.ir.tensor import ITEM_BYTES
from planner.rules.operator import Operator, sharded
from planner.rules.rule import InnerCollective, Rule

__all__ = ["Indices", "Movement", "Moves", "exchanges", "moving"]

Indices = NDArray[np.int64]
_TRIED = (2, 3, 4, 5, 7, 8)  # numbers of shards among which a split must once move less than a gather
_FEW = 16  # a result of at most one 16th of its operand is a pending sum rather than an exchange


@dataclass(frozen=True, slots=True, eq=False)
class Movement:
    """`sources[j][p]` is the place, in the operands laid end to end, of element p of result j; −1 where no operand
    gives one (a fill).  `operands` are their sizes."""

    operands: tuple[int, ...]
    sources: tuple[Indices, ...]

    @property
    def common(self) -> int:
        """The largest number of equal shards into which all operands and results fall."""
        return math.gcd(*self.operands, *map(len, self.sources))

    @property
    def still(self) -> bool:
        """Nothing moves: one operand, one result, the same elements in order."""
        (size, *more), (source, *rest) = self.operands, self.sources
        return not more and not rest and len(source) == size and np.array_equal(source, np.arange(size))

    def wanted(self, shards: int) -> tuple[Indices, ...]:
        """For every shard of the results (one after the other), the places of its elements where each rank has laid
        its shards of the operands end to end."""
        return _wanted(self, shards)

    def given(self, shards: int) -> int:
        """The most elements that a rank gives to others."""
        return int(_traffic(self, shards).sum(axis=0).max())

    def taken(self, shards: int) -> int:
        """The most elements that a rank gets from others."""
        return int(_traffic(self, shards).sum(axis=1).max())

    def given_to_few(self, shards: int) -> int:
        """`given` where every rank deals with at most two others, else none."""
        return self.given(shards) if _few_partners(self, shards) else 0

    def taken_from_few(self, shards: int) -> int:
        return self.taken(shards) if _few_partners(self, shards) else 0

    def given_to_many(self, shards: int) -> int:
        """What an all-to-all distributes, the part that stays included, where ranks deal with more than two others."""
        return 0 if _few_partners(self, shards) else -(-self.given(shards) * shards // (shards - 1))

    def taken_from_many(self, shards: int) -> int:
        return 0 if _few_partners(self, shards) else -(-self.taken(shards) * shards // (shards - 1))

    def of_equal_parts(self, shards: int) -> Movement:
        """What one rank does where it has a share of each result's elements: it takes them apart as the whole is."""
        size = sum(self.operands) // shards
        return Movement((size,), tuple(np.split(np.arange(size, dtype=np.int64), len(self.sources))))

    @property
    def exchangeable(self) -> bool:
        """Some even split moves less than gathering the operands would."""
        total = sum(self.operands) if any(map(len, self.sources)) else 0
        tried = [n for n in _TRIED if self.common % n == 0] or [self.common]
        return self.common > 1 and total > 0 and any(self.taken(n) < total - total // n for n in tried)

    @property
    def pending(self) -> bool:
        """Few elements are read of one operand: each rank gives those it holds, the result is a pending sum."""
        (size, *more), (source, *rest) = self.operands, self.sources
        length = len(source)
        return (
            not more
            and not rest
            and length > 0
            and (length * _FEW <= size or (self.common == 1 and 2 * length <= size))
        )


Moves = Mapping[int, Movement | None]  # dimension → its movement; None where it is not known before run time


@lru_cache(maxsize=64)
def _wanted(movement: Movement, shards: int) -> tuple[Indices, ...]:
    starts = np.cumsum((0, *movement.operands))
    held = sum(movement.operands) // shards
    parts: list[list[Indices]] = [[] for _ in range(shards)]
    for source in movement.sources:
        i = np.searchsorted(starts, source, side="right") - 1
        within = source - starts[i]
        each = np.maximum(np.array((*movement.operands, 1))[i] // shards, 1)
        place = within // each * held + starts[i] // shards + within % each
        for part, piece in zip(parts, np.split(np.where(source < 0, -1, place), shards), strict=True):
            part.append(piece)
    return tuple(np.concatenate(p).astype(np.int64) for p in parts)


@lru_cache(maxsize=64)
def _traffic(movement: Movement, shards: int) -> Indices:
    """Elements that the rank of a row gets from that of a column, itself excluded."""
    held = sum(movement.operands) // shards
    out = np.zeros((shards, shards), dtype=np.int64)
    for i, places in enumerate(movement.wanted(shards)):
        out[i] = np.bincount(places[places >= 0] // max(held, 1), minlength=shards)
        out[i, i] = 0
    return out


def _few_partners(movement: Movement, shards: int) -> bool:
    met = _traffic(movement, shards) > 0
    return int(max(met.sum(axis=0).max(), met.sum(axis=1).max())) <= 2


def moving(
    o: Operator,
    moves: Moves,
    data: Sequence[int] = (0,),
    *,
    linear: bool = True,
    added: Sequence[int] = (),
    differentiable: bool = True,
    shape_operand: int | None = None,
    aware: Sequence[int] = (),
    results: int | None = None,
) -> Rule:
    """The rule of an operator that moves the elements of its operands `data` along some dimensions, into its results
    (the first `results` of them).

    `linear`: in these operands, together with the scalars `added` that fill what no operand gives.
    `aware`: dimensions whose size an operand states, so that the local operator would be told that of the whole.
    """
    rank = o.rank(data[0])
    moved = o.outputs[:results]
    sides = [[[f"d{d}"] for d in range(rank)] for _ in range(len(data) + len(moved))]  # tensor → dim → factors
    sizes: dict[str, int] = {}
    shapes = [*(o.shape(i) for i in data), *moved]
    named = [f"d{d}" for d in aware if d not in moves]
    exchanged: dict[int, Movement] = {}
    for d, known in moves.items():
        movement = known if known is not None and _fits(known, d, shapes) else None
        if movement is not None and movement.exchangeable and not movement.pending:
            exchanged[d], sizes[f"s{d}"] = movement, movement.common
            for t, shape in enumerate(shapes):
                rest = 1 if shape is None else shape[d] // movement.common
                sides[t][d] = [f"s{d}"] if rest else []
                if rest > 1:
                    sizes[f"u{d}_{t}"] = rest
                    sides[t][d].append(f"u{d}_{t}!")
        else:
            several = movement is not None and movement.pending and linear and o.makes_float
            for t in range(len(shapes)):
                sides[t][d] = [f"s{d}"] if several and t < len(data) else []
            named += [f"s{d}"] if several else []
    words = [" ".join("*" if not f else f[0] if len(f) == 1 else f"({' '.join(f)})" for f in dims) for dims in sides]
    operands = [
        words[list(data).index(i)] if i in data else "*..." if i in added else "-" for i in range(len(o.inputs))
    ]
    gradients = differentiable and o.is_float(data[0]) and o.makes_float
    item_bytes = ITEM_BYTES.get(o.input_types[data[0]], 4)
    inner: list[InnerCollective] = []
    for d, movement in exchanged.items():
        factors, elements = _payload(d, sides, shapes, exchanged, len(data))
        inner += exchanges(f"s{d}", movement, factors, elements * item_bytes, gradients=gradients)
    return sharded(
        o,
        f"{', '.join(operands)} -> {', '.join([*words[len(data) :], *'-' * (len(o.outputs) - len(moved))])}",
        kind="layout",
        sizes=sizes,
        linear=[[*data, *added]] if linear else [],
        differentiable=data if differentiable else (),
        flops=0.0,
        shape_operand=shape_operand,
        inner=inner,
        aware=named,
    )


def _fits(movement: Movement, dim: int, shapes: Sequence[tuple[int, ...] | None]) -> bool:
    """The graph states the sizes that the movement gives."""
    return [*movement.operands, *map(len, movement.sources)] == [s[dim] for s in shapes if s is not None]


def exchanges(
    factor: str, movement: Movement, dims: tuple[str, ...], item_bytes: int, *, gradients: bool
) -> list[InnerCollective]:
    """What travels, forward and (as the transpose) backward: among few ranks a permute, else an all-to-all."""
    out = [
        InnerCollective(factor, "permute", dims, item_bytes, extent=movement.given_to_few),
        InnerCollective(factor, "all_to_all", dims, item_bytes, extent=movement.given_to_many),
    ]
    if gradients:
        out += [
            InnerCollective(factor, "permute", dims, item_bytes, backward=True, extent=movement.taken_from_few),
            InnerCollective(factor, "all_to_all", dims, item_bytes, backward=True, extent=movement.taken_from_many),
        ]
    return out


def _payload(
    dim: int,
    sides: Sequence[Sequence[Sequence[str]]],
    shapes: Sequence[tuple[int, ...] | None],
    exchanged: Mapping[int, Movement],
    count: int,
) -> tuple[tuple[str, ...], int]:
    """Factors of the dimensions beside `dim` while it is exchanged, and elements of what has no factor.

    Dimensions are moved one after the other: earlier ones have the result's size by then.
    """
    factors: list[str] = []
    elements = 1
    first_result = next((t for t in range(count, len(shapes)) if shapes[t] is not None), 0)
    for d in range(len(sides[0])):
        side = first_result if d < dim else 0
        shape = shapes[side]
        if d == dim or shape is None:
            continue
        factors += sides[side][d][:1]
        if not sides[side][d]:
            elements *= shape[d]
        elif d in exchanged:
            elements *= shape[d] // exchanged[d].common
    return tuple(factors), elements
