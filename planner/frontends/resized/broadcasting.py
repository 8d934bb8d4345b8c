"""How dimensions that operands share, and those that are broadcast, carry a new size."""

from __future__ import annotations

from collections.abc import Mapping

from planner.frontends.resized.carry import Carrier, Factors
from planner.ir import Op

__all__ = ["broadcast_factors", "carry_first", "share"]


def broadcast_factors(c: Carrier, op: Op, operands: list[str], rank: int, tail: int, o: str) -> tuple[Factors, ...]:
    """Factors of the `rank` dimensions before the last `tail` ones, operands aligned at the right."""
    out: list[Factors] = []
    for axis in range(rank):
        places = []
        for t in operands:
            k = axis - (rank - (len(c.before(t)) - tail))
            if k >= 0:
                places.append((t, k))
        full = [(t, k) for t, k in places if c.before(t)[k] != 1]
        size, like = c.wanted.get((o, axis)), c.wanted_like.get((o, axis), ())
        best = max(places, key=lambda p: _informative(c, p[0], p[1]), default=None)
        if size is None:
            moved = [(t, k) for t, k in (full or places) if c.after(t)[k] != c.before(t)[k]]
            size = c.after(moved[0][0])[moved[0][1]] if moved else None
            like = c.parts(best[0])[best[1]] if moved and best else ()
        if size is not None:
            for t, k in full:
                c.demand(t, k, size, op, like)
            if not full and places and all(c.after(t)[k] == 1 for t, k in places) and size != 1:
                t, k = places[0]
                c.demand(t, k, size, op)
        out.append(c.parts(best[0])[best[1]] if best else ((1, 1),))
    return tuple(out)


def _informative(c: Carrier, t: str, axis: int) -> tuple[bool, bool, int]:
    return c.before(t)[axis] != 1, c.after(t)[axis] != c.before(t)[axis], len(c.parts(t)[axis])


def share(c: Carrier, op: Op, dimensions: Mapping[int, int]) -> None:
    """The dimension given of each operand present has one size; ones broadcast."""
    present = [(op.inputs[k], d) for k, d in dimensions.items() if k < len(op.inputs) and op.inputs[k]]
    known = [(t, d) for t, d in present if d < len(c.before(t))]
    moved = next(((c.before(t)[d], c.after(t)[d]) for t, d in known if c.after(t)[d] != c.before(t)[d]), None)
    for t, d in known if moved is not None else ():
        if moved is not None and c.before(t)[d] == moved[0]:
            c.demand(t, d, moved[1], op)


def carry_first(c: Carrier, op: Op) -> None:
    """The result has the factors of the first operand, where it had its shape."""
    if c.before(op.outputs[0]) == c.before(op.inputs[0]):
        c.factors[op.outputs[0]] = c.parts(op.inputs[0])
