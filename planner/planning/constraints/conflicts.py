"""Which pins contradict each other: a smallest set of them that leaves no plan, and what stands between them.

Memory and prices are left aside, so that every cost is 0 or forbidden and presolve alone decides nearly always.  The
set is found by QuickXplain (U. Junker, AAAI 2004): no pin of it can be dropped without a plan appearing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from planner.planning.constraints.masks import Demand
from planner.planning.constraints.resolve import Restriction
from planner.planning.constraints.select import counted
from planner.pricing import PricedProblem
from planner.pricing.hubs import SetHub
from planner.search.problem import FORBIDDEN, Edge, IntArray, Node, Problem
from planner.search.solve import solve
from planner.targets import NARROWED

__all__ = ["conflict", "smallest_conflict"]

MOST_SHOWN = 8
_STORED = (
    ", stored as every operator reads it or, by optimizer parallel, cut further along dimension 0 among all ranks that "
    "read equal parts"
)
T = TypeVar("T")


def smallest_conflict(items: Sequence[T], conflicting: Callable[[Sequence[T]], bool]) -> list[T]:
    """A subset that is `conflicting` while none of its own subsets is; `items` together must be, and the predicate must
    be monotone.  About k log(n / k) calls for k of n items."""

    def among(background: list[T], fresh: bool, rest: Sequence[T]) -> list[T]:
        if fresh and conflicting(background):
            return []
        if len(rest) <= 1:
            return list(rest)
        half = len(rest) // 2
        second = among([*background, *rest[:half]], True, rest[half:])
        first = among([*background, *second], bool(second), rest[:half])
        return [*first, *second]

    return [] if conflicting([]) else among([], False, items)


def conflict(priced: PricedProblem, demands: Sequence[Demand]) -> str | None:
    """The conflicting pins in words; None where they leave a plan, or where there is none without them either."""
    empty = _Feasible(priced)
    if not empty.conflicting(demands) or empty.conflicting([]):
        return None
    for part in (
        lambda d: d.restriction.where,
        lambda d: (d.restriction.kind, d.restriction.name, d.restriction.where),
    ):
        groups: dict[object, list[Demand]] = {}
        for d in demands:
            groups.setdefault(part(d), []).append(d)
        chosen = smallest_conflict(
            list(groups.values()), lambda some: empty.conflicting([d for group in some for d in group])
        )
        demands = [d for group in chosen for d in group]
    return _words(priced, list({id(d.restriction): d.restriction for d in demands}.values()), demands)


class _Feasible:
    """The problem with prices and memory left out."""

    def __init__(self, priced: PricedProblem) -> None:
        zeroed: dict[int, IntArray] = {}

        def bare(costs: IntArray) -> IntArray:
            if id(costs) not in zeroed:
                zeroed[id(costs)] = np.where(costs < FORBIDDEN, 0, FORBIDDEN)
            return zeroed[id(costs)]

        self.nodes = [bare(n.costs) for n in priced.problem.nodes]
        self.edges = [Edge(e.u, e.v, bare(e.costs)) for e in priced.problem.edges if bare(e.costs).any()]

    def conflicting(self, demands: Sequence[Demand]) -> bool:
        """Whether no choice is left."""
        nodes = list(self.nodes)
        for d in demands:
            nodes[d.node] = np.where(d.allowed, nodes[d.node], FORBIDDEN)
        if any(n.min() >= FORBIDDEN for n in nodes):
            return True
        return solve(Problem([Node(n) for n in nodes], self.edges)).status == "infeasible"


def _words(priced: PricedProblem, restrictions: Sequence[Restriction], demands: Sequence[Demand]) -> str:
    lines = [str(r) for r in restrictions[:MOST_SHOWN]]
    if len(restrictions) > MOST_SHOWN:
        lines.append(f"... and {len(restrictions) - MOST_SHOWN} more")
    return "\n  ".join((*lines, _between(priced, demands)))


def _between(priced: PricedProblem, demands: Sequence[Demand]) -> str:
    """What the pins share, and why it cannot be had both ways."""
    nodes = list(dict.fromkeys(d.node for d in demands))
    if len(nodes) == 1:
        return _alone(priced, nodes[0])
    shared = [t for t in priced.readers if sum(n in _around(priced, t) for n in nodes) > 1]
    if not shared:
        shared = _on_the_way(priced, nodes)
    parameters = [t for t in shared if t in priced.parameter_nodes]
    target = priced.machine.settings.target
    if parameters and target in NARROWED:
        users = counted(op.name for op, _ in priced.graph.consumers[parameters[0]])
        stored = _STORED if target == "mindspore" else " to compute with"
        return (
            f"they share parameter {counted(parameters)} (read by {users}), and the target {target} keeps a "
            f"parameter in one layout{stored}; make them agree, or choose another --target"
        )
    what = counted(f"{'parameter' if t in priced.parameter_nodes else 'tensor'} {t}" for t in shared)
    held = [t for t in shared if t in priced.hubs and priced.hubs[t][1].style == "set"]
    if held:
        hub = priced.hubs[held[0]][1]
        few = isinstance(hub, SetHub) and len(hub.states) < len(hub.reads) * (len(hub.reads) + 1) // 2
        alike = f" (on mesh {priced.machine.mesh}: layouts that differ on one axis)" if few else ""
        return f"they share {what}, which can be held in at most two layouts at once{alike}; make its readers agree"
    return f"they share {what or 'no tensor directly'}, which no redistribution brings from one to the other; drop one"


def _alone(priced: PricedProblem, node: int) -> str:
    operator = next((priced.graph.op(o) for o, n in priced.op_nodes.items() if n == node), None)
    if operator is not None:
        target = priced.machine.settings.target
        narrowed = f" that --target {target} can express" if target in NARROWED else ""
        return f"no strategy of operator {operator.name} ({operator.type}){narrowed} holds all of them; drop one"
    parameter = next((p for p, n in priced.parameter_nodes.items() if n == node), None)
    what = priced.problem.nodes[node].name if parameter is None else f"parameter {parameter}"
    return f"{what} lies in one layout, and none suits all of them; drop one"


def _around(priced: PricedProblem, tensor: str) -> set[int]:
    """Nodes of a tensor: where it comes from, and its readers."""
    nodes = {r.node for r in priced.readers[tensor]}
    if tensor in priced.parameter_nodes:
        nodes.add(priced.parameter_nodes[tensor])
    elif tensor in priced.graph.producers:
        nodes.add(priced.op_nodes[priced.graph.producers[tensor].name])
    return nodes


def _on_the_way(priced: PricedProblem, nodes: Sequence[int]) -> list[str]:
    """Tensors on the shortest way between the first two nodes."""
    import networkx as nx  # for this message alone

    ways = nx.Graph()
    for t in priced.readers:
        ways.add_edges_from((t, n) for n in _around(priced, t))
    try:
        return [x for x in nx.shortest_path(ways, nodes[0], nodes[1]) if isinstance(x, str)]
    except (nx.NetworkXNoPath, nx.NodeNotFound):
        return []
