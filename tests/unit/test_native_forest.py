"""The kernels that move on trees and decode messages: they agree with plain NumPy, and refuse what points outside."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from planner.native import sweeps
from planner.native.forest import Forest, Graph
from planner.native.library import library
from planner.search.evaluate import evaluate
from planner.search.large.core import flatten
from planner.search.messages.trws import Messages
from planner.search.problem import Edge, Node, Problem
from planner.search.reduction.presolve import presolve
from planner.search.reduction.reduced import Reduced
from tests.unit.layered_problems import layered_problem

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled kernels and no compiler")


def some(seed: int, *, loops: int = 4, count: int = 9) -> Reduced:
    """A random tree with `loops` more edges, and memory at a few instants."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, count)
    nodes = []
    for d in sizes:
        a, b = sorted(rng.integers(0, 6, 2).tolist())
        nodes.append(Node(rng.integers(0, 50, d), rng.integers(0, 9, d), (a, b)))
    pairs = {(int(rng.integers(v)), v) for v in range(1, count)}
    while len(pairs) < count - 1 + loops:
        u, v = sorted(rng.choice(count, 2, replace=False).tolist())
        pairs.add((u, v))
    edges = [Edge(u, v, rng.integers(0, 50, (sizes[u], sizes[v]))) for u, v in sorted(pairs)]
    return presolve(Problem(nodes, edges, int(rng.integers(10, 25))), prune=False, fit=False)


def start(reduced: Reduced, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.array([rng.integers(len(s)) for s in reduced.states], np.int64)


@pytest.mark.parametrize("seed", range(30))
def test_cost_levels_and_prices_agree_with_numpy(seed: int) -> None:
    reduced = some(seed)
    graph, x = flatten(reduced, np.inf), start(reduced, seed)
    forest = Forest(graph, x, seed)
    assert forest.cost == reduced.cost(x) - reduced.offset
    assert np.array_equal(forest.levels(), reduced.usage(x))
    other = start(reduced, seed + 1)
    assert np.array_equal(forest.levels(other), reduced.usage(other))
    assert np.array_equal(forest.x, x)
    assert forest.over == (reduced.usage(x) - reduced.limits).max(initial=-np.inf)
    prices = np.random.default_rng(seed).integers(0, 5, graph.rows).astype(np.float64)
    forest.set_prices(prices)
    expected = [
        sum((prices[a:b].sum() * reduced.arrays[n] for (a, b), n in f.usage), np.zeros(reduced.size(v)))
        for v, f in enumerate(reduced.nodes)
    ]
    assert np.array_equal(forest.price, np.concatenate(expected))


@pytest.mark.parametrize("seed", range(40))
def test_one_move_on_a_whole_tree_is_exact(seed: int) -> None:
    reduced = some(seed, loops=0, count=7)
    graph = flatten(reduced, np.inf)
    forest = Forest(graph, start(reduced, seed), seed)
    for _ in range(30):
        forest.search(1, 10**6, hard=False)
    best = min(reduced.cost(index) for index in np.ndindex(*(len(s) for s in reduced.states)))
    assert forest.cost == best - reduced.offset


@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_tracked_is_what_is_there(seed: int, hard: bool) -> None:
    reduced = some(seed)
    graph = flatten(reduced, np.inf)
    forest = Forest(graph, start(reduced, seed), seed)
    ceiling = max(0.0, forest.over)
    for k in range(40):
        forest.search(5, 4, temperature=20.0 if k % 2 else 0.0, hard=hard)
        assert forest.cost == reduced.cost(forest.x) - reduced.offset
        assert forest.over == (reduced.usage(forest.x) - reduced.limits).max(initial=-np.inf)
        if hard:
            assert forest.over <= ceiling
            ceiling = max(0.0, forest.over)
    if np.isfinite(forest.best_cost):
        assert forest.best_cost == reduced.cost(forest.best) - reduced.offset
        assert (reduced.usage(forest.best) <= reduced.limits).all()


@pytest.mark.parametrize("seed", range(10))
def test_without_noise_the_cost_never_rises(seed: int) -> None:
    reduced = some(seed)
    forest = Forest(flatten(reduced, np.inf), start(reduced, seed), seed)
    before = forest.cost
    for _ in range(50):
        forest.search(1, 5, hard=False)
        assert forest.cost <= before
        before = forest.cost


def test_equal_seeds_make_equal_moves() -> None:
    problem = layered_problem(3, layers=10)
    reduced = presolve(problem)
    graph, x = flatten(reduced, 1e15), start(reduced, 0)
    ends = []
    for _ in range(2):
        forest = Forest(graph, x, 5)
        forest.search(300, 20, temperature=50.0)
        forest.search(300, 20)
        ends.append((forest.cost, forest.x.tolist(), forest.best.tolist()))
    assert ends[0] == ends[1]
    assert evaluate(problem, reduced.restore(ends[0][2])) is not None


@pytest.mark.parametrize("seed", range(20))
def test_decoding_agrees_with_numpy(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reduced = some(seed)
    messages = Messages(reduced, 1e9)
    messages.run(sweeps=3, enough=np.inf, stop=lambda: False)
    unary = np.concatenate([reduced.arrays[f.costs] for f in reduced.nodes])
    ends = np.array([u for u, _, _ in reduced.edges], np.int64)
    costs = messages._costs
    compiled = sweeps.decode(messages.layout, unary, costs, messages.to_u, ends)
    monkeypatch.setattr(sweeps, "library", lambda: None)
    assert np.array_equal(sweeps.decode(messages.layout, unary, costs, messages.to_u, ends), compiled)


class TestHostile:
    graph = flatten(some(1), np.inf)

    @pytest.mark.parametrize("name", [f.name for f in fields(Graph)])
    def test_other_types_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=name):
            replace(self.graph, **{name: getattr(self.graph, name).astype(np.float32)})

    @pytest.mark.parametrize("name", ["start", "at", "neighbour", "matrix", "twin", "term_at", "begin", "end", "held"])
    @pytest.mark.parametrize("value", [-1, 10**6])
    def test_indices_that_point_outside_are_refused(self, name: str, value: int) -> None:
        array = getattr(self.graph, name).copy()
        array[len(array) // 2] = value
        with pytest.raises(ValueError, match="points outside"):
            replace(self.graph, **{name: array})

    @pytest.mark.parametrize("name", ["pool", "uses", "unary", "matrix", "twin", "held", "begin"])
    def test_arrays_cut_short_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"points outside|expected"):
            replace(self.graph, **{name: getattr(self.graph, name)[:-1].copy()})

    def test_states_that_are_not_there_are_refused(self) -> None:
        forest = Forest(self.graph, np.zeros(self.graph.nodes, np.int64), 0)
        for wrong in (np.full(self.graph.nodes, 99), np.full(self.graph.nodes, -1), np.zeros(3, np.int64)):
            with pytest.raises(ValueError, match="points outside"):
                forest.reset(wrong)
        with pytest.raises(ValueError, match="points outside"):
            forest.set_prices(np.zeros(self.graph.rows + 1))

    def test_no_nodes(self) -> None:
        empty = flatten(presolve(Problem([], [])), np.inf)
        assert Forest(empty, np.zeros(0, np.int64), 0).search(10, 10) == 0
