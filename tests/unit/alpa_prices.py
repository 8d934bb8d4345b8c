"""The prices of Alpa's solver prototype, and plans of its graphs under them: its own choice, and ours."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from planner.ir import DeviceMesh, Graph, Layout
from planner.lowering import lower
from planner.pricing import Machine, bind_rules, price
from planner.pricing.machine import IntArray
from planner.pricing.priced import PricedProblem
from planner.rules.strategy import Strategy
from planner.search.problem import FORBIDDEN, Edge, Problem
from planner.search.solve import solve
from tests.unit.alpa_prototype import Case, graph_of
from tests.unit.known import INFERENCE, Found, Links

__all__ = ["PENALTY", "PrototypeLinks", "best", "chosen", "links_of", "penalties"]

# What a parameter that every device holds whole costs the prototype: no cost of any machine.
PENALTY = 2
NEVER = 1e9


@dataclass(frozen=True)
class PrototypeLinks(Links):
    """Whole numbers but for the offset; an all-to-all of B bytes counts as 1.5 (n - 1) / n² B."""

    all_gather: float | None = None  # what every one costs, whatever its size

    def cost(self, kind: str, axis: int, size: float) -> float:
        n = self.shape[axis]
        if kind == "all_gather" and self.all_gather is not None:
            return self.all_gather
        factor, offset = {
            "all_reduce": (2 * (n - 1) / n, 0.01),
            "all_gather": ((n - 1) / n, 0.1),
            "reduce_scatter": ((n - 1) / n, 0.001),
            "all_to_all": (1.5 * (n - 1) / n**2, 0.001),
            "permute": (1, 0.0),
        }[kind]
        return int(self.alpha[axis] + self.beta[axis] * factor * size) + offset


def links_of(case: Case) -> PrototypeLinks:
    return PrototypeLinks(case.mesh, case.alpha, case.beta, all_gather=case.all_gather)


def penalties(found: Found) -> float:
    """What the prototype adds to the price of the program."""
    return PENALTY * sum(set(x) <= set("[_,]") for x in found.stored.values())


@dataclass(frozen=True)
class PrototypeMachine(Machine):
    """Prices collectives by the prototype; one over two axes as the cheapest way along one after the other."""

    links: PrototypeLinks = field(default_factory=lambda: PrototypeLinks((1, 1)))

    def collective(self, kind: str, axes: tuple[str, ...], group_bytes: ArrayLike, share: ArrayLike = 1.0) -> IntArray:
        numbers = [self.mesh.names.index(a) for a in axes if self.mesh.sizes[a] > 1]
        sizes = np.asarray(group_bytes, dtype=np.float64)
        found = [min(self._along(kind, numbers, float(s))) if s else 0.0 for s in sizes.flat]
        return self._units(np.array(found).reshape(sizes.shape))

    def _along(self, kind: str, axes: list[int], size: float) -> Iterator[float]:
        for order in itertools.permutations(axes):
            yield self._in_turn(kind, order, size)
            if kind == "all_reduce" and len(order) == 2:
                there, back = (self.links.cost(k, order[0], size) for k in ("reduce_scatter", "all_gather"))
                yield there + self.links.cost(kind, order[1], size / self.links.shape[order[0]]) + back

    def _in_turn(self, kind: str, order: tuple[int, ...], size: float) -> float:
        """A gather in reverse: its last step has the whole result."""
        total = 0.0
        for axis in order:
            total += self.links.cost(kind, axis, size)
            if kind in ("all_gather", "reduce_scatter"):
                size /= self.links.shape[axis]
        return total


def chosen(case: Case) -> Found:
    """Alpa's choice: the cheapest plan that runs every instruction by the strategy that the case states for it.

    Without an edge that costs, no all-gather: the prototype knows no other way from one layout to the next, and we
    would all-reduce a slice and gather it where it all-reduces the whole.
    """
    links = links_of(case)
    return _solved(case, links if case.resharded else replace(links, all_gather=NEVER), pinned=True)


def best(case: Case) -> Found:
    """The search's own choice, bound only by what binds Alpa's: new parameters lie as the old ones, and what is forced
    to be replicated is."""
    return _solved(case, links_of(case), pinned=False)


def _solved(case: Case, links: PrototypeLinks, *, pinned: bool) -> Found:
    graph, tensors = graph_of(case)
    mesh = DeviceMesh.of(*case.mesh)
    rules, _ = bind_rules(graph)
    machine = PrototypeMachine(links.profile, mesh, INFERENCE, links=links)
    priced = price(graph, machine, rules, frozenset(), None)
    nodes = list(priced.problem.nodes)

    def pin(node: int, allowed: list[bool]) -> None:
        assert any(allowed), nodes[node].name
        nodes[node] = replace(nodes[node], costs=np.where(allowed, nodes[node].costs, FORBIDDEN))

    for name, node in priced.parameter_nodes.items():
        penalty = [PENALTY / machine.unit_s if x.is_replicated else 0 for x in priced.stored_layouts[name]]
        nodes[node] = replace(nodes[node], costs=nodes[node].costs + np.rint(penalty).astype(np.int64))
    for instruction in case.instructions:
        tensor = tensors.get(instruction.name, "")
        if not pinned and instruction.kind != "force_replicated":
            continue
        if tensor in priced.op_nodes:
            admits = _admits(case, instruction.name, mesh)
            pin(priced.op_nodes[tensor], [admits(s) for s in priced.tables[tensor].strategies])
        elif tensor in priced.parameter_nodes:
            wanted = _layout(case.axes(instruction.name) or (), mesh)
            pin(priced.parameter_nodes[tensor], [x == wanted for x in priced.stored_layouts[tensor]])
    edges = [*priced.problem.edges, *_aliases(case, tensors, priced, graph)]
    solution = solve(Problem(nodes, edges))
    assert solution.cost is not None, solution.status
    assignment = priced.decode(solution.choice)
    program = lower(graph, mesh, rules, frozenset(), assignment)
    layouts = {n: str(x) for n, x in assignment.stored.items()}
    gap = 1 - solution.bound / max(1, solution.cost)
    return Found(program, layouts, solution.cost * machine.unit_s, gap)


def _layout(axes: tuple[int, ...], mesh: DeviceMesh) -> Layout:
    return Layout(tuple((mesh.names[a],) if a >= 0 and mesh.shape[a] > 1 else () for a in axes))


def _sizes(layout: Layout | None, mesh: DeviceMesh) -> tuple[int, ...] | None:
    return None if layout is None else tuple(mesh.size(d) for d in layout.dims)


def _admits(case: Case, name: str, mesh: DeviceMesh) -> Callable[[Strategy], bool]:
    """Whether a strategy is the one that the case states for an instruction."""
    instruction = case.by_name[name]
    if instruction.kind == "dot":
        *parts, total = case.product(name)
        lhs, rhs, out = (_layout(axes, mesh) for axes in parts)
        pending = () if total < 0 or mesh.shape[total] == 1 else (mesh.names[total],)

        def same(s: Strategy) -> bool:
            (result,) = s.results
            assert result is not None
            return s.operands == (lhs, rhs) and result.dims == out.dims and result.partial_axes == pending

        return same
    tiles = case.tiles(name)
    if tiles is None:  # a reduction that follows its operand
        tiles = case.tiles(instruction.operands[0])
        return lambda s: (
            s.operands[0] is not None and not s.operands[0].partial and _sizes(s.operands[0], mesh) == tiles
        )
    return lambda s: s.results[0] is not None and not s.results[0].partial and _sizes(s.results[0], mesh) == tiles


def _aliases(case: Case, tensors: dict[str, str], priced: PricedProblem, graph: Graph) -> Iterator[Edge]:
    """Forbids that a parameter and its new value lie differently."""
    outputs = {n.name: i for i, n in enumerate(priced.problem.nodes) if n.name.startswith("output ")}
    for i, result in enumerate(case.results):
        if result not in case.updates:
            continue
        parameter = tensors[case.updates[result]]
        node = outputs[f"output {graph.outputs[i]}"]
        n = len(priced.stored_layouts[parameter])
        assert len(priced.problem.nodes[node].costs) == n
        apart = np.where(np.eye(n, dtype=bool), 0, FORBIDDEN)
        yield Edge(priced.parameter_nodes[parameter], node, apart)
