"""The search on problems whose answer is known by hand."""

from __future__ import annotations

import numpy as np
import pytest

from planner.search.brute import brute_force
from planner.search.elimination.tables import TableStore, TooLarge
from planner.search.prices.lagrangian import Lagrangian
from planner.search.problem import FORBIDDEN, Edge, Node, Problem
from planner.search.program.ilp import solve_ilp
from planner.search.reduction.presolve import presolve
from planner.search.reduction.reduced import Infeasible
from planner.search.solve import SOLVERS, solve


def costs(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def chain(length: int, states: int, seed: int = 0) -> Problem:
    """A chain of equal links."""
    rng = np.random.default_rng(seed)
    node, link = rng.integers(0, 100, states), rng.integers(0, 100, (states, states))
    return Problem([Node(node)] * length, [Edge(k, k + 1, link) for k in range(length - 1)])


@pytest.mark.parametrize("solver", list(SOLVERS))
def test_no_nodes(solver: str) -> None:
    found = solve(Problem([], []), solver=solver)
    assert (found.status, found.choice, found.cost) == ("optimal", (), 0)


@pytest.mark.parametrize("solver", list(SOLVERS))
def test_memory_forces_the_dearer_state(solver: str) -> None:
    node = Node(costs(0, 10), usage=costs(8, 4), interval=(0, 2))
    found = solve(Problem([node, node], [], limit=12), solver=solver)
    assert (found.status, found.cost, sorted(found.choice)) == ("optimal", 10, [0, 1])


@pytest.mark.parametrize("solver", list(SOLVERS))
def test_disjoint_intervals_do_not_compete(solver: str) -> None:
    nodes = [Node(costs(0, 10), costs(8, 4), (0, 2)), Node(costs(0, 10), costs(8, 4), (2, 3))]
    found = solve(Problem(nodes, [], limit=8), solver=solver)
    assert (found.status, found.cost) == ("optimal", 0)


def test_infeasible_by_memory_names_the_bound() -> None:
    node = Node(costs(0, 10), usage=costs(8, 4), interval=(0, 2))
    found = solve(Problem([node, node], [], limit=7))
    assert (found.status, found.memory_bound, found.choice) == ("infeasible", 8, ())


def test_infeasible_by_forbidden_pairs_names_no_memory() -> None:
    edge = Edge(0, 1, np.full((2, 2), FORBIDDEN))
    found = solve(Problem([Node(costs(0, 1))] * 2, [edge], limit=10))
    assert (found.status, found.memory_bound) == ("infeasible", None)


def test_forbidden_cycle_without_arc_inconsistency_is_proven_infeasible() -> None:
    differ = np.where(np.eye(2, dtype=bool), FORBIDDEN, 0)
    problem = Problem([Node(costs(0, 0))] * 3, [Edge(0, 1, differ), Edge(1, 2, differ), Edge(0, 2, differ)])
    assert {solve(problem, solver=s).status for s in SOLVERS} == {"infeasible"}


def test_presolve_merges_parallel_edges_and_dissolves_separable_ones() -> None:
    link = np.array([[0, 5], [7, 1]])
    separable = np.array([[0, 3], [2, 5]])
    reduced = presolve(Problem([Node(costs(0, 0))] * 2, [Edge(0, 1, link), Edge(1, 0, -link.T), Edge(0, 1, separable)]))
    assert (reduced.nodes, reduced.offset) == ((), 0)


def test_dominance_respects_memory() -> None:
    cheap_but_large = Node(costs(0, 5), usage=costs(10, 1), interval=(0, 1))
    small = presolve(Problem([cheap_but_large] * 2, [], limit=15))
    assert [small.size(v) for v in range(len(small.nodes))] == [2, 2]
    assert presolve(Problem([cheap_but_large] * 2, [], limit=20)).nodes == ()


def test_equal_links_are_eliminated_once() -> None:
    """The work must not grow with depth beyond what differs: the messages along a chain reach a fixed point."""
    work = []
    for length in (40, 400):
        lagrangian = Lagrangian(presolve(chain(length, 12), prune=False))
        lagrangian.evaluate({}, {})
        work.append(lagrangian.store.misses)
    assert work[1] <= work[0] + 5


def test_costs_beyond_float64_give_a_valid_bound() -> None:
    huge = 10**17 + 1
    problem = Problem(
        [Node(costs(huge, huge + 1)), Node(costs(huge + 2, huge))], [Edge(0, 1, np.array([[1, 3], [5, 9]]))]
    )
    reference = brute_force(problem)
    found = solve(problem)
    assert found.cost is not None
    assert reference.cost is not None
    assert found.bound <= reference.cost <= found.cost


def test_tables_above_the_cap_are_refused_and_left_to_the_ilp() -> None:
    rng = np.random.default_rng(1)
    count = 7
    problem = Problem(
        [Node(rng.integers(0, 9, 4)) for _ in range(count)],
        [Edge(u, v, rng.integers(0, 9, (4, 4))) for u in range(count) for v in range(u + 1, count)],
    )
    reduced = presolve(problem)
    with pytest.raises(TooLarge, match="eliminating"):
        Lagrangian(reduced, store=TableStore(size_cap=100)).evaluate({}, {})
    reference = brute_force(problem)
    for backend in ("cp-sat", "highs"):
        found = solve_ilp(reduced, time_limit=30.0, backend=backend)
        assert found.choice is not None
        assert reduced.cost(found.choice) == reference.cost
        assert found.bound <= reference.cost  # type: ignore[operator]  # feasible by construction


def test_every_choice_forbidden_is_infeasible_in_presolve() -> None:
    with pytest.raises(Infeasible):
        presolve(Problem([Node(costs(FORBIDDEN))], []))


def test_progress_is_reported() -> None:
    lines: list[str] = []
    solve(chain(5, 3), progress=lines.append)
    assert lines
