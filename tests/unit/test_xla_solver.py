"""The request of XLA's solver tests and its true optimum; the shardings XLA's propagation tests expect.

tests/golden/xla_solver.json (openxla/xla, Apache-2.0); docs/solver-oracles.md lists what is checked and what is not.
"""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.builder.graph import GraphBuilder
from planner.frontends import import_bytes
from planner.ir import Graph
from planner.search.brute import brute_force
from planner.search.certificates.certify import certify
from planner.search.checks.check import proven_bound
from planner.search.evaluate import evaluate, peak_memory
from planner.search.problem import FORBIDDEN, Edge, Node, Problem
from planner.search.solve import SolverName, solve
from tests.unit.known import INFERENCE, Found, Links, counts, inner_counts, planned

ORACLE = json.loads((Path(__file__).parents[1] / "golden" / "xla_solver.json").read_text())
REQUEST: dict[str, Any] = ORACLE["request"]


def request(*, constrained: bool) -> Problem:
    """XLA's request as a problem: a node's cost is computing plus communication, followers take their leader's state,
    aliased nodes no pair that `v` marks; without constraints all of that and the budget are left out."""
    sizes = REQUEST["s_len"]
    spans: list[tuple[int, int] | None] = []
    for v in range(REQUEST["num_nodes"]):
        alive = [t for t, nodes in enumerate(REQUEST["live"]) if v in nodes]
        assert not alive or alive == list(range(alive[0], alive[-1] + 1))
        spans.append((alive[0], alive[-1] + 1) if alive else None)
    nodes = [
        Node(np.array(c) + np.array(d), np.array(m), span)
        for c, d, m, span in zip(REQUEST["c"], REQUEST["d"], REQUEST["m"], spans, strict=True)
    ]
    edges = [
        Edge(u, v, np.array(r).reshape(sizes[u], sizes[v]))
        for (u, v), r in zip(REQUEST["E"], REQUEST["r"], strict=True)
    ]
    if not constrained:
        return Problem(nodes, edges, None)
    for (u, v), marks in zip(REQUEST["alias"], REQUEST["v"], strict=True):
        edges.append(Edge(u, v, np.where(np.array(marks).reshape(sizes[u], sizes[v]) > 0, FORBIDDEN, 0)))
    for v, leader in enumerate(REQUEST["s_follow"]):
        if leader >= 0:
            edges.append(Edge(v, leader, np.where(np.eye(sizes[v], dtype=bool), 0, FORBIDDEN)))
    return Problem(nodes, edges, REQUEST["memory_budget"])


@pytest.mark.parametrize("solver", ["auto", "dp", "ilp"])
def test_the_request_is_solved_to_its_true_optimum(solver: SolverName) -> None:
    found = solve(request(constrained=True), solver=solver)
    expected = ORACLE["bruteforce_optimum"]
    assert (found.status, found.cost, found.bound) == ("optimal", expected["cost"], expected["cost"])
    assert list(found.choice) == expected["strategy"]


def test_enumeration_and_the_certificate_agree_with_it() -> None:
    problem = request(constrained=True)
    expected = ORACLE["bruteforce_optimum"]
    assert brute_force(problem).cost == expected["cost"]
    valid = [x for x in product(*(range(n) for n in REQUEST["s_len"])) if evaluate(problem, x) is not None]
    assert len(valid) == expected["feasible_count"]
    assert proven_bound(problem, certify(problem, cost=expected["cost"], prices={})) == expected["cost"]


