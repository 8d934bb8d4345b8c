"""Random small problems with everything a `Problem` may hold, for tests of solvers against enumeration."""

from __future__ import annotations

import numpy as np

from planner.search.problem import FORBIDDEN, Edge, IntArray, Node, Problem

__all__ = ["random_problem"]

TOPS = (3, 50, 10**6, 10**12, 10**14)


def random_problem(
    rng: np.random.Generator,
    *,
    most_nodes: int = 6,
    most_states: int = 5,
    most_choices: int = 10**6,
    tops: tuple[int, ...] = TOPS,
) -> Problem:
    """Ties, forbidden states and pairs, parallel edges in either direction, isolated nodes, nodes with one state, usage
    of nodes and edges, empty intervals, limits that never bind, that bind, and that cannot be met."""
    count = int(rng.integers(1, most_nodes + 1))
    sizes = rng.integers(1, most_states + 1, count)
    while float(np.prod(sizes, dtype=np.float64)) > most_choices:
        sizes[int(np.argmax(sizes))] -= 1
    top = int(rng.choice(tops))
    forbid = float(rng.choice([0.0, 0.15, 0.5], p=[0.5, 0.35, 0.15]))
    with_memory = rng.random() < 0.7
    most_bytes = int(rng.choice([2, 30, 10**9, 10**13]))

    def costs(*shape: int) -> IntArray:
        values = np.zeros(shape, np.int64) if rng.random() < 0.2 else rng.integers(0, top, shape)
        barred = rng.random(shape) < forbid * (0.3 if len(shape) == 1 else 1.0)
        return np.where(barred, FORBIDDEN + rng.integers(0, 2, shape), values)

    def usage(*shape: int) -> IntArray:
        return rng.integers(0, most_bytes, shape)

    def interval() -> tuple[int, int]:
        a, b = sorted(int(t) for t in rng.integers(0, 8, 2))
        return a, b

    nodes = []
    for d in sizes:
        held = with_memory and rng.random() < 0.8
        nodes.append(Node(costs(d), usage(d) if held else None, interval() if held or rng.random() < 0.1 else None))
    edges: list[Edge] = []
    if count > 1:
        for _ in range(int(rng.integers(0, 2 * count))):
            u, v = (int(k) for k in rng.choice(count, 2, replace=False))
            held = with_memory and rng.random() < 0.3
            shape = (int(sizes[u]), int(sizes[v]))
            edges.append(Edge(u, v, costs(*shape), usage(*shape) if held else None, interval() if held else None))
            if rng.random() < 0.2:
                edges.append(_parallel(edges[int(rng.integers(len(edges)))], turned=rng.random() < 0.5))
    limit = None
    if with_memory:
        items: list[Node | Edge] = [*nodes, *edges]
        total = sum(int(x.usage.max()) for x in items if x.usage is not None)
        limit = int(total * rng.choice([0.1, 0.3, 0.5, 0.7, 1.0], p=[0.1, 0.25, 0.35, 0.2, 0.1]))
    return Problem(nodes, edges, limit)


def _parallel(edge: Edge, *, turned: bool) -> Edge:
    if not turned:
        return edge
    return Edge(edge.v, edge.u, edge.costs.T, None if edge.usage is None else edge.usage.T, edge.interval)
