"""The Problem of a graph on one mesh.

Nodes: every operator (states: its strategies); every parameter (states: the layouts it is stored in, with
its gradient and optimizer state); every tensor with several readers (states: see `hubs`); every output of the
graph (states: layouts without pending sums).  Inputs and constants (what is computed from constants alone
included) need no node: the loader delivers inputs in any layout, and every layout of a replica is a free slice.
Edges carry redistribution, forward and back.

Memory: parameters and what belongs to them always, activations as `memory` says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from planner.ir import Graph, Layout, Op, Reduction, Tensor
from planner.pricing.activity import fixed_operators, gradient_sources
from planner.pricing.hubs import MAX_SET_READERS, Read, SetHub, StarHub, direct_costs
from planner.pricing.machine import IntArray, Machine
from planner.pricing.memory import activation_memory, recomputed_blocks
from planner.pricing.operators import OperatorTable, operator_tables
from planner.pricing.priced import PricedProblem, Reader
from planner.redistribute import Redistributions
from planner.redistribute.steps import layouts_of
from planner.rules.rule import Rule
from planner.search.problem import FORBIDDEN, Edge, Node, Problem

__all__ = ["PriceTables", "price", "stored_layouts"]


def price(
    graph: Graph,
    machine: Machine,
    rules: Mapping[str, Rule],
    active: frozenset[str],
    memory_limit: int | None,
    tables: PriceTables | None = None,
) -> PricedProblem:
    """Problem of planning `graph` on the machine's mesh under `memory_limit` bytes per device (None: no limit).

    `rules` maps operator names to rules and `active` holds the tensors that carry a gradient.  `tables` keeps what
    does not depend on recomputation, for further Problems of the same graph, mesh and settings otherwise.
    """
    return _Builder(graph, machine, rules, active, tables or PriceTables()).build(memory_limit)


@dataclass(slots=True, eq=False)
class PriceTables:
    """Prices made once per distinct case of one graph on one mesh."""

    operators: dict[str, OperatorTable] = field(default_factory=dict)
    known: dict[object, Any] = field(default_factory=dict)


def stored_layouts(tensor: Tensor, machine: Machine) -> tuple[Layout, ...]:
    """Layouts a parameter may be stored in: any even split, axes of a dimension in mesh order, nothing pending."""
    order = {name: i for i, name in enumerate(machine.mesh.names)}
    return tuple(
        layout
        for layout in layouts_of(tensor.shape or (), machine.mesh)
        if not layout.partial and all(list(d) == sorted(d, key=order.__getitem__) for d in layout.dims)
    )


class _Builder:
    """Builds nodes and edges; arrays are made once per distinct case and shared by all layers that look alike."""

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        rules: Mapping[str, Rule],
        active: frozenset[str],
        tables: PriceTables,
    ) -> None:
        self.graph, self.machine, self.rules, self.active = graph, machine, rules, active
        self.training = machine.settings.training
        self.blocks = recomputed_blocks(graph) if machine.settings.recompute else {}
        self.end = 2 * len(graph.ops) + 1
        if not tables.operators:
            tables.operators = operator_tables(graph, rules, active, machine)
        self.tables = tables.operators
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self.op_nodes: dict[str, int] = {}
        self.parameter_nodes: dict[str, int] = {}
        self.stored: dict[str, tuple[Layout, ...]] = {}
        self.readers: dict[str, list[Reader]] = {}
        self.hubs: dict[str, tuple[int, SetHub | StarHub]] = {}
        self._memo = tables.known

    def build(self, memory_limit: int | None) -> PricedProblem:
        self.fixed = fixed_operators(self.graph)
        free = [op for op in self.graph.ops if op.name not in self.fixed]
        for op in free:
            self.op_nodes[op.name] = self._add(Node(self._op_costs(op), name=op.name))
        for t in self.graph.parameters:
            if t.name in self.graph.consumers:
                self._add_parameter(t)
        results = [o for op in free for o in op.outputs if o and self.graph.tensors[o].shape is not None]
        for name in [*self.parameter_nodes, *results]:
            self.readers[name] = self._readers_of(name)
            self._connect(self.graph.tensors[name])
        holdings = activation_memory(
            self.graph,
            self.machine,
            self.rules,
            self.active,
            self.tables,
            self.op_nodes,
            self.hubs,
            self.blocks,
        )
        for n, holding in holdings.items():
            self.nodes[n] = replace(self.nodes[n], usage=holding.usage, interval=holding.interval)
        self._renumber()
        return PricedProblem(
            self.graph,
            self.machine,
            self.rules,
            self.active,
            self.tables,
            Problem(self.nodes, self.edges, memory_limit),
            self.op_nodes,
            self.parameter_nodes,
            self.stored,
            self.hubs,
            self.readers,
            self.fixed,
            self.blocks,
            self._redistributions,
        )

    def _renumber(self) -> None:
        """Nodes in graph order, parameters before their first reader and hubs behind their producer: solvers that
        sweep over the nodes then carry information through the whole model at once."""
        position = {op.name: float(i) for i, op in enumerate(self.graph.ops)}
        key = [0.0] * len(self.nodes)
        for name, n in self.op_nodes.items():
            key[n] = position[name]
        for name, n in self.parameter_nodes.items():
            key[n] = min(position[op.name] for op, _ in self.graph.consumers[name]) - 0.5
        for name, readers in self.readers.items():
            producer = self.graph.producers.get(name)
            start = key[self.parameter_nodes[name]] if producer is None else position[producer.name]
            if name in self.hubs:
                key[self.hubs[name][0]] = start + 0.25
            for reader in readers:
                if not reader.name:  # an output of the graph
                    key[reader.node] = start + 0.3
        order = sorted(range(len(key)), key=lambda n: (key[n], n))
        new = {n: k for k, n in enumerate(order)}
        self.nodes = [self.nodes[n] for n in order]
        self.edges = [replace(e, u=new[e.u], v=new[e.v]) for e in self.edges]
        self.op_nodes = {name: new[n] for name, n in self.op_nodes.items()}
        self.parameter_nodes = {name: new[n] for name, n in self.parameter_nodes.items()}
        self.hubs = {name: (new[n], hub) for name, (n, hub) in self.hubs.items()}
        self.readers = {t: [replace(r, node=new[r.node]) for r in readers] for t, readers in self.readers.items()}

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _once(self, key: object, make: Callable[[], Any]) -> Any:
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def _times(self, op: str | None) -> int:
        """How often an operator runs forward."""
        return 2 if op in self.blocks else 1

    def _op_costs(self, op: Op) -> IntArray:
        table = self.tables[op.name]
        if self._times(op.name) == 1:
            return table.costs
        again = table.work.forward + table.work.inner_forward
        return self._once(("again", id(table)), lambda: np.minimum(table.costs + again, FORBIDDEN))

    def _redistributions(self, tensor: Tensor) -> Redistributions:
        size = self.machine.settings.tensor_bytes(tensor)
        reduction = Reduction.SUM
        producer = self.graph.producers.get(tensor.name)
        if producer is not None:
            writes = self.tables[producer.name].writes[producer.outputs.index(tensor.name)] or ()
            reduction = next((op for layout, _ in writes for _, op in layout.partial), Reduction.SUM)
        shape = tensor.shape or ()
        return self._once(
            ("redistributions", shape, size, reduction),
            lambda: Redistributions(shape, size, self.machine.mesh, self.machine, reduction),
        )

    # Parameters

    def _add_parameter(self, tensor: Tensor) -> None:
        trained = tensor.name in self.active

        def make() -> tuple[tuple[Layout, ...], IntArray, IntArray]:
            layouts = stored_layouts(tensor, self.machine)
            elements = tensor.elements // np.array([x.shards(self.machine.mesh) for x in layouts], dtype=np.int64)
            each = self.machine.settings.per_parameter
            if not (trained and tensor.is_float):
                width = self.machine.settings.tensor_bytes(tensor) // max(1, tensor.elements)
                return layouts, np.zeros_like(elements), elements * width
            own_copy = each.compute_copy if not each.master else 0
            stored = elements * (each.gradient + each.master + each.optimizer + own_copy)
            return layouts, self.machine.optimizer_update(elements), stored

        layouts, costs, usage = self._once(("parameter", tensor.shape, tensor.dtype, trained), make)
        self.stored[tensor.name] = layouts
        self.parameter_nodes[tensor.name] = self._add(Node(costs, usage, (0, self.end), tensor.name))

    def _copy_bytes(self, tensor: Tensor, stored: Layout, held: Sequence[Layout]) -> int:
        """Bytes of the copies that compute reads; the stored parameter is one itself unless there is a master."""
        each = self.machine.settings.per_parameter
        separate = each.master > 0 and tensor.name in self.active
        size = self.machine.settings.tensor_bytes(tensor)
        return sum(size // x.shards(self.machine.mesh) for x in held if separate or x != stored)

    # Readers and the edges to them

    def _readers_of(self, name: str) -> list[Reader]:
        slots: dict[str, list[int]] = defaultdict(list)
        for op, i in self.graph.consumers.get(name, ()):
            if self.tables[op.name].reads[i] is not None:
                slots[op.name].append(i)
        readers = []
        for op_name, indices in slots.items():
            table = self.tables[op_name]
            key = ("reader", id(table), tuple(indices))
            combinations, rows = self._once(
                key, partial(_distinct, list(zip(*(table.reads[i] or () for i in indices), strict=True)))
            )
            readers.append(Reader(self.op_nodes[op_name], combinations, rows, key, op_name))
        delivered = name in self.graph.outputs and (not self.training or name in gradient_sources(self.graph))
        if delivered:
            readers.append(self._output(self.graph.tensors[name]))
        return readers

    def _output(self, tensor: Tensor) -> Reader:
        key = ("output", tensor.shape, tensor.dtype)
        layouts = self._once(key, lambda: stored_layouts(tensor, self.machine))
        costs = self._once((*key, "costs"), lambda: np.zeros(len(layouts), dtype=np.int64))
        node = self._add(Node(costs, name=f"output {tensor.name}"))
        return Reader(node, tuple(((x, None),) for x in layouts), np.arange(len(layouts)), key, "")

    def _writes(self, tensor: Tensor) -> tuple[int, tuple[Read, ...], np.ndarray, tuple[object, ...]]:
        """Node of the producer, its distinct writes, the write of each state, and a key for both."""
        active = tensor.name in self.active
        if tensor.name in self.parameter_nodes:
            layouts = self.stored[tensor.name]
            key: tuple[object, ...] = ("parameter", tensor.shape, tensor.dtype, active)
            writes = tuple((x, x if active else None) for x in layouts)
            return self.parameter_nodes[tensor.name], writes, np.arange(len(writes)), key
        op = self.graph.producers[tensor.name]
        table, j = self.tables[op.name], op.outputs.index(tensor.name)
        key = ("write", id(table), j)
        distinct, rows = self._once(key, lambda: _distinct(list(table.writes[j] or ())))
        return self.op_nodes[op.name], distinct, rows, key

    def _connect(self, tensor: Tensor) -> None:
        readers = self.readers[tensor.name]
        if not readers:
            return
        table = self._redistributions(tensor)
        producer, writes, rows, write_key = self._writes(tensor)
        parameter = tensor.name in self.parameter_nodes
        source = self.graph.producers.get(tensor.name)
        times = self._times(None if source is None else source.name)
        if len(readers) == 1 and len(readers[0].combinations[0]) == 1:
            (reader,) = readers
            reads = [c[0] for c in reader.combinations]
            key = ("direct", id(table), write_key, reader.key, parameter, times)

            def direct() -> tuple[IntArray, IntArray | None]:
                costs = direct_costs(table, writes, reads, times)
                held = [(r[0],) for r in reads]
                return self._parameter_edge(tensor, costs, writes, held, rows, reader.rows, parameter)

            costs, usage = self._once(key, direct)
            self.edges.append(Edge(producer, reader.node, costs, usage, (0, self.end) if usage is not None else None))
            return
        hub = self._hub(table, readers)
        node = self._add(Node(self._zeros(len(hub.states)), name=f"hub {tensor.name}"))
        self.hubs[tensor.name] = node, hub

        def to_hub() -> tuple[IntArray, IntArray | None]:
            held = [hub.held(s) for s in range(len(hub.states))]
            costs = hub.producer_costs(writes, times)
            return self._parameter_edge(tensor, costs, writes, held, rows, np.arange(len(held)), parameter)

        costs, usage = self._once(("to hub", id(hub), write_key, parameter, times), to_hub)
        self.edges.append(Edge(producer, node, costs, usage, (0, self.end) if usage is not None else None))
        for reader in readers:
            again = self._times(reader.name)
            costs = self._once(("from hub", id(hub), reader.key, again), partial(_from_hub, hub, reader, again))
            self.edges.append(Edge(node, reader.node, costs))

    def _hub(self, table: Redistributions, readers: list[Reader]) -> SetHub | StarHub:
        reads = tuple(dict.fromkeys(read for r in readers for c in r.combinations for read in c))
        few = len(readers) <= MAX_SET_READERS
        key = ("hub", id(table), few, reads)
        return self._once(key, lambda: SetHub(table, reads) if few else StarHub.of(table, reads))

    def _zeros(self, n: int) -> IntArray:
        return self._once(("zeros", n), lambda: np.zeros(n, dtype=np.int64))

    def _parameter_edge(
        self,
        tensor: Tensor,
        costs: IntArray,
        writes: Sequence[Read],
        held: Sequence[tuple[Layout, ...]],
        rows: np.ndarray,
        columns: np.ndarray,
        parameter: bool,
    ) -> tuple[IntArray, IntArray | None]:
        """Expands costs to states, and for parameters adds the memory of the copies that compute reads."""
        if not parameter:
            return costs[rows][:, columns], None
        if self.machine.settings.target == "mindspore":  # one layout per parameter, stored as computed with
            differs = np.array([[h != (w[0],) for h in held] for w in writes])
            costs = np.where(differs, FORBIDDEN, costs)
        usage = None
        if self.training:
            copies = [[self._copy_bytes(tensor, w[0], h) for h in held] for w in writes]
            usage = np.array(copies, dtype=np.int64)[rows][:, columns]
        return costs[rows][:, columns], usage


def _from_hub(hub: SetHub | StarHub, reader: Reader, times: int) -> IntArray:
    return np.ascontiguousarray(hub.reader_costs(reader.combinations, times)[reader.rows].T)


def _distinct(items: list[Any]) -> tuple[tuple[Any, ...], np.ndarray]:
    """The distinct items in order of appearance, and each item's index among them."""
    position: dict[Any, int] = {}
    rows = np.array([position.setdefault(x, len(position)) for x in items], dtype=np.intp)
    return tuple(position), rows
