"""Message passing and restricted elimination, against the exact optimum."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from planner.native import sweeps
from planner.search.control import Control
from planner.search.evaluate import evaluate, least_memory, peak_memory
from planner.search.goal import Goal
from planner.search.messages.restricted import Rounds, restrict, solve_restricted
from planner.search.messages.trws import Messages
from planner.search.prices.lagrangian import Lagrangian
from planner.search.prices.memory import Bounded, branch_and_bound
from planner.search.problem import Edge, Node, Problem
from planner.search.reduction.contract import FURTHER_GROWTH, contract_further
from planner.search.reduction.presolve import presolve
from planner.search.reduction.reduced import Infeasible, Reduced
from planner.search.solve import Search, solve


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


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("limited", [False, True])
def test_contraction_of_a_presolved_problem_is_exact(seed: int, *, limited: bool) -> None:
    """Its optimum is the problem's, every choice of what is left is restored at its cost, and is found there again."""
    problem = dense(seed, nodes=8, states=4, forbid=0.6)
    if limited and solve(problem, solver="dp").status != "infeasible":
        problem = replace(problem, limit=least_memory(problem) + 60)
    exact = solve(problem, solver="dp")
    try:
        reduced = presolve(problem)
        contracted = contract_further(reduced)
    except Infeasible:
        assert exact.status == "infeasible"
        return
    left = contracted.reduced
    assert len(left.nodes) <= len(reduced.nodes)
    found = branch_and_bound(left, Goal(), work=10**8, close=0) if left.nodes else Bounded((), left.offset)
    if found.choice is None:
        assert exact.status == "infeasible"
        return
    restored = contracted.restore(found.choice)
    assert reduced.cost(restored) == left.cost(found.choice) == exact.cost
    assert (reduced.usage(restored) <= reduced.limits).all()
    assert contracted.left_of(restored) == tuple(found.choice)
    rounds = Rounds(reduced, Goal(), contracting=True)
    assert rounds.run().bound <= exact.cost


def test_a_choice_that_is_known_is_not_lost_by_contraction() -> None:
    """Where one of its states gives way to another that costs no more, its cost and the choice itself stay known."""
    rng, lost = np.random.default_rng(11), 0
    for _ in range(40):
        nodes = [Node(rng.integers(0, 3, 4)) for _ in range(16)]
        pairs = [(u, v) for u in range(16) for v in range(u + 1, 16) if rng.random() < 0.25]
        reduced = presolve(Problem(nodes, [Edge(u, v, rng.integers(0, 3, (4, 4))) for u, v in pairs]), prune=False)
        start = tuple(rng.integers(0, 4, 16).tolist())
        rounds = Rounds(reduced, Goal(), start, contracting=True)
        rounds._contract()
        assert rounds.cost <= reduced.cost(start)
        assert rounds.choice is not None
        assert reduced.cost(rounds.choice) == rounds.cost
        lost += rounds.best is None
        found = rounds.run()
        assert found.choice is not None
        assert found.bound <= reduced.cost(found.choice) <= reduced.cost(start)
    assert lost > 0


def test_no_table_grows_beyond_what_messages_go_over_quickly() -> None:
    rng = np.random.default_rng(2)
    pairs = list(combinations(range(5), 2))  # of nodes of 1,200 states, each with a node of eight states between them
    nodes = [Node(rng.integers(0, 50, n)) for n in [1_200] * 5 + [8] * len(pairs)]
    edges = [Edge(u, k, rng.integers(0, 50, (1_200, 8))) for k, pair in enumerate(pairs, 5) for u in pair]
    left = contract_further(presolve(Problem(nodes, edges), prune=False)).reduced
    assert left.edges
    assert all(left.arrays[f.costs].size <= FURTHER_GROWTH for _, _, f in left.edges)


def test_where_contraction_leaves_nothing_messages_are_exact() -> None:
    """A ladder, whose nodes have three neighbours at most: sweeps alone do not settle it."""
    rng = np.random.default_rng(3)
    nodes = [Node(rng.integers(0, 20, 5)) for _ in range(16)]
    pairs = [(i, i + 2) for i in range(14)] + [(i, i + 1) for i in range(0, 16, 2)]
    problem = Problem(nodes, [Edge(u, v, rng.integers(0, 50, (5, 5))) for u, v in pairs])
    exact = solve(problem, solver="dp")
    found = Rounds(presolve(problem), Goal(), contracting=True)
    assert found.run().bound == exact.cost
    assert found.choice is not None
    assert evaluate(problem, presolve(problem).restore(found.choice)) == exact.cost


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


