"""What is communicated inside an operator, against what its strategy says of it.

Plans are priced by `Strategy.inner`; kernels communicate what they need.  The two are held together to the byte, floats
in double precision.  An all-to-all states what a rank distributes with the part that stays, an exchange moves the rest;
a ring of permutes is an exchange.  Where values decide on what goes where, one rank has more to send than another, and
what all distribute together is what the strategy states for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.kernels import Performed
from planner.rules.strategy import BoundCollective, Strategy

__all__ = ["misstated"]

_Key = tuple[tuple[str, ...], str]
_STAYS = 1.5  # of an all-to-all among as few as three ranks a third stays where it is


def misstated(strategy: Strategy, performed: Sequence[Performed], *, backward: bool) -> str:
    """What differs; empty where nothing does."""
    stated: dict[_Key, int] = {}
    distributed = set()
    routed = {tuple(strategy.split[p.factor]) for p in performed if p.kind == "routed"}
    for c in strategy.inner:
        if c.backward == backward:
            kind = "exchange" if c.kind in ("permute", "all_to_all") else c.kind
            key = c.axes, "routed" if c.kind == "all_to_all" and c.axes in routed else kind
            stated[key] = stated.get(key, 0) + _bytes(c) * c.count
            if c.kind == "all_to_all" and key[1] != "routed":
                distributed.add(key)
    moved: dict[_Key, int] = {}
    for p in performed:
        key = tuple(strategy.split[p.factor]), p.kind
        moved[key] = moved.get(key, 0) + p.bytes
    for key in sorted(stated.keys() | {k for k, n in moved.items() if n}):
        said, done = stated.get(key, 0), moved.get(key, 0)
        if not done <= said <= (_STAYS if key in distributed else 1.0) * done:
            axes, kind = key[0], {"routed": "exchange by value"}.get(key[1], key[1])
            return f"its {kind} over {'.'.join(axes)} is stated with {said} bytes, and moves {done} (in float64)"
    return ""


def _bytes(c: BoundCollective) -> int:
    """Where every float takes eight bytes."""
    if not c.width:
        return c.bytes
    return c.elements * (c.fixed_bytes + (c.item_bytes - c.fixed_bytes) * 8 // c.width)