@pytest.mark.parametrize("case", ORACLE["evaluations"], ids=lambda c: "-".join(map(str, c["strategy"])))
def test_evaluations_name_the_same_costs_and_violations(case: dict[str, Any]) -> None:
    free, bound = request(constrained=False), request(constrained=True)
    choice = case["strategy"]
    assert evaluate(free, choice) == case["total"]
    violations = case.get("violations", [])
    assert (evaluate(bound, choice) is None) == bool(violations)
    if "comp" in case:
        parts = [[REQUEST[k][v][x] for v, x in enumerate(choice)] for k in ("c", "d")]
        assert [sum(p) for p in parts] == [case["comp"], case["comm"]]
    assert (peak_memory(bound, choice) > REQUEST["memory_budget"]) == ("memory" in violations)
    forbidden = {
        name: any(int(e.costs[choice[e.u], choice[e.v]]) >= FORBIDDEN for e in bound.edges[first:last])
        for name, first, last in (("alias", 2, 3), ("follower", 3, 4))
    }
    assert forbidden == {name: name in violations for name in forbidden}


def products(equation: str, *shapes: list[int], result: list[int]) -> Graph:
    """Products of inputs, one after the other: `ij,jk->ik` of the first two, that of the third, and so on."""
    g = GraphBuilder("products")
    names = [g.input(f"p{k}", shape) for k, shape in enumerate(shapes)]
    total = names[0]
    for name in names[1:]:
        total = g.add("Einsum", total, name, equation=equation)
    g.output(total, "y", result)
    return import_bytes(g.model().SerializeToString(), name="xla")


def splits(found: Found) -> list[dict[str, tuple[str, ...]]]:
    """Per product, the mesh axes that split each factor."""
    ops = [op for op in found.program.graph.ops if op.type in ("Einsum", "MatMul")]
    return [found.program.strategies[op.name].split for op in ops]


def spread(split: dict[str, tuple[str, ...]]) -> int:
    return sum(len(axes) for axes in split.values())


DOTS = {
    "DotLHSTwoNonContractingDims": products("bij,jk->bik", [4, 256, 64], [64, 32], result=[4, 256, 32]),
    "DotRHSTwoNonContractingDims": products("abi,abjk->ijk", [4, 256, 32], [4, 256, 4, 8], result=[32, 4, 8]),
    "DotTwoContractingDims": products("abi,abj->ij", [4, 256, 64], [4, 256, 32], result=[64, 32]),
}


@pytest.mark.parametrize("name", DOTS)
def test_a_product_is_split_over_both_axes_without_a_collective(name: str) -> None:
    """XLA expects rows on one axis and columns on the other; any such split that moves nothing is as good."""
    found = planned(DOTS[name], Links((2, 2), (1, 1), (0.01, 1)), INFERENCE)
    (split,) = splits(found)
    assert spread(split) == 2
    assert not counts(found)
    assert not inner_counts(found)
    assert found.objective == 0
    assert found.gap == 0


def test_of_two_products_the_one_all_reduce_is_on_the_cheap_axis() -> None:
    links = Links((2, 2), (1, 1), (0.01, 1))
    found = planned(products("ij,jk->ik", [64, 64], [64, 128], [128, 64], result=[64, 64]), links, INFERENCE)
    first, second = splits(found)
    assert all(spread(s) == 2 for s in (first, second))
    # without a collective, as with XLA's one all-reduce of 64 x 64 / 2 numbers on axis 0: never dearer
    assert found.objective <= links.cost("all_reduce", 0, 4 * 64 * 64 / 2)
    moved = [s.axes for c in found.program.redistributions() for s in c.steps if str(s.kind) == "all_reduce"]
    assert all(axes == (found.program.mesh.names[0],) for axes in moved)


@pytest.mark.parametrize(
    ("shape", "factors"),
    [((2, 2), 2), ((1, 4), 1), ((4, 1), 1), ((1, 8), 1)],
    ids=lambda x: str(x),
)
def test_a_product_uses_every_device(shape: tuple[int, int], factors: int) -> None:
    found = planned(products("ij,jk->ik", [64, 64], [64, 64], result=[64, 64]), Links(shape), INFERENCE)
    mesh = found.program.mesh
    (split,) = splits(found)
    used = [a for axes in split.values() for a in axes if mesh.sizes[a] > 1]
    assert len(used) == factors
    assert math.prod(mesh.sizes[a] for a in used) == mesh.devices
