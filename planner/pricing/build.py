"""The Problem of a graph on one mesh.

Nodes: every operator (states: its strategies); every parameter (states: the layouts it is stored in, with
its gradient and optimizer state); every tensor with several readers (states: see `hubs`); every output of the
graph (states: layouts without pending sums).  Inputs and constants (what is computed from constants alone
included) need no node: the loader delivers inputs in any layout, and every layout of a replica is a free slice.
Edges carry redistribution, forward and back.

Memory: parameters with their optimizer's state always, the rest as `memory` says.  What a node holds at further times
stands on an edge of its own, beside one that it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from planner.ir import Graph
from planner.pricing.cases import CasePrices, KnownRedistributions
from planner.pricing.machine import Machine
from planner.pricing.priced import PricedProblem, Reader
from planner.pricing.structure import Structure, structure_of
from planner.pricing.tables import Allowed
from planner.rules.rule import Rule
from planner.search.problem import Edge, Node, Problem

__all__ = ["PriceTables", "price"]


@dataclass(slots=True, eq=False)
class PriceTables:
    """Prices made once per distinct case of one graph on one mesh; `redistributions`: those of other graphs and meshes
    on the same profile, to be taken from and added to."""

    cases: CasePrices | None = None
    readers: Mapping[str, Sequence[Reader]] | None = None
    redistributions: KnownRedistributions | None = None


def price(
    graph: Graph,
    machine: Machine,
    rules: Mapping[str, Rule],
    active: frozenset[str],
    memory_limit: int | None,
    tables: PriceTables | None = None,
    allowed: Mapping[str, Allowed] | None = None,
) -> PricedProblem:
    """Problem of planning `graph` on the machine's mesh under `memory_limit` bytes per device (None: no limit).

    `rules` maps operator names to rules and `active` holds the tensors that carry a gradient.  `tables` keeps what
    does not depend on recomputation, for further Problems of the same graph, mesh and settings otherwise.  `allowed`:
    by operator, which of its strategies are needed; those that no operator of its class needs are not priced.
    """
    settings = machine.settings
    joined = machine.profile.framework.joins_kernels
    structure = structure_of(graph, rules, active, training=settings.training, joined=joined)
    variant = structure.variant(graph, recompute=settings.recompute)
    known = tables or PriceTables()
    if known.cases is None:
        known.cases = CasePrices(structure, machine, _by_class(structure, allowed or {}), known.redistributions)
    cases = known.cases
    if known.readers is None:
        known.readers = cases.readers()

    costs = [cases.node(*case) for case in variant.node_cases]
    held = [cases.held(case) for case in variant.held_cases]
    stored = {name: cases.stored(structure.cases[n]) for name, n in structure.parameter_nodes.items()}
    nodes = [Node(costs[c], None if h < 0 else held[h], interval, name) for name, c, h, interval in variant.nodes]
    for name, n in structure.parameter_nodes.items():
        nodes[n] = Node(nodes[n].costs, stored[name][1], (0, structure.end), name)
    moved = [cases.edge(*case) for case in variant.edge_cases]
    edges = [Edge(u, v, *moved[k], None if moved[k][1] is None else copied) for u, v, k, copied in variant.edges]
    for e, begins, h, interval in variant.further:
        u, v, k, _ = variant.edges[e]
        edges.append(Edge(u, v, *cases.beside(moved[k][0].shape, held[h], begins=begins), interval))
    hubs = {t: (n, cases.hub(case)) for t, (n, case) in structure.hubs.items()}
    return PricedProblem(
        graph,
        machine,
        rules,
        active,
        {name: cases.tables[c] for name, c in structure.class_of.items()},
        Problem(nodes, edges, memory_limit),
        structure.op_nodes,
        structure.parameter_nodes,
        {name: layouts for name, (layouts, _) in stored.items()},
        hubs,
        known.readers,
        structure.fixed,
        variant.blocks,
        partial(cases.of_tensor, graph),
    )


def _by_class(structure: Structure, allowed: Mapping[str, Allowed]) -> dict[int, list[Allowed]]:
    """Of the classes of which every operator says what it needs."""
    found: dict[int, dict[int, Allowed]] = {}
    whole = set()
    for name in structure.op_nodes:
        cls, way = structure.class_of[name], allowed.get(name)
        if way is None:
            whole.add(cls)
        else:
            found.setdefault(cls, {})[id(way)] = way
    return {cls: list(ways.values()) for cls, ways in found.items() if cls not in whole}
