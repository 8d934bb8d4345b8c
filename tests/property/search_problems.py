"""Random small problems for the tests of the search."""

from __future__ import annotations

import numpy as np

from planner.search.problem import FORBIDDEN, Edge, Node, Problem

__all__ = ["random_problem"]


def random_problem(rng: np.random.Generator, *, most_nodes: int = 6, most_states: int = 5) -> Problem:
    """Ties, forbidden entries, parallel edges, isolated nodes, edge usage, limits that bind or cannot be met."""
    count = int(rng.integers(1, most_nodes + 1))
    sizes = rng.integers(1, most_states + 1, count)
    top = int(rng.choice([3, 50, 10**6, 10**12]))
    forbid = float(rng.choice([0.0, 0.15, 0.5]))
    with_memory = rng.random() < 0.6

    def costs(*shape: int) -> np.ndarray:
        values = rng.integers(0, top, shape)
        if len(shape) == 2 and rng.random() < 0.3:
            values = np.zeros(shape, np.int64)
        return np.where(rng.random(shape) < forbid * (0.3 if len(shape) == 1 else 1.0), FORBIDDEN, values)

    def usage(*shape: int) -> np.ndarray:
        return rng.integers(0, int(rng.choice([2, 30, 10**9])), shape)

    def interval() -> tuple[int, int]:
        a, b = sorted(int(t) for t in rng.integers(0, 8, 2))
        return a, b

    nodes = []
    for d in sizes:
        held = with_memory and rng.random() < 0.8
        nodes.append(Node(costs(d), usage(d) if held else None, interval() if held else None))
    edges = []
    if count > 1:
        for _ in range(int(rng.integers(0, 2 * count))):
            u, v = (int(k) for k in rng.choice(count, 2, replace=False))
            held = with_memory and rng.random() < 0.3
            shape = (int(sizes[u]), int(sizes[v]))
            edges.append(Edge(u, v, costs(*shape), usage(*shape) if held else None, interval() if held else None))
            if edges and rng.random() < 0.2:
                edges.append(edges[int(rng.integers(len(edges)))])
    limit = None
    if with_memory:
        total = sum(int(n.usage.max()) for n in nodes if n.usage is not None)
        limit = int(total * rng.choice([0.1, 0.3, 0.5, 0.7, 1.0]))
    return Problem(nodes, edges, limit)
