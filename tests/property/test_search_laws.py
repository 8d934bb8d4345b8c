"""Laws of the search on random small problems: every solver agrees with enumeration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.search.brute import brute_force, least_peak
from planner.search.evaluate import evaluate, peak_memory
from planner.search.memory import minimum_memory
from planner.search.presolve import presolve
from planner.search.problem import FORBIDDEN, Edge, Node, Problem, alive_intervals
from planner.search.reduced import Infeasible
from planner.search.rows import clique_instants
from planner.search.solve import SolverName, solve

BATCHES = 25
BATCH = 100


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


def batch(number: int) -> list[Problem]:
    return [random_problem(np.random.default_rng((7, number, k))) for k in range(BATCH)]


@pytest.mark.parametrize("number", range(BATCHES))
def test_elimination_ilp_and_enumeration_agree(number: int) -> None:
    solvers: tuple[SolverName, ...] = ("dp", "ilp", "auto")
    for k, problem in enumerate(batch(number)):
        reference = brute_force(problem)
        for solver in solvers:
            found = solve(problem, solver=solver)
            assert (found.status, found.cost) == (reference.status, reference.cost), (number, k, solver)
            if found.status == "infeasible":
                if reference.memory_bound is not None:  # else every choice is forbidden, and any bound holds
                    assert found.memory_bound is not None, (number, k, solver)
                    assert found.memory_bound <= reference.memory_bound, (number, k, solver)
            else:
                assert found.bound == found.cost == evaluate(problem, found.choice), (number, k, solver)


@pytest.mark.parametrize("number", range(3))
def test_branch_and_bound_is_exact_on_larger_problems_too(number: int) -> None:
    for k in range(60):
        problem = random_problem(np.random.default_rng((8, number, k)), most_nodes=9, most_states=4)
        reference = brute_force(problem)
        found = solve(problem, solver="dp")
        assert (found.status, found.cost) == (reference.status, reference.cost), (number, k)


@pytest.mark.parametrize("number", range(4))
def test_presolve_keeps_the_optimum(number: int) -> None:
    for k, problem in enumerate(batch(number)):
        reference = brute_force(problem)
        try:
            reduced = presolve(problem)
        except Infeasible:
            assert reference.status == "infeasible", (number, k)
            continue
        best = np.inf
        for choice in np.ndindex(*(reduced.size(v) for v in range(len(reduced.nodes)))):
            cost = reduced.cost(choice)
            if np.isfinite(cost) and (reduced.usage(choice) <= reduced.limits).all():
                assert evaluate(problem, reduced.restore(choice)) == cost, (number, k)
                best = min(best, cost)
        assert (best if np.isfinite(best) else None) == reference.cost, (number, k)


@pytest.mark.parametrize("number", range(4))
def test_minimum_memory_brackets_the_least_peak(number: int) -> None:
    for k, problem in enumerate(batch(number)):
        least = least_peak(problem)
        found = minimum_memory(problem)
        if least is None:
            assert found.achieved is None
            continue
        assert found.achieved is not None
        assert found.lower_bound <= least <= found.achieved == peak_memory(problem, found.choice), (number, k)
        assert solve(replace(problem, limit=found.achieved)).status == "optimal"


@pytest.mark.parametrize("number", range(2))
def test_bound_never_exceeds_the_optimum_when_cut_short(number: int) -> None:
    for k, problem in enumerate(batch(number)):
        reference = brute_force(problem)
        found = solve(problem, solver="auto", time_limit=0.0)
        if reference.cost is None:
            assert found.status in ("infeasible", "unknown")
        else:
            assert found.bound <= reference.cost <= (found.cost or FORBIDDEN), (number, k)


def test_solutions_do_not_depend_on_the_order_of_nodes_and_edges() -> None:
    for k, problem in enumerate(batch(0)):
        rng = np.random.default_rng(k)
        position = rng.permutation(len(problem.nodes))  # position[v]: where node v goes
        nodes = [problem.nodes[int(v)] for v in np.argsort(position)]
        edges = [
            Edge(
                int(position[e.v]),
                int(position[e.u]),
                e.costs.T,
                None if e.usage is None else e.usage.T,
                e.interval,
            )
            for e in (problem.edges[int(i)] for i in rng.permutation(len(problem.edges)))
        ]
        permuted = Problem(nodes, edges, problem.limit)
        first, second = solve(problem), solve(permuted)
        assert (first.status, first.cost) == (second.status, second.cost)
        if first.choice:
            moved = [first.choice[int(v)] for v in np.argsort(position)]
            assert evaluate(permuted, moved) == first.cost


def test_solving_twice_gives_the_same_choice() -> None:
    for problem in batch(1):
        assert solve(problem) == solve(problem)


def test_rows_are_the_maximal_cliques() -> None:
    for problem in batch(2):
        intervals = list(alive_intervals(problem))
        alive = {t: frozenset(i for i, (a, b) in enumerate(intervals) if a <= t < b) for t in range(10)}
        maximal = {s for s in alive.values() if s and not any(s < other for other in alive.values())}
        assert {alive[t] for t in clique_instants(intervals)} == maximal
