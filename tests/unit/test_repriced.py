"""Bounds and choices by prices on memory, against all choices of small problems."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.search.evaluate import evaluate, peak_memory
from planner.search.prices.repriced import Repriced, best_among
from planner.search.problem import Edge, Node, Problem


def chain(seed: int, limit: int | None) -> Problem:
    rng = np.random.default_rng(seed)

    def node(k: int) -> Node:
        return Node(rng.integers(0, 1000, 3), rng.integers(0, 500, 3), (k, int(rng.integers(k + 1, 9))))

    nodes = [node(k) for k in range(6)]
    edges = [Edge(k, k + 1, rng.integers(0, 1000, (3, 3)), rng.integers(0, 200, (3, 3)), (k, k + 2)) for k in range(5)]
    return Problem(nodes, edges, limit)


@pytest.mark.parametrize("seed", range(12))
def test_no_choice_within_the_limit_costs_less_than_the_bound(seed: int) -> None:
    free = chain(seed, None)
    choices = list(itertools.product(range(3), repeat=6))
    peaks = [peak_memory(free, c) for c in choices]
    limit = int(np.quantile(peaks, 0.2))
    problem = chain(seed, limit)
    costs = [cost for c in choices if (cost := evaluate(problem, c)) is not None]
    dual = Repriced(problem)
    dual.maximise(limit, rounds=14)
    bound, prices = dual.best(limit)
    assert bound <= min(costs)
    unpriced = min(c for c in (evaluate(free, x) for x in choices) if c is not None)
    assert bound > unpriced or not any(prices.values())
    for cut in dual.cuts:
        assert cut.usage.max() == peak_memory(free, cut.choice)
    found = best_among(problem, [c.choice for c in dual.cuts])
    if found is not None:
        assert evaluate(problem, found) is not None
    everything = best_among(problem, choices)
    assert everything is not None
    assert evaluate(problem, everything) == min(costs)
