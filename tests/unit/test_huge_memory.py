"""Bytes beyond what float64 holds exactly: no valid choice is called infeasible, none that is not is proposed."""

from __future__ import annotations

import random

import numpy as np
import pytest

from planner.search.brute import brute_force
from planner.search.evaluate import evaluate
from planner.search.problem import Edge, Node, Problem
from planner.search.solve import SolverName, solve

SOLVERS: tuple[SolverName, ...] = ("auto", "dp", "ilp")


def chain(usages: list[list[int]], limit: int, seed: int = 0) -> Problem:
    rng = random.Random(seed)
    nodes = [
        Node(np.array([rng.randrange(50) for _ in held]), np.array(held, dtype=np.int64), (0, 2)) for held in usages
    ]
    edges = [
        Edge(v, v + 1, np.array([[rng.randrange(20) for _ in usages[v + 1]] for _ in usages[v]]))
        for v in range(len(usages) - 1)
    ]
    return Problem(nodes, edges, limit)


@pytest.mark.parametrize("solver", SOLVERS)
def test_what_fits_to_the_byte_is_not_called_infeasible(solver: SolverName) -> None:
    held = 2**59 + 65  # rounded up in float64
    found = solve(chain([[held]] * 3, 3 * held), solver=solver)
    assert found.status == "optimal"


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("seed", range(12))
def test_answers_agree_with_enumeration(solver: SolverName, seed: int) -> None:
    rng = random.Random(seed)
    usages = [[2**60 + rng.randrange(-2000, 2000) for _ in range(3)] for _ in range(4)]
    least, most = sum(map(min, usages)), sum(map(max, usages))
    problem = chain(usages, rng.randrange(least, most), seed)
    best = brute_force(problem)
    found = solve(problem, solver=solver)
    assert best.cost is not None
    assert found.status != "infeasible"
    assert found.bound <= best.cost
    if found.choice:
        assert evaluate(problem, found.choice) == found.cost
        assert found.cost is not None
        assert found.cost >= best.cost


def test_a_choice_with_room_to_spare_is_found() -> None:
    usages = [[2**60, 2**61], [2**60 + 1, 2**61]]
    found = solve(chain(usages, 2**61 + 2**20))
    assert found.choice == (0, 0)
