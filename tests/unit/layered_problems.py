"""Layered problems in the likeness of sharding a deep network: repeated blocks, skips, a hub, memory that binds."""

from __future__ import annotations

import numpy as np

from planner.search.problem import FORBIDDEN, Edge, Node, Problem

__all__ = ["layered_problem"]


def layered_problem(
    seed: int, *, layers: int = 12, width: int = 4, states: int = 6, room: float = 0.5, ties: bool = True
) -> Problem:
    """`layers` blocks of `width` nodes; the matrices of all blocks are the same objects.

    `room` places the limit between the least that any choice needs (0) and the most that one can need (1).  With `ties`
    every block has a node that must follow its first one, as the users of a weight do.
    """
    rng = np.random.default_rng(seed)
    cheap = [rng.integers(0, 1000, states) for _ in range(width)]
    small = [np.sort(rng.integers(1, 100, states))[::-1].copy() for _ in range(width)]  # dear states hold less
    cheap = [np.sort(c) for c in cheap]
    apart = np.minimum(np.abs(np.subtract.outer(np.arange(states), np.arange(states))), 3)  # conversions of layouts
    within = [int(rng.integers(50, 300)) * apart + rng.integers(0, 40, apart.shape) for _ in range(width)]
    skip = int(rng.integers(50, 300)) * apart
    to_hub = rng.integers(0, 200, (states, 3))
    follow = np.where(np.eye(states, dtype=bool)[rng.permutation(states)], 5, FORBIDDEN)
    nodes = [Node(np.array([10, 20, 30]), np.array([50, 20, 5]), (0, 2 * layers * width), "hub")]
    edges: list[Edge] = []
    last: int | None = None
    for k in range(layers):
        first = len(nodes)
        for w in range(width):
            at = k * width + w
            until = 2 * layers * width - at if w % 2 == 0 else at + 2  # kept for the backward pass, or used at once
            nodes.append(Node(cheap[w], small[w], (at, until), f"layer {k} node {w}"))
            if w:
                edges.append(Edge(first + w - 1, first + w, within[w]))
        edges.append(Edge(first, first + width - 1, skip))
        edges.append(Edge(first, 0, to_hub))
        if last is not None:
            edges.append(Edge(last, first, within[0]))
        last = first + width - 1
        if ties:
            nodes.append(Node(np.zeros(states, np.int64), small[1], (k * width, k * width + 1), f"layer {k} copy"))
            edges.append(Edge(first, len(nodes) - 1, follow))
    held = np.array([[n.usage.min(), n.usage.max()] for n in nodes if n.usage is not None])
    change = np.zeros((2 * layers * width + 3, 2), np.int64)
    for node, span in zip(nodes, held, strict=True):
        assert node.interval is not None
        change[node.interval[0]] += span
        change[node.interval[1]] -= span
    low, high = np.cumsum(change, axis=0).max(axis=0)
    return Problem(nodes, edges, int(low + room * (high - low)))
