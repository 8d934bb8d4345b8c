"""Independent evaluation of a choice.  No solver reports its own objective: this does, in exact integers."""

from __future__ import annotations

from collections.abc import Sequence

from planner.search.problem import FORBIDDEN, IntArray, Problem

__all__ = ["evaluate", "least_memory", "peak_memory"]


def evaluate(problem: Problem, choice: Sequence[int]) -> int | None:
    """Total cost of `choice`; None when it uses a forbidden entry or exceeds the memory limit."""
    total = 0
    for node, state in zip(problem.nodes, choice, strict=True):
        cost = node.costs.item(state)
        if cost >= FORBIDDEN:
            return None
        total += cost
    for edge in problem.edges:
        cost = edge.costs.item(choice[edge.u], choice[edge.v])
        if cost >= FORBIDDEN:
            return None
        total += cost
    if problem.limit is not None and peak_memory(problem, choice) > problem.limit:
        return None
    return total


def peak_memory(problem: Problem, choice: Sequence[int]) -> int:
    """Largest sum of bytes alive at one instant."""
    nodes = [0 if n.usage is None else int(n.usage[x]) for n, x in zip(problem.nodes, choice, strict=True)]
    edges = [0 if e.usage is None else int(e.usage[choice[e.u], choice[e.v]]) for e in problem.edges]
    return _peak(problem, nodes, edges)


def least_memory(problem: Problem) -> int:
    """Largest sum at one instant if everything could take its least: no choice has a lower peak."""
    least: dict[int, int] = {}

    def of(usage: IntArray | None) -> int:
        if usage is None or not usage.size:
            return 0
        if id(usage) not in least:  # arrays are shared by layers that look alike
            least[id(usage)] = int(usage.min())
        return least[id(usage)]

    return _peak(problem, [of(n.usage) for n in problem.nodes], [of(e.usage) for e in problem.edges])


def _peak(problem: Problem, nodes: Sequence[int], edges: Sequence[int]) -> int:
    changes: dict[int, int] = {}

    def hold(interval: tuple[int, int] | None, amount: int) -> None:
        if interval is not None and interval[0] < interval[1] and amount:
            changes[interval[0]] = changes.get(interval[0], 0) + amount
            changes[interval[1]] = changes.get(interval[1], 0) - amount

    for node, amount in zip(problem.nodes, nodes, strict=True):
        hold(node.interval, amount)
    for edge, amount in zip(problem.edges, edges, strict=True):
        hold(edge.interval, amount)
    peak = level = 0
    for t in sorted(changes):
        level += changes[t]
        peak = max(peak, level)
    return peak
