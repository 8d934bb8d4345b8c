"""Laws of the search on random small problems: every solver agrees with enumeration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from planner.search.brute import brute_force, least_peak
from planner.search.evaluate import evaluate, peak_memory
from planner.search.goal import Goal
from planner.search.prices.memory import Bounded, branch_and_bound, minimum_memory
from planner.search.problem import FORBIDDEN, Edge, Problem, Solution, alive_intervals
from planner.search.program.ilp import solve_ilp
from planner.search.reduction.presolve import presolve
from planner.search.reduction.reduced import Infeasible, Reduced
from planner.search.rows import clique_instants
from planner.search.solve import SolverName, solve
from tests.property.random_problems import random_problem

BATCHES = 40
BATCH = 250


def batch(number: int) -> list[Problem]:
    return [random_problem(np.random.default_rng((7, number, k))) for k in range(BATCH)]


def agrees(found: Solution, reference: Solution) -> bool:
    """Whether an exact solver's answer is the one that enumeration gives."""
    if (found.status, found.cost) != (reference.status, reference.cost):
        return False
    if found.status != "infeasible":
        return found.bound == found.cost
    # Without a bound on memory every choice is forbidden, and any bound holds.
    least = reference.memory_bound
    return least is None or (found.memory_bound is not None and found.memory_bound <= least)


@pytest.mark.parametrize("number", range(BATCHES))
def test_elimination_ilp_and_enumeration_agree(number: int) -> None:
    solvers: tuple[SolverName, ...] = ("dp", "ilp", "auto")
    for k, problem in enumerate(batch(number)):
        reference = brute_force(problem)
        for solver in solvers:
            found = solve(problem, solver=solver)
            assert agrees(found, reference), (number, k, solver)
            assert found.cost is None or found.cost == evaluate(problem, found.choice), (number, k, solver)


@pytest.mark.parametrize("number", range(8))
def test_elimination_and_ilp_agree_where_presolve_has_done_nothing(number: int) -> None:
    """Presolve often leaves little to solve; here it only translates."""
    for k, problem in enumerate(batch(number)):
        reduced = presolve(problem, prune=False)
        reference = brute_force(problem).cost
        assert optimum(lambda r=reduced: branch_and_bound(r, Goal(), work=10**9), reduced) == reference, (number, k)
        assert optimum(lambda r=reduced: solve_ilp(r, time_limit=None), reduced) == reference, (number, k)


def optimum(solver: Callable[[], Bounded], reduced: Reduced) -> int | None:
    """What an exact solver of reduced problems answers; None: there is no choice."""
    try:
        found = solver()
    except Infeasible:
        return None
    assert found.choice is not None
    cost = reduced.cost(found.choice)
    assert cost - 1 < found.bound <= cost
    assert (reduced.usage(found.choice) <= reduced.limits).all()
    return int(cost)


@pytest.mark.parametrize("number", range(4))
def test_costs_beyond_the_exact_range_of_float64_are_bracketed(number: int) -> None:
    """Sums of costs above 2^52 are rounded down inside: the bound may then stay a little below the optimum."""
    for k in range(BATCH):
        problem = random_problem(np.random.default_rng((9, number, k)), tops=(10**15, 10**17))
        reference = brute_force(problem)
        found = solve(problem)
        if reference.cost is None:
            assert found.status == "infeasible", (number, k)
        else:
            assert found.cost is not None
            slack = presolve(problem, prune=False).scale * (len(problem.nodes) + len(problem.edges))
            assert found.bound <= reference.cost <= found.cost <= reference.cost + slack, (number, k)
            assert found.cost - found.bound <= slack, (number, k)


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
    for k, problem in enumerate(batch(0)[:100]):
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
    for problem in batch(1)[:60]:
        assert solve(problem) == solve(problem)


def test_rows_are_the_maximal_cliques() -> None:
    for problem in batch(2)[:100]:
        intervals = list(alive_intervals(problem))
        alive = {t: frozenset(i for i, (a, b) in enumerate(intervals) if a <= t < b) for t in range(10)}
        maximal = {s for s in alive.values() if s and not any(s < other for other in alive.values())}
        assert {alive[t] for t in clique_instants(intervals)} == maximal