def limited(seed: int) -> Problem:
    """A wide problem whose memory limit binds at several instants, on nodes and on edges."""
    problem = dense(seed, nodes=7, states=5)
    rng = np.random.default_rng(seed)
    edges = [Edge(e.u, e.v, e.costs, rng.integers(0, 40, (5, 5)), (0, 8)) for e in problem.edges]
    free = Problem(problem.nodes, edges)
    peaks = [peak_memory(free, [int(rng.integers(5)) for _ in problem.nodes]) for _ in range(30)]
    return Problem(problem.nodes, edges, limit=int(np.quantile(peaks, 0.15)))


@pytest.mark.parametrize("seed", range(60))
def test_under_a_memory_limit_too(seed: int) -> None:
    problem = limited(seed)
    exact = solve(problem, solver="ilp")
    try:
        reduced = presolve(problem)
        found = solve_restricted(reduced, Goal())
    except Infeasible:
        assert exact.status == "infeasible"
        return
    if exact.cost is None:
        assert found.choice is None
        return
    assert found.bound <= exact.cost
    if found.choice is not None:
        cost = evaluate(problem, reduced.restore(found.choice))
        assert cost is not None
        assert cost >= exact.cost


@pytest.mark.parametrize("seed", range(40))
def test_a_cutoff_only_ends_the_search_sooner(seed: int) -> None:
    """With a cutoff at or below the optimum the bound reaches it; above, the optimum is still found."""
    problem = limited(seed)
    exact = solve(problem, solver="ilp")
    if exact.cost is None:
        return
    for solver in ("auto", "dp"):
        beaten = Search(problem, Control(), solver=solver)
        found = beaten.run(cutoff=exact.cost)
        assert found.bound <= exact.cost
        assert beaten.bound >= exact.cost or found.cost == exact.cost
        assert Search(problem, Control(), solver=solver).run(cutoff=exact.cost + 1).cost == exact.cost


@pytest.mark.parametrize("seed", range(20))
def test_compiled_sweeps_equal_plain_ones(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reduced = presolve(limited(seed), fit=False)
    results = []
    for native in (sweeps.library, lambda: None):
        monkeypatch.setattr(sweeps, "library", native)
        messages = Messages(reduced, 1e6)
        messages.set_prices({0: 0.5})
        messages.run(sweeps=7, enough=math.inf, stop=lambda: False)
        certified = messages.certified()
        results.append((messages.bound, certified.bound, certified.above.tolist(), messages.scores))
    compiled, plain = results
    assert compiled[1:3] == plain[1:3]
    np.testing.assert_allclose(compiled[3], plain[3])
    assert math.isclose(compiled[0], plain[0])


@pytest.mark.parametrize("seed", range(30))
def test_states_above_the_bound_are_indeed_that_dear(seed: int) -> None:
    """`above` is proven: no choice through a state costs less than the bound and what the state lies above it."""
    problem = dense(seed, nodes=6, states=4)
    if solve(problem, solver="dp").cost is None:
        return
    reduced = presolve(problem, prune=False)
    messages = Messages(reduced, 1e6)
    messages.run(sweeps=15, enough=math.inf, stop=lambda: False)
    certified = messages.certified()
    everything = [np.arange(len(s)) for s in reduced.states]
    for v, states in enumerate(reduced.states):
        for i in range(len(states)):
            pinned = restrict(reduced, [*everything[:v], np.array([i]), *everything[v + 1 :]])
            try:
                least = Lagrangian(pinned).evaluate({}, {})[0]
            except Infeasible:
                continue
            assert certified.bound + certified.above[messages.layout.start[v] + i] <= least


def test_what_cannot_be_is_proven_infeasible() -> None:
    """Seven nodes in six states, no two alike: every pair of nodes is consistent, all together are not."""
    differ = np.where(np.eye(6, dtype=bool), 10**18, 0)
    edges = [Edge(u, v, differ) for u in range(7) for v in range(u + 1, 7)]
    reduced = presolve(Problem([Node(np.arange(6)) for _ in range(7)], edges))
    with pytest.raises(Infeasible):
        solve_restricted(reduced, Goal())
