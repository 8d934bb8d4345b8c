"""Whether it is the pins that do not fit in memory, and which."""

from __future__ import annotations

from collections.abc import Sequence

from planner.planning.constraints.apply import masked
from planner.planning.constraints.conflicts import smallest_conflict
from planner.planning.constraints.masks import Demand, demands_of
from planner.planning.constraints.resolve import Pins
from planner.planning.constraints.select import counted
from planner.pricing import PricedProblem
from planner.search.prices.memory import minimum_memory

__all__ = ["memory_note"]

MOST_PINS = 40  # that are tried one against the other: each takes a minimisation of memory
ROUNDS = 15


def memory_note(unpinned: Sequence[PricedProblem], pins: Pins, limit: int) -> str:
    """A sentence for the message that nothing fits: whether it would without the pins, and which of them forbid it."""
    least = [(m.achieved, i) for i, p in enumerate(unpinned) if (m := minimum_memory(p.problem)).achieved is not None]
    source = pins.constraints.source
    if not least or min(least)[0] > limit:
        return f" (with the pins of {source}, but without them no plan that fits was found either)"
    priced = unpinned[min(least)[1]]
    groups: dict[str, list[Demand]] = {}
    for d in demands_of(pins, priced):
        groups.setdefault(d.restriction.where, []).append(d)
    if len(groups) > MOST_PINS:
        return f" (it is the pins of {source} that take the memory: without them a plan fits)"

    def too_much(some: Sequence[list[Demand]]) -> bool:
        problem = masked(priced, [d for group in some for d in group]).problem
        achieved = minimum_memory(problem, rounds=ROUNDS).achieved
        return achieved is None or achieved > limit

    chosen = smallest_conflict(list(groups.values()), too_much)
    if not chosen:
        return f" (with the pins of {source})"
    pinned = counted(_pins_text(group) for group in chosen)
    return f" (it is pinned so at {pinned}: without {'it' if len(chosen) == 1 else 'these'} a plan fits)"


def _pins_text(group: Sequence[Demand]) -> str:
    first = group[0].restriction
    others = len({d.restriction.name for d in group}) - 1
    return f"{first}{f' and {others} more' if others else ''}"
