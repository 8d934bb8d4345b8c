"""Additive objectives that no step falls below, which makes the search's exact solvers bound the clock.

Of one step let A be what its passes through units take one after the other, P the seconds in which parameters are
gathered and their gradients summed, F those of the unit that runs first forward and last backward, U the update.
Exchanges run beside the passes, which they slow by the fraction i of their time (`collective_interference`), but for F:
nothing runs before the first weights are there, and nothing after the last gradients.  Both end no earlier than P.  So
for every s in [0, 1]

    step >= s (A + F + i (P - F)) + (1 - s) P + U + overhead

and a pass through a unit takes at least any mean of what its operators compute and what the host needs to start its
kernels.  Each choice of s and of these means gives an objective of the same nodes and edges as the search's own, with
other weights: its least value over all plans bounds the step of each, and the plan that has it is worth simulating.
This is the Lagrangian relaxation of the maxima that overlap consists of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.clock.bound import overhead
from planner.ir import Op
from planner.pricing import PricedProblem
from planner.search.problem import FORBIDDEN, Edge, IntArray, Node, Problem
from planner.trace.facts import facts_of
from planner.work.units import units_of

__all__ = [
    "Relaxation",
    "Scaled",
    "Weights",
    "busy",
    "held_up",
    "holders_of_weights",
    "relaxation",
    "rounding",
    "started",
]

Pass = tuple[int, bool]  # (unit, backward)


@dataclass(frozen=True, slots=True)
class Weights:
    """`passes`: the s of the module, in (0, 1]; `held_up`: the passes that take what the host needs; `between`: those
    in whose means computing weighs `computing`, in [0, 1]; all others take what they compute."""

    passes: float
    held_up: frozenset[Pass]
    between: frozenset[Pass] = frozenset()
    computing: float = 0.0

    def host(self, at: Pass) -> float:
        """How much what the host needs weighs in a pass."""
        return 1.0 if at in self.held_up else 1 - self.computing if at in self.between else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """`problem` has the nodes and edges of the search's own; a step takes at least its objective and `constant`."""

    problem: Problem
    constant: int

    def bound(self, least: int) -> int:
        """Of the step, where `least` bounds the objective of the problem."""
        return max(0, least + self.constant)


def interference(priced: PricedProblem) -> float:
    """The fraction of a collective's time by which it slows computing beside it."""
    return priced.machine.profile.framework.collective_interference


def started(priced: PricedProblem) -> dict[Pass, float]:
    """Units that the host needs for the kernels of each pass, where there are any."""
    machine, unit = priced.machine, units_of(priced.graph).of
    interval = machine.profile.host.dispatch_interval_s / machine.unit_s
    found: dict[Pass, float] = defaultdict(float)
    for name in priced.op_nodes:
        for backward, launches in enumerate(priced.tables[name].launches):
            if launches:
                found[unit[name], bool(backward)] += launches * interval
    return found


def busy(priced: PricedProblem, choice: Sequence[int]) -> dict[Pass, int]:
    """Units that the operators of each pass compute."""
    unit = units_of(priced.graph).of
    found: dict[Pass, int] = defaultdict(int)
    for name, node in priced.op_nodes.items():
        work = priced.tables[name].work
        found[unit[name], False] += int(work.forward[choice[node]])
        found[unit[name], True] += int(work.backward[choice[node]])
    return found


def held_up(priced: PricedProblem, choice: Sequence[int]) -> frozenset[Pass]:
    """The passes that the host holds up."""
    computed = busy(priced, choice)
    return frozenset(at for at, needed in started(priced).items() if computed[at] < needed)


def rounding(priced: PricedProblem) -> int:
    """Units that a price of every node and edge may differ by for being rounded."""
    return 2 * len(priced.problem.edges) + 4 * len(priced.op_nodes) + len(priced.parameter_nodes)


