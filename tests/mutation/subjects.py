"""What is mutated: small graphs on small meshes, under plans that split everything somehow.

A searched plan of a small graph is often nothing but data parallelism.  So the strategy of every operator is drawn at
random, and the solver finds the cheapest redistributions between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from planner.cost_models import load_profile
from planner.ir import DeviceMesh, Graph
from planner.lowering import Program, lower
from planner.pricing import Machine, PricedProblem, Settings, active_tensors, bind_rules, price
from planner.rules.rule import Rule
from planner.rules.strategy import Strategy
from planner.search.problem import FORBIDDEN
from planner.search.solve import solve
from tests.mutation.graphs import GRAPHS

__all__ = ["Subject", "planned", "subject"]

Prefer = Callable[[str, Strategy], bool]

_TRIES = 4


@dataclass(frozen=True, eq=False)
class Subject:
    """A program, and what it was made of."""

    name: str
    graph: Graph
    mesh: DeviceMesh
    program: Program
    training: bool
    recompute: bool
    seed: int


@cache
def subject(name: str, mesh: tuple[int, ...], seed: int, training: bool = True, recompute: bool = False) -> Subject:
    """The graph of that name under a plan drawn with `seed`."""
    graph = GRAPHS[name]()
    rules, _ = bind_rules(graph)
    training = training and bool(active_tensors(graph, rules))
    program = planned(graph, DeviceMesh.of(*mesh), rules, seed, training=training, recompute=recompute)
    assert program is not None, f"{name} on {mesh}: no plan was found"
    return Subject(name, graph, program.mesh, program, training, recompute, seed)


def planned(
    graph: Graph,
    mesh: DeviceMesh,
    rules: Mapping[str, Rule],
    seed: int,
    *,
    training: bool,
    recompute: bool = False,
    prefer: Prefer | None = None,
) -> Program | None:
    """A program of strategies drawn at random, of those that are `prefer`red where there are some; None where no
    redistributions join them."""
    settings = Settings(training, "fp32", recompute=recompute)
    active = active_tensors(graph, rules) if training else frozenset[str]()
    priced = price(graph, Machine(load_profile("alpha-beta"), mesh, settings), rules, active, None)
    rng = np.random.default_rng(seed)
    for attempt in range(_TRIES):
        solution = solve(replace(priced.problem, nodes=_drawn(priced, rng, prefer, share=1 - attempt / (_TRIES - 1))))
        if solution.choice:
            return lower(graph, mesh, rules, active, priced.decode(solution.choice))
    return None


def _drawn(priced: PricedProblem, rng: np.random.Generator, prefer: Prefer | None, share: float) -> list[object]:
    """The nodes, with one strategy left to a share of the operators; replication is drawn least."""
    nodes = list(priced.problem.nodes)
    for name, n in priced.op_nodes.items():
        costs = nodes[n].costs
        strategies = priced.tables[name].strategies
        allowed = np.flatnonzero(costs < FORBIDDEN)
        liked = [k for k in allowed if prefer is not None and prefer(name, strategies[k])]
        if not liked and rng.random() >= share:
            continue
        weights = np.array([1e-3 + sum(r.kind != "replicate" for r in strategies[k].roles) for k in allowed])
        k = rng.choice(liked) if liked else rng.choice(allowed, p=weights / weights.sum())
        nodes[n] = replace(nodes[n], costs=np.where(np.arange(len(costs)) == k, costs, FORBIDDEN))
    return nodes
