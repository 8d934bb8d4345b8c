"""Independent evaluation of a choice.  No solver reports its own objective: this does, in exact integers."""

from __future__ import annotations

from collections.abc import Sequence

from planner.search.problem import FORBIDDEN, Problem

__all__ = ["evaluate", "peak_memory"]


def evaluate(problem: Problem, choice: Sequence[int]) -> int | None:
    """Total cost of `choice`; None when it uses a forbidden entry or exceeds the memory limit."""
    total = 0
    for node, state in zip(problem.nodes, choice, strict=True):
        cost = int(node.costs[state])
        if cost >= FORBIDDEN:
            return None
        total += cost
    for edge in problem.edges:
        cost = int(edge.costs[choice[edge.u], choice[edge.v]])
        if cost >= FORBIDDEN:
            return None
        total += cost
    if problem.limit is not None and peak_memory(problem, choice) > problem.limit:
        return None
    return total


def peak_memory(problem: Problem, choice: Sequence[int]) -> int:
    """Largest sum of bytes alive at one instant."""
    changes: dict[int, int] = {}

    def hold(interval: tuple[int, int] | None, amount: int) -> None:
        if interval is not None and interval[0] < interval[1] and amount:
            changes[interval[0]] = changes.get(interval[0], 0) + amount
            changes[interval[1]] = changes.get(interval[1], 0) - amount

    for node, state in zip(problem.nodes, choice, strict=True):
        if node.usage is not None:
            hold(node.interval, int(node.usage[state]))
    for edge in problem.edges:
        if edge.usage is not None:
            hold(edge.interval, int(edge.usage[choice[edge.u], choice[edge.v]]))
    peak = level = 0
    for t in sorted(changes):
        level += changes[t]
        peak = max(peak, level)
    return peak