def relaxation(priced: PricedProblem, weights: Weights) -> Relaxation:
    """The objective of these weights.  Its entries are rounded down, and prices that the clock does not round may be
    less by a unit each, which the constant allows for."""
    s, i = weights.passes, interference(priced)
    exchange = 1 - s * (1 - i)
    nodes, edges = list(priced.problem.nodes), list(priced.problem.edges)
    moved = _scaled_edges(priced, edges, s, exchange)
    by_host = _replace_operators(priced, nodes, weights, i)
    problem = replace(priced.problem, nodes=nodes, edges=moved)
    return Relaxation(problem, int(s * by_host) - rounding(priced) + overhead(priced))


def _scaled_edges(priced: PricedProblem, edges: Sequence[Edge], s: float, exchange: float) -> list[Edge]:
    """Edges that begin at a parameter, at what is made of parameters alone, or at a hub of these are gathers and sums:
    of the unit whose operator they end at, and those to a hub of the first unit that reads it."""
    weights = facts_of(priced.graph).weights
    hubs = {node: name for name, (node, _) in priced.hubs.items() if name in weights}
    ends = holders_of_weights(priced)
    unit = units_of(priced.graph).of
    first = {node for name, node in priced.op_nodes.items() if unit[name] == 0}
    for node, name in hubs.items():
        if any(unit[op.name] == 0 for op, _ in priced.graph.consumers[name]):
            first.add(node)
    scaled = Scaled()

    def weight(e: Edge) -> float:
        if e.u not in ends:
            return s
        return 1.0 if e.v in first else exchange

    return [replace(e, costs=scaled.of(e.costs, weight(e))) for e in edges]


def holders_of_weights(priced: PricedProblem) -> set[int]:
    """Nodes of parameters and of what is made of parameters alone, from which edges are gathers of weights and sums of
    their gradients."""
    weights = facts_of(priced.graph).weights
    hubs = {node for name, (node, _) in priced.hubs.items() if name in weights}
    made = {priced.op_nodes[op.name] for op in priced.graph.ops if op.name in priced.op_nodes and _makes(op, weights)}
    return {*priced.parameter_nodes.values(), *hubs, *made}


def _makes(op: Op, weights: Collection[str]) -> bool:
    return all(t in weights for t in op.outputs if t)


class Scaled:
    """Arrays times a weight, rounded down; arrays are shared by many nodes and edges, and so are these."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, float], tuple[IntArray, IntArray]] = {}

    def of(self, costs: IntArray, weight: float) -> IntArray:
        if weight == 1.0:
            return costs
        key = id(costs), weight
        if key not in self.known:
            self.known[key] = costs, weighted(costs, costs * weight)
        return self.known[key][1]


def weighted(costs: IntArray, values: np.ndarray) -> IntArray:
    """The values rounded down, where the costs allow a state."""
    return np.where(costs >= FORBIDDEN, costs, np.floor(np.clip(values, 0.0, FORBIDDEN)).astype(np.int64))


def _replace_operators(priced: PricedProblem, nodes: list[Node], weights: Weights, i: float) -> float:
    """Reweighs operators in place; returns what the host needs for the passes that it holds up."""
    machine, unit = priced.machine, units_of(priced.graph).of
    interval = machine.profile.host.dispatch_interval_s / machine.unit_s
    by_host = 0.0
    made: dict[tuple[int, int, float, float, bool], tuple[object, IntArray]] = {}
    for name, number in priced.op_nodes.items():
        table, costs = priced.tables[name], nodes[number].costs
        host = weights.host((unit[name], False)), weights.host((unit[name], True))
        again = name in priced.blocks
        times = 2 if again else 1
        by_host += interval * (times * host[0] * table.launches[0] + host[1] * table.launches[1])
        key = id(table), id(costs), *host, again
        if key not in made:
            work = table.work
            own = times * (1 - host[0]) * work.forward + (1 - host[1]) * work.backward
            inner = times * work.inner_forward + work.inner_backward
            # Rings hide beside products: of them, what they slow is left.
            rings = any(c.kind == "permute" for c in table.rule.inner)
            made[key] = costs, weighted(costs, weights.passes * (own + (i if rings else 1.0) * inner))
        nodes[number] = replace(nodes[number], costs=made[key][1])
    return by_host
