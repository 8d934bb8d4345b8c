"""Values reduced over the factors that an operator reduces over inside."""

from __future__ import annotations

from collections.abc import Iterable

from planner.emit.onnx.ranks.local import Local, all_reduce
from planner.emit.onnx.ranks.writer import Value, Writer
from planner.rules import Combine

__all__ = ["inside", "over", "reduced_factors", "total"]


def reduced_factors(here: Local) -> tuple[str, ...]:
    """The split factors that the rule's collectives are over, in its order."""
    communicates = {c.factor for c in here.rule.inner if not c.backward}
    named = (*here.rule.factors, *here.rule.modes)
    return tuple(f for f in named if f in communicates and here.place.splits(f))


def inside(here: Local) -> tuple[str, ...]:
    """The split factors (or modes) that are reduced inside the operator."""
    return tuple(f for f in here.place.shards if here.rule.combine.get(f) is Combine.INNER)


def over(w: Writer, x: Value, factors: Iterable[str], here: Local, op: str = "sum") -> Value:
    """`x` reduced over the ranks that split each of the factors."""
    for f in factors:
        x = all_reduce(w, x, here.groups[f], op)
    return x


def total(w: Writer, x: Value, here: Local, op: str = "sum") -> Value:
    return over(w, x, reduced_factors(here), here, op)
