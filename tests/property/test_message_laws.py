"""Message passing and restricted elimination, against the exact optimum."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.search.evaluate import evaluate, least_memory, peak_memory
from planner.search.goal import Goal
from planner.search.lagrangian import Lagrangian
from planner.search.messages import Messages
from planner.search.presolve import presolve
from planner.search.problem import Edge, Node, Problem
from planner.search.reduced import Infeasible, Reduced
from planner.search.restricted import restrict, solve_restricted
from planner.search.solve import solve


def dense(seed: int, *, nodes: int = 9, states: int = 6, forbid: float = 0.1) -> Problem:
    """A wide problem: every pair of nodes is joined with even odds, some pairs of states are forbidden."""
    rng = np.random.default_rng(seed)
    costs = [rng.integers(0, 50, states) for _ in range(nodes)]
    edges = []
    for u in range(nodes):
        for v in range(u + 1, nodes):
            if rng.random() < 0.5:
                matrix = rng.integers(0, 100, (states, states))
                matrix[rng.random((states, states)) < forbid] = 10**18
                edges.append(Edge(u, v, matrix.astype(np.int64)))
    usage = rng.integers(0, 100, (nodes, states))
    return Problem([Node(c.astype(np.int64), usage[i], (0, i + 1)) for i, c in enumerate(costs)], edges)


@pytest.mark.parametrize("seed", range(60))
def test_bound_never_exceeds_the_optimum_and_choices_are_valid(seed: int) -> None:
    problem = dense(seed)
    exact = solve(problem, solver="dp")
    if exact.status == "infeasible":
        return
    assert exact.cost is not None
    reduced = presolve(problem)
    found = solve_restricted(reduced, Goal())
    assert found.bound <= exact.cost
    if found.choice is not None:
        cost = evaluate(problem, reduced.restore(found.choice))
        assert cost is not None
        assert cost >= exact.cost
        assert cost == round(reduced.cost(found.choice))


def swept(problem: Reduced, sweeps: int) -> int:
    messages = Messages(problem, 1e6)
    messages.run(sweeps=sweeps, enough=math.inf, stop=lambda: False)
    return messages.certified().bound


def test_the_bound_is_worth_having() -> None:
    """On sparse problems the tree bound is tight; on average over dense ones it is far above the trivial bound."""
    shares = []
    for seed in range(20):
        problem = dense(seed, forbid=0.0)
        exact = solve(problem, solver="dp")
        assert exact.cost is not None
        trivial = sum(int(n.costs.min()) for n in problem.nodes) + sum(int(e.costs.min()) for e in problem.edges)
        bound = swept(presolve(problem), 40)
        assert trivial <= bound <= exact.cost
        shares.append((bound - trivial) / max(1, exact.cost - trivial))
    assert float(np.mean(shares)) > 0.5


def test_a_chain_is_solved_to_the_optimum() -> None:
    rng = np.random.default_rng(5)
    nodes = [Node(rng.integers(0, 50, 7)) for _ in range(12)]
    edges = [Edge(i, i + 1, rng.integers(0, 50, (7, 7))) for i in range(11)]
    problem = Problem(nodes, edges)
    exact = solve(problem, solver="dp")
    assert exact.cost is not None
    reduced = presolve(problem, prune=False)
    assert swept(reduced, 20) == exact.cost


@pytest.mark.parametrize("seed", range(20))
def test_restriction_to_all_states_changes_nothing(seed: int) -> None:
    reduced = presolve(dense(seed, nodes=6))
    everything = [np.arange(len(s)) for s in reduced.states]
    try:
        expected = Lagrangian(reduced).evaluate({}, {})[0]
    except Infeasible:
        return
    assert Lagrangian(restrict(reduced, everything)).evaluate({}, {})[0] == expected


@pytest.mark.parametrize("seed", range(20))
def test_no_choice_takes_less_than_the_least_memory(seed: int) -> None:
    problem = dense(seed)
    rng = np.random.default_rng(seed)
    for _ in range(20):
        choice = [int(rng.integers(len(n.costs))) for n in problem.nodes]
        assert peak_memory(problem, choice) >= least_memory(problem)
