"""Halos: the ranges of split space that a shard's windows need (see `planner.rules.window`).

Dimensions are fetched one after the other, so that corners come along; gradients go back in the opposite order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from planner.ir import Op
from planner.kernels.session import NoKernelError
from planner.kernels.shards import Array
from planner.kernels.spmd import ShardContext
from planner.kernels.transport import CollectiveKernel, Indices, collect, give_back, part, taken
from planner.rules.window import Range, Reading, Side, Window, needs, size, transposed_windows, windows

__all__ = ["FIRST", "Reach", "explicit", "fetch", "fit", "local_space", "release"]

FIRST = 2  # the first spatial dimension

R = TypeVar("R", bound=Reading)


@dataclass(frozen=True, slots=True)
class Reach(Generic[R]):
    """Dimension `dim` on this rank, split by `factor`."""

    window: R
    dim: int
    factor: str
    shards: int
    index: int

    @classmethod
    def at(cls, place: ShardContext, window: R, dim: int, factor: str) -> Reach[R]:
        return Reach(window, dim, factor, place.shards.get(factor, 1), place.index.get(factor, 0))

    def own(self, side: Side) -> Range:
        mine = size(self.window, side) // self.shards
        return self.index * mine, (self.index + 1) * mine

    def needed(self, side: Side) -> Range:
        """What this shard needs; of an unsplit dimension all there is."""
        return needs(self.window, self.shards, side)[self.index] if self.shards > 1 else self.own(side)

    def wanted(self, side: Side) -> list[Indices]:
        """The same for all shards; empty where each has what it needs."""
        each = size(self.window, side) // self.shards
        ranges = needs(self.window, self.shards, side) if self.shards > 1 else ()
        if all(first >= j * each and stop <= (j + 1) * each for j, (first, stop) in enumerate(ranges)):
            return []
        return [np.arange(*r) for r in ranges]


def local_space(
    op: Op, kernel: Sequence[int], place: ShardContext, *, transposed: bool = False, first: int = FIRST
) -> tuple[Reach[Window], ...]:
    """The spatial dimensions, from dimension `first` on, of an operator of which `op` is a rank's part.

    NoKernelError where it is whole, without factors.
    """
    assert place.rule is not None
    factors, rank = place.rule.factors, len(kernel)
    if rank and "y0" not in factors:
        raise NoKernelError(f"operator {op.name} is whole")
    elements = [factors[f"y{d}"] * factors[f"u{d}"] for d in range(rank)]
    positions = [factors[f"y{d}"] * factors[f"v{d}"] for d in range(rank)]
    found = (
        transposed_windows(op.attributes, kernel, positions, elements)
        if transposed
        else windows(op.attributes, kernel, elements, positions)
    )
    return tuple(Reach.at(place, w, first + d, f"y{d}") for d, w in enumerate(found))


def fetch(x: Any, space: Sequence[Reach[R]], side: Side, place: ShardContext) -> CollectiveKernel:
    """The shard `x` grown to all that this rank needs."""
    for reach in space:
        wanted = reach.wanted(side)
        if wanted:
            x = yield from collect(x, reach.dim, wanted, reach.factor, place)
        else:
            (first, stop), (start, _) = reach.needed(side), reach.own(side)
            x = part(x, reach.dim, first - start, stop - start)
    return x


def release(g: Array, space: Sequence[Reach[R]], side: Side, place: ShardContext) -> CollectiveKernel:
    """The transpose of `fetch`."""
    for reach in reversed(space):
        wanted, (start, stop) = reach.wanted(side), reach.own(side)
        if wanted:
            g = yield from give_back(g, reach.dim, wanted, stop - start, reach.factor, place)
        else:
            g = fit(g, reach.dim, reach.needed(side), (start, stop))
    return g


def fit(x: Any, dim: int, have: Range, want: Range) -> Any:
    """The range `want` of a tensor that is zero outside the range `have`, which `x` holds."""
    places = np.arange(*want)
    held = (places >= have[0]) & (places < have[1])
    return taken(x, dim, np.where(held, places - have[0], -1))


def explicit(op: Op, space: Sequence[Reach[Window]]) -> Op:
    """`op` on fetched elements: padded where they lie at the border of the whole."""
    begin, end = [], []
    for reach in space:
        w = reach.window
        if reach.shards == 1:
            begin.append(w.begin)
            end.append(w.end)
            continue
        first, stop = w.read_by(reach.own("positions"))
        begin.append(max(-first, 0))
        end.append(max(min(stop, w.elements + w.end) - w.elements, 0))
    attributes = {k: v for k, v in op.attributes.items() if k != "auto_pad"}
    return replace(op, attributes={**attributes, "pads": (*begin, *end)})
