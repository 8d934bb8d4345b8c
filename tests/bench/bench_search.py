"""Seconds to solve deep synthetic problems that look like transformer training graphs.

Run as `python -m tests.bench.bench_search [layers ...]` from the repository root.  A layer has about 35
operators of 30 to 60 states and about as many hubs between them: tensors whose 600 states are the sets of
layouts held.  The layers share their arrays; a residual stream of hubs runs through all of them.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np

from planner.search.evaluate import peak_memory
from planner.search.prices.memory import minimum_memory
from planner.search.problem import FORBIDDEN, Edge, Node, Problem
from planner.search.solve import SolverName, solve

__all__ = ["layered_problem", "main"]

LAYOUTS = 24  # layouts of a tensor
HUB_STATES = 600
OPERATORS = (3, 7)  # branches off the residual stream (attention and feed-forward): chains of operators


class _Library:
    """Arrays shared by all layers: operator costs and the hubs' conversion costs."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.operators = [rng.integers(10**6, 10**9, int(rng.integers(30, 61))) for _ in range(20)]
        self.usage = [rng.integers(10**5, 10**7, len(c)) for c in self.operators]
        # a hub holds the layout produced and up to four more; each costs a conversion
        held = np.zeros((HUB_STATES, LAYOUTS), bool)
        self.produced = rng.integers(0, LAYOUTS, HUB_STATES)
        held[np.arange(HUB_STATES), self.produced] = True
        for k, extra in enumerate(rng.integers(0, 5, HUB_STATES)):
            held[k, rng.choice(LAYOUTS, int(extra), replace=False)] = True
        held[:LAYOUTS] = np.eye(LAYOUTS, dtype=bool)
        self.produced[:LAYOUTS] = np.arange(LAYOUTS)
        self.held = held
        price = rng.integers(10**6, 10**8, (LAYOUTS, LAYOUTS))
        np.fill_diagonal(price, 0)
        self.hub = np.array([int(price[p, h].sum()) for p, h in zip(self.produced, held, strict=True)])
        self.hub_usage = held.sum(axis=1).astype(np.int64) * 10**6
        self._edges: dict[tuple[int, int, bool], np.ndarray] = {}

    def edge(self, operator: int, slot: int, produces: bool) -> np.ndarray:
        """0/FORBIDDEN matrix hub × operator: what the operator needs is held, or what it makes is the source."""
        key = operator, slot, produces
        if key not in self._edges:
            layout = np.random.default_rng((operator, slot, produces)).integers(
                0, LAYOUTS, len(self.operators[operator])
            )
            fits = self.produced[:, None] == layout if produces else self.held[:, layout]
            self._edges[key] = np.where(fits, 0, FORBIDDEN)
        return self._edges[key]


def layered_problem(layers: int, *, seed: int = 0) -> Problem:
    """`layers` equal layers without a memory limit."""
    rng = np.random.default_rng(seed)
    library = _Library(rng)
    nodes: list[Node] = []
    edges: list[Edge] = []
    last = 2 * layers * 60

    def hub() -> int:
        born = len(nodes)
        nodes.append(Node(library.hub, library.hub_usage, (born, last - born)))
        return len(nodes) - 1

    def operator(kind: int, inputs: list[int]) -> int:
        k = kind % len(library.operators)
        born = len(nodes)
        nodes.append(Node(library.operators[k], library.usage[k], (0, last) if kind % 4 == 0 else (born, born + 4)))
        v = len(nodes) - 1
        for slot, h in enumerate(inputs):
            edges.append(Edge(h, v, library.edge(k, slot, False)))
        result = hub()
        edges.append(Edge(result, v, library.edge(k, 9, True)))
        return result

    stream = operator(0, [])
    for _ in range(layers):
        for branch in range(2):
            normed = operator(1 + branch, [stream])
            parts = [normed] * 3
            for depth in range(4):
                parts = [operator(3 + branch * 5 + depth + i, [p]) for i, p in enumerate(parts)]
            joined = operator(17, parts[:2])
            mixed = operator(18, [joined, parts[2]])
            stream = operator(19, [mixed, stream])
    return Problem(nodes, edges)


def limited(problem: Problem, share: float) -> Problem:
    """With a limit `share` of the way from the least peak found to the peak of the unlimited optimum."""
    least = minimum_memory(problem).achieved
    assert least is not None
    free = peak_memory(problem, solve(problem, solver="dp").choice)
    return replace(problem, limit=int(least + share * (free - least)))


def main(arguments: list[str]) -> None:
    depths = [int(a) for a in arguments] or [8, 32, 96]
    cases: list[tuple[int, SolverName, float | None]] = [(d, "dp", None) for d in depths]
    cases += [(depths[0], "ilp", None), *((d, "auto", s) for d in depths[:2] for s in (0.9, 0.5, 0.1))]
    for layers, solver, share in cases:
        problem = layered_problem(layers)
        if share is not None:
            problem = limited(problem, share)
        start = time.perf_counter()
        found = solve(problem, solver=solver, time_limit=60 if share is None else 15)
        seconds = time.perf_counter() - start
        gap = "-" if found.cost is None else f"{found.cost / max(1, found.bound) - 1:.2e}"
        print(
            f"layers {layers:3d} nodes {len(problem.nodes):5d} edges {len(problem.edges):5d} memory {share}"
            f" {solver:4s} {seconds:7.2f} s {found.status} gap {gap}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
