"""The portfolio: its answers are valid, its bounds hold, it stops when told, and equal work gives equal answers."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from planner.native.forest import Forest
from planner.search.brute import brute_force
from planner.search.control import Control, Report
from planner.search.evaluate import evaluate
from planner.search.large import solve_large
from planner.search.large.core import flatten
from planner.search.large.exact import Evaluator
from planner.search.large.helper import Helper
from planner.search.large.incumbent import Incumbent
from planner.search.large.primal import Primal
from planner.search.large.workers import Team
from planner.search.problem import FORBIDDEN, Edge, Node, Problem, Solution
from planner.search.reduction.contract import contract
from planner.search.reduction.reduced import Infeasible
from planner.search.saved.instance import read_instance
from planner.search.solve import solve
from tests.property.random_problems import random_problem
from tests.unit.layered_problems import layered_problem

INSTANCES = Path(__file__).parents[3] / "shared" / "iopddl"


def judged(problem: Problem, found: Solution) -> Solution:
    """`found`, after checking all that it claims of itself."""
    if found.cost is None:
        assert found.status in ("infeasible", "unknown")
        assert found.choice == ()
    else:
        assert evaluate(problem, found.choice) == found.cost
        assert found.bound <= found.cost
        assert found.status == ("optimal" if found.bound == found.cost else "feasible")
    return found


@pytest.mark.parametrize("block", range(10))
def test_small_problems_are_solved_as_by_enumeration(block: int) -> None:
    for seed in range(25 * block, 25 * (block + 1)):
        problem = random_problem(np.random.default_rng(seed), most_choices=20_000)
        truth = brute_force(problem)
        found = judged(problem, solve_large(problem, Control(), seed=seed))
        assert (found.status, found.cost) == (truth.status, truth.cost), seed


@pytest.mark.parametrize("seed", range(30))
def test_contraction_keeps_the_optimum(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), most_nodes=7, most_states=4, most_choices=20_000)
    truth = brute_force(problem)
    try:
        contracted = contract(problem)
    except Infeasible:
        assert truth.status == "infeasible"
        return
    reduced = contracted.reduced
    best = None
    for index in np.ndindex(*(len(s) for s in reduced.states)):
        cost, full = reduced.cost(index), contracted.restore(index)
        priced = evaluate(problem, full)
        fits = np.isfinite(cost) and not (reduced.usage(index) > reduced.limits).any()
        assert (priced is not None) == bool(fits)
        if priced is not None:
            assert cost * reduced.scale <= priced <= (cost + len(problem.nodes) + len(problem.edges)) * reduced.scale
            best = priced if best is None else min(best, priced)
    assert best == truth.cost


@pytest.mark.parametrize("room", [0.1, 0.7])
@pytest.mark.parametrize("seed", range(2))
def test_layered_problems_come_close_to_the_optimum(seed: int, room: float) -> None:
    problem = layered_problem(seed, layers=6, width=3, states=4, room=room)
    exact = solve(problem)
    assert exact.status == "optimal"
    assert exact.cost is not None
    found = judged(problem, solve_large(problem, Control(), seed=seed))
    assert found.cost is not None
    assert found.bound <= exact.cost <= found.cost <= 1.01 * exact.cost


def test_a_long_chain_of_blocks_has_a_small_gap() -> None:
    problem = layered_problem(5, layers=120, width=5, states=12, room=0.25)
    found = judged(problem, solve_large(problem, Control()))
    assert found.cost is not None
    assert found.bound >= 0.95 * found.cost


def test_contraction_merges_what_must_follow() -> None:
    problem = layered_problem(1, layers=20)
    reduced = contract(problem).reduced
    assert len(reduced.nodes) <= len(problem.nodes) - 20
    assert all(np.isfinite(reduced.arrays[f.costs]).all() for _, _, f in reduced.edges)


@pytest.mark.parametrize("shape", ["star", "chain", "tree"])
def test_renamed_copies_merge_into_one_node(shape: str) -> None:
    rng = np.random.default_rng(0)
    count, d = 2000, 4
    nodes = [Node(rng.integers(0, 9, d), rng.integers(0, 9, d), (v, v + 2)) for v in range(count)]
    parent = {"star": lambda v: 0, "chain": lambda v: v - 1, "tree": lambda v: (v - 1) // 2}[shape]
    renamed = [np.where(np.eye(d, dtype=bool)[rng.permutation(d)], 1, FORBIDDEN) for _ in range(24)]
    edges = [Edge(parent(v), v, renamed[v % 24]) for v in range(1, count)]
    problem = Problem(nodes, edges, 10 * count)
    found = contract(problem)
    assert not found.reduced.nodes, "the four choices there are differ in cost alone"
    full = found.restore(())
    best = min(evaluate(problem, c) or FORBIDDEN for c in _followers(edges, count, d))
    assert evaluate(problem, full) == found.reduced.offset == best


def _followers(edges: list[Edge], count: int, states: int) -> list[list[int]]:
    """All allowed choices, each from the state of node 0."""
    choices = [[i] + [0] * (count - 1) for i in range(states)]
    for edge in edges:
        for choice in choices:
            choice[edge.v] = int(edge.costs[choice[edge.u]].argmin())
    return choices


def test_a_node_without_an_allowed_state_is_found_while_copies_merge() -> None:
    barred = Node(np.array([FORBIDDEN, FORBIDDEN]))
    copies = Edge(0, 1, np.array([[0, FORBIDDEN], [FORBIDDEN, 0]]))
    with pytest.raises(Infeasible):
        contract(Problem([barred, Node(np.zeros(2, np.int64))], [copies]))


def test_the_best_choice_of_the_dual_is_what_its_best_prices_decode_to(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layered_problem(4, layers=8, width=3, states=5, room=0.2)
    team = Team(Incumbent(problem, Control(), contract(problem)), 0)
    dual, decoded = team.dual, []
    decode = dual.messages.decoded
    monkeypatch.setattr(dual.messages, "decoded", lambda *a: decoded.append(decode(*a)) or decoded[-1])
    improved, exact = 0, solve(problem)
    assert exact.cost is not None
    for _ in range(80):
        prices, best = dual.prices.copy(), dual.best_bound
        team.advance_dual()
        if dual.best_bound > best:
            improved += 1
            expected = prices, decoded[-1].copy()
        assert np.array_equal(dual.best_prices, expected[0])
        assert np.array_equal(dual.best_choice, expected[1])
        assert best <= dual.best_bound <= exact.cost
    assert 1 < improved < 80


def test_annealing_that_is_stopped_hands_in_what_it_found() -> None:
    problem = layered_problem(4, layers=8, width=3, states=5, room=0.9)
    reduced = contract(problem).reduced
    forest = Forest(flatten(reduced, 1e12), np.zeros(len(reduced.nodes), np.int64), 0)
    found: list[float] = []
    calls = iter([False, False, True])
    primal = Primal(forest, 0, lambda: next(calls, True), lambda f: found.append(f.best_cost))
    primal.anneal(forest.x.copy(), np.zeros(len(reduced.limits)))
    assert found
    assert found[-1] == forest.best_cost


def test_equal_seeds_give_equal_answers() -> None:
    problem = layered_problem(7, layers=6, width=3, states=6, room=0.2)
    first, second = (solve_large(problem, Control(), seed=3) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("limit", [0.05, 1.0])
def test_the_time_limit_is_kept(limit: float) -> None:
    problem = layered_problem(2, layers=400, width=6, states=12, room=0.2)
    begin = time.monotonic()
    judged(problem, solve_large(problem, Control(limit)))
    assert time.monotonic() - begin < limit + 10.0, "one second, on a machine that is not loaded"


def test_cancelling_returns_the_best_so_far() -> None:
    problem = layered_problem(3, layers=300, width=6, states=12, room=0.2)
    cancel, heard = threading.Event(), threading.Event()
    control = Control(60.0, cancel, report=lambda step: heard.set() if step.incumbent is not None else None)
    answers: list[Solution] = []
    thread = threading.Thread(target=lambda: answers.append(solve_large(problem, control)))
    thread.start()
    assert heard.wait(30.0)
    cancel.set()
    thread.join(2.0)
    assert not thread.is_alive()
    assert judged(problem, answers[0]).cost is not None


def test_cancelling_ends_the_integer_program_without_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no limit in time waits for it, as long as it takes."""
    waits, ended = threading.Event(), threading.Event()

    class Endless:
        def wait(self) -> None:
            waits.set()
            ended.wait(30)

        def end(self) -> None:
            ended.set()

    def start_program(self: Team) -> None:
        self.helper = cast(Helper, Endless())

    monkeypatch.setattr(Team, "start_program", start_program)
    control = Control()
    found: list[Solution] = []
    problem = layered_problem(3, layers=60, width=5, states=10, room=0.2)
    search = threading.Thread(target=lambda: found.append(solve_large(problem, control)), daemon=True)
    search.start()
    assert waits.wait(60)
    begin = time.monotonic()
    control.cancel.set()
    search.join(20)
    assert not search.is_alive()
    assert time.monotonic() - begin < 10
    judged(problem, found[0])


