"""What is found of a graph once, and memoized as long as the graph lives."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from planner.ir.graph import Graph

__all__ = ["memoized"]

T = TypeVar("T")


def memoized(find: Callable[[Graph], T]) -> Callable[[Graph], T]:
    """For functions of a graph alone, whose results nobody writes to.  A result must not refer to the graph, which
    would never be freed."""
    known: WeakKeyDictionary[Graph, T] = WeakKeyDictionary()

    @wraps(find)
    def of(graph: Graph) -> T:
        if graph not in known:
            known[graph] = find(graph)
        return known[graph]

    return of
