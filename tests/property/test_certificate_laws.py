"""Laws of certificates: whatever multipliers a proof carries, what the checker makes of it is a bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.search.brute import brute_force
from planner.search.certificates.certificate import Certificate, Leaf, Messages, Proof, Split, problem_digest
from planner.search.certificates.certify import certify
from planner.search.certificates.file import read_certificate, write_certificate
from planner.search.checks.check import check, proven_bound
from planner.search.checks.dual import Refused
from planner.search.evaluate import evaluate
from planner.search.problem import Problem
from tests.property.random_problems import random_problem

BATCH = 150


def random_leaf(rng: np.random.Generator, problem: Problem) -> Leaf:
    """Anything a leaf may say: prices at any instants, an order of some nodes, messages between those left."""
    denominator = int(rng.choice([1, 2, 7, 1000]))
    top = int(rng.choice([1, 100, 10**6])) * denominator
    prices = ()
    if problem.limit is not None:
        instants = rng.choice(10, int(rng.integers(0, 5)), replace=False)
        prices = tuple((int(t), int(rng.integers(0, top))) for t in instants)
    count = len(problem.nodes)
    order = tuple(int(v) for v in rng.permutation(count)[: int(rng.integers(0, count + 1))])
    pairs = sorted({(e.u, e.v) for e in problem.edges if e.u not in order and e.v not in order})
    messages = None
    if pairs and rng.random() < 0.8:
        messages = Messages(
            tuple(pairs),
            tuple(rng.integers(-top, top, len(problem.nodes[u].costs)) for u, _ in pairs),
            tuple(rng.integers(-top, top, len(problem.nodes[v].costs)) for _, v in pairs),
        )
    return Leaf(denominator, prices, order, messages)


def random_proof(rng: np.random.Generator, problem: Problem) -> Proof:
    """A leaf, or a split into two or three parts that may overlap, split again at times."""
    items: list[Leaf | Split] = []

    def grow(depth: int) -> int:
        place = len(items)
        items.append(random_leaf(rng, problem))
        if depth and rng.random() < 0.7:
            node = int(rng.integers(len(problem.nodes)))
            size = len(problem.nodes[node].costs)
            owner = rng.integers(0, 3, size)
            parts = [np.flatnonzero((owner == k) | (rng.random(size) < 0.2)) for k in range(3)]
            children = tuple(grow(depth - 1) for _ in parts)
            items[place] = Split(node, tuple(tuple(p.tolist()) for p in parts), children)
        return place

    grow(2)
    return tuple(items)


@pytest.mark.parametrize("number", range(4))
def test_any_multipliers_give_a_lower_bound(number: int) -> None:
    for k in range(BATCH):
        rng = np.random.default_rng((21, number, k))
        problem = random_problem(rng)
        reference = brute_force(problem)
        bound = proven_bound(problem, random_proof(rng, problem))
        if bound is None:
            assert reference.status == "infeasible", (number, k)
        elif reference.cost is not None:
            assert bound <= reference.cost, (number, k)


@pytest.mark.parametrize("number", range(2))
def test_eliminating_every_node_without_a_limit_gives_the_optimum(number: int) -> None:
    for k in range(BATCH):
        rng = np.random.default_rng((22, number, k))
        problem = replace(random_problem(rng), limit=None)
        order = tuple(int(v) for v in rng.permutation(len(problem.nodes)))
        assert proven_bound(problem, (Leaf(order=order),)) == brute_force(problem).cost, (number, k)


def test_numbers_beyond_64_bits_are_added_up_exactly() -> None:
    for k in range(60):
        rng = np.random.default_rng((23, k))
        problem = replace(random_problem(rng), limit=None)
        order = tuple(range(len(problem.nodes)))
        exact = proven_bound(problem, (Leaf(order=order),))
        assert proven_bound(problem, (Leaf(denominator=2**62, order=order),)) == exact, k


def test_leaves_without_costs_only_refute_what_cannot_be() -> None:
    refuted = 0
    for k in range(400):
        rng = np.random.default_rng((24, k))
        problem = random_problem(rng)
        leaf = replace(random_leaf(rng, problem), costs=False)
        try:
            bound = proven_bound(problem, (leaf,))
        except Refused:
            continue
        assert bound is None
        assert brute_force(problem).status == "infeasible", k
        refuted += 1
    assert refuted > 10


@pytest.mark.parametrize("number", range(10))
def test_proofs_that_we_build_reach_the_optimum_or_show_that_there_is_none(number: int) -> None:
    for k in range(BATCH):
        problem = random_problem(np.random.default_rng((26, number, k)))
        reference = brute_force(problem)
        proof = certify(problem, cost=reference.cost, prices={})
        assert proven_bound(problem, proof) == reference.cost, (number, k)


def test_proofs_by_messages_are_bounds_and_often_the_optimum() -> None:
    reached = 0
    for k in range(BATCH):
        rng = np.random.default_rng((27, k))
        problem = random_problem(rng)
        reference = brute_force(problem)
        prices = {int(t): float(rng.random()) for t in rng.integers(0, 8, 3)}
        bound = proven_bound(problem, certify(problem, cost=reference.cost, prices=prices, narrow=False))
        assert bound is None or reference.cost is None or bound <= reference.cost, k
        reached += bound == reference.cost
    assert reached > BATCH / 3


def test_certificates_survive_a_file(tmp_path: Path) -> None:
    for k in range(BATCH):
        rng = np.random.default_rng((28, k))
        problem = random_problem(rng)
        proof = random_proof(rng, problem) if k % 2 else certify(problem, cost=brute_force(problem).cost, prices={})
        digest = problem_digest(problem)
        path = tmp_path / ("c.json" if k % 3 else "c.json.gz")
        write_certificate(Certificate(digest, None, None, 0, proof), path)
        read = read_certificate(path)
        assert (read.problem, read.choice, read.cost, read.bound) == (digest, None, None, 0)
        assert proven_bound(problem, read.proof) == proven_bound(problem, proof), k
        before = path.read_bytes()
        write_certificate(read, path)
        assert path.read_bytes() == before


def test_what_is_tampered_with_is_refused() -> None:
    seen: set[str] = set()
    for k in range(200):
        rng = np.random.default_rng((25, k))
        problem = replace(random_problem(rng), limit=None)
        found = brute_force(problem)
        if found.cost is None or len(problem.nodes) < 2:
            continue
        order = tuple(range(len(problem.nodes)))
        true = Certificate(problem_digest(problem), found.choice, found.cost, found.cost, (Leaf(order=order),))
        assert check(problem, true).optimal, k
        size = len(problem.nodes[0].costs)
        lacking = (Split(0, (tuple(range(size - 1)),), (1,)), Leaf(order=order))
        other = next((c for c in _neighbours(problem, found.choice)), None)
        tampered = {
            "cost": replace(true, cost=found.cost - 1),
            "bound": replace(true, bound=found.cost + 1),
            "no bound": replace(true, bound=None),
            "length": replace(true, choice=found.choice[1:]),
            "state": replace(true, choice=(size, *found.choice[1:])),
            "tree": replace(true, proof=lacking),
            "loop": replace(true, proof=(Split(0, (tuple(range(size)),), (0,)),)),
            "orphan": replace(true, proof=(*true.proof, Leaf())),
            "shared": replace(
                true, proof=(Split(0, (tuple(range(size)), tuple(range(size))), (1, 1)), Leaf(order=order))
            ),
            "empty": replace(true, proof=()),
            "twice": replace(true, proof=(Leaf(order=(*order, 0)),)),
            "beyond": replace(true, proof=(Leaf(order=(len(order),)),)),
            "denominator": replace(true, proof=(Leaf(denominator=0, order=order),)),
            "prices": replace(true, proof=(Leaf(prices=((0, 1),), order=order),)),
            "digest": replace(true, problem="0" * 32),
        }
        if other is not None:
            tampered["choice"] = replace(true, choice=other)
        for name, certificate in tampered.items():
            assert not check(problem, certificate).accepted, (k, name)
            seen.add(name)
    assert "choice" in seen


def _neighbours(problem: Problem, choice: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Choices that differ in one state and in cost."""
    cost = evaluate(problem, choice)
    for v, node in enumerate(problem.nodes):
        for x in range(len(node.costs)):
            changed = (*choice[:v], x, *choice[v + 1 :])
            if evaluate(problem, changed) != cost:
                yield changed


def test_a_negative_price_is_refused() -> None:
    problem = random_problem(np.random.default_rng(3))
    with pytest.raises(Refused, match="negative"):
        proven_bound(replace(problem, limit=0), (Leaf(prices=((0, -1),)),))