def test_bounds_and_choices_are_reported_as_they_come() -> None:
    problem = layered_problem(4, layers=60, width=5, states=10, room=0.2)
    steps = []
    solve_large(problem, Control(2.0, report=steps.append))
    costs = [s.incumbent for s in steps if s.incumbent is not None]
    bounds = [s.bound for s in steps if s.bound is not None]
    assert costs == sorted(costs, reverse=True)
    assert bounds == sorted(bounds)
    assert len(set(bounds)) > 1


class TestDegenerate:
    @staticmethod
    def test_no_nodes() -> None:
        assert solve_large(Problem([], []), Control()).cost == 0

    @staticmethod
    def test_isolated_nodes_without_limit() -> None:
        problem = Problem([Node(np.array([3, 1, 2])), Node(np.array([7]))], [])
        assert solve_large(problem, Control()) == Solution("optimal", (1, 0), 8, 8, "portfolio")

    @staticmethod
    def test_no_memory_at_all() -> None:
        nodes = [Node(np.array([1, 5]), np.array([8, 0]), (0, 2)), Node(np.array([1, 9]), np.array([4, 0]), (1, 1))]
        found = solve_large(Problem(nodes, [], 0), Control())
        assert (found.status, found.choice) == ("optimal", (1, 0))  # an empty interval holds nothing

    @staticmethod
    def test_too_little_memory() -> None:
        nodes = [Node(np.array([1, 5]), np.array([8, 3]), (0, 2)), Node(np.array([1, 9]), np.array([4, 2]), (1, 3))]
        found = solve_large(Problem(nodes, [], 4), Control())
        assert (found.status, found.memory_bound) == ("infeasible", 5)

    @staticmethod
    def test_every_pair_forbidden() -> None:
        nodes = [Node(np.array([1, 5])), Node(np.array([2, 3]))]
        edge = Edge(0, 1, np.full((2, 2), FORBIDDEN))
        assert solve_large(Problem(nodes, [edge]), Control()).status == "infeasible"

    @staticmethod
    def test_edges_that_hold_memory() -> None:
        rng = np.random.default_rng(0)
        nodes = [Node(rng.integers(0, 9, 3), rng.integers(0, 9, 3), (k, k + 2)) for k in range(6)]
        edges = [
            Edge(u, v, rng.integers(0, 9, (3, 3)), rng.integers(0, 9, (3, 3)), (u, v + 1))
            for u in range(6)
            for v in range(u + 1, 6)
        ]
        problem = Problem(nodes, edges, 60)
        truth = brute_force(problem)
        assert solve_large(problem, Control()).cost == truth.cost

    @staticmethod
    def test_without_kernels_the_exact_solvers_answer(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(import_module("planner.search.large.portfolio"), "library", lambda: None)
        said: list[str] = []
        problem = layered_problem(0, layers=3)
        found = solve_large(problem, Control(say=said.append))
        assert found.cost == solve(problem).cost
        assert any("kernels are missing" in line for line in said)


@pytest.mark.parametrize("seed", range(40))
def test_the_flat_evaluator_agrees_with_the_independent_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    quick = Evaluator(problem)
    for _ in range(20):
        choice = [int(rng.integers(len(node.costs))) for node in problem.nodes]
        assert quick(choice) == evaluate(problem, choice)


def test_the_flat_evaluator_adds_beyond_64_bits() -> None:
    nodes = [Node(np.array([FORBIDDEN - 1]), np.array([2**62]), (0, 2)) for _ in range(20)]
    assert Evaluator(Problem(nodes, [], 20 * 2**62))([0] * 20) == 20 * (FORBIDDEN - 1)
    assert Evaluator(Problem(nodes, [], 20 * 2**62 - 1))([0] * 20) is None


@pytest.mark.corpus
@pytest.mark.skipif(not INSTANCES.exists(), reason="the published instances do not lie beside the checkout")
@pytest.mark.parametrize("letter", "GS")
def test_published_instances(letter: str) -> None:
    problem = read_instance(INSTANCES / f"asplos-2025-iopddl-{letter}.json.gz")
    control = Control(120.0)  # far more than it takes: the machine may be busy

    def enough(report: Report) -> None:
        if report.gap is not None and report.gap <= 0.2:
            control.cancel.set()

    control.report = enough
    found = judged(problem, solve_large(problem, control))
    assert found.cost is not None
    assert found.bound >= 0.8 * found.cost


def test_an_unmeetable_limit_is_no_crash() -> None:
    problem = layered_problem(6, layers=30, room=0.0)
    found = judged(problem, solve_large(replace(problem, limit=(problem.limit or 0) - 1), Control(2.0)))
    assert found.status == "infeasible"
