"""The shape of a graph's Problem, whatever the mesh: its nodes and edges, and which of them are alike.

Nodes and edges are told by their *cases*: those of one case share one array on every mesh (see `cases`).
Nothing here may refer to the graph itself: structures are kept for as long as their graph lives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from planner.ir import Graph, Tensor
from planner.pricing.memory import Instants, Places, copied, held_items, recomputed_blocks
from planner.pricing.operators import OperatorClass, operator_classes
from planner.redistribute import Parts
from planner.rules.expansion import Expansion, Layouts
from planner.rules.rule import Rule
from planner.work.activity import fixed_operators, gradient_sources
from planner.work.fusion import fusion_of
from planner.work.units import bucket_shares

__all__ = ["Case", "HubCase", "RedistributedTensor", "Structure", "structure_of"]


@dataclass(frozen=True, slots=True)
class RedistributedTensor:
    """What decides how a tensor may be redistributed; `writer` is (operator class, output), None for a parameter.
    `inside`: it lies inside a kernel, so that a redistribution takes it out and brings it back.  `share`: that
    of a parameter in its unit (`planner.work.units.bucket_shares`).
    """

    shape: tuple[int, ...]
    dtype: str
    writer: tuple[int, int] | None
    inside: bool = False
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class HubCase:
    """A tensor with several readers: how it is redistributed, and how they read it."""

    redistributed: RedistributedTensor
    readers: tuple[Case, ...]


# What nodes or edges have to agree in to be alike:
#   of nodes          ("operator", class)  ("parameter", shape, type, active)  ("output", shape, type)  ("hub", HubCase)
#   of ends of edges  ("write", class, output)  ("read", class, slots), and those of parameters and outputs
#   of edges          ("direct", RedistributedTensor, write, read)
#                     ("to hub", HubCase, write)  ("from hub", HubCase, read)
Case = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """With or without recomputation.

    `nodes[n]` is (name, index of its costs in `node_cases`, of what it keeps in `held_cases` or -1, interval);
    `edges[e]` (nodes u and v, index in `edge_cases`, while a copy that it stands for is held).  The cases come with how
    often the operator runs, or the tensor is handed over, forward.  `further`: what nodes hold at other times, as (edge
    that ends at the node, whether it begins there, index in `held_cases`, interval).
    """

    blocks: Mapping[str, int]
    node_cases: list[tuple[Case, int]]
    edge_cases: list[tuple[Case, int]]
    held_cases: list[tuple[Case, ...]]
    nodes: list[tuple[str, int, int, tuple[int, int] | None]]
    edges: list[tuple[int, int, int, tuple[int, int]]]
    further: list[tuple[int, bool, int, tuple[int, int]]]


@dataclass(slots=True, eq=False)
class Structure:
    """`readers` are by tensor (node, index in `reader_cases`, operator or "" for an output of the graph); `hubs` by
    tensor (node, case); `names` and `cases` by node; `samples` has a tensor of each (shape, type)."""

    rules: tuple[Rule, ...]
    active: frozenset[str]
    training: bool
    joined: bool
    classes: list[OperatorClass]
    class_of: dict[str, int]
    fixed: frozenset[str]
    end: int
    names: list[str] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    op_nodes: dict[str, int] = field(default_factory=dict)
    parameter_nodes: dict[str, int] = field(default_factory=dict)
    readers: dict[str, list[tuple[int, int, str]]] = field(default_factory=dict)
    reader_cases: list[Case] = field(default_factory=list)
    hubs: dict[str, tuple[int, HubCase]] = field(default_factory=dict)
    edges: list[tuple[int, int, Case, str]] = field(default_factory=list)
    shares: Mapping[str, float] = field(default_factory=dict)
    samples: dict[tuple[tuple[int, ...], str], Tensor] = field(default_factory=dict)
    _parts: dict[tuple[int, ...], Parts] | None = None
    _variants: dict[bool, Variant] = field(default_factory=dict)
    _expansions: dict[object, tuple[Layouts, list[Expansion]]] = field(default_factory=dict)

    @property
    def redistributed_tensors(self) -> tuple[RedistributedTensor, ...]:
        """Every way tensors are redistributed."""
        found = (case[1].redistributed if isinstance(case[1], HubCase) else case[1] for _, _, case, _ in self.edges)
        return tuple(dict.fromkeys(t for t in found if isinstance(t, RedistributedTensor)))

    @property
    def parts(self) -> dict[tuple[int, ...], Parts]:
        """What tensors of a shape may be split in: equal ones share their redistributions."""
        if self._parts is not None:
            return self._parts
        found: dict[tuple[int, ...], list[set[int]]] = {}
        for cls in self.classes:
            for t in (*cls.inputs, *cls.outputs):
                if t is not None and t.shape is not None and t.parts:
                    ways = found.setdefault(t.shape, [set() for _ in t.shape])
                    for way, count in zip(ways, t.parts, strict=True):
                        way |= {count} - {1}
        self._parts = {shape: tuple(tuple(sorted(way)) for way in ways) for shape, ways in found.items()}
        return self._parts

    def expansions(self, names: tuple[str, ...], busy: tuple[bool, ...]) -> tuple[Layouts, list[Expansion]]:
        """Layouts, and by operator class the strategies, over meshes of these axes of which those `busy` have more than
        one rank."""
        if (names, busy) not in self._expansions:
            layouts = Layouts()
            found = [Expansion(c.rule, names, busy, layouts, training=c.gradient_flows) for c in self.classes]
            self._expansions[names, busy] = layouts, found
        return self._expansions[names, busy]

    def variant(self, graph: Graph, *, recompute: bool) -> Variant:
        """Of the same graph."""
        if recompute not in self._variants:
            rules = {op.name: r for op, r in zip(graph.ops, self.rules, strict=True)}
            joined = self.joined
            fusion = fusion_of(graph, rules, self.active, chains=joined, attention=joined, copies=not joined)
            when = Instants.of(graph, rules, self.active, fusion, recomputed_blocks(graph) if recompute else {})
            self._variants[recompute] = self._variant(graph, when)
        return self._variants[recompute]

    def _variant(self, graph: Graph, when: Instants) -> Variant:
        again = {n for name, n in self.op_nodes.items() if name in when.blocks}
        nodes, edges, helds = _Numbers(), _Numbers(), _Numbers()
        ends = {t: n for t, readers in self.readers.items() for n, _, reader in readers if not reader}
        places = Places(self.class_of, self.op_nodes, self.hubs, self.parameter_nodes, ends)
        first: dict[int, tuple[int, tuple[int, int]]] = {}
        further: list[tuple[int, bool, int, tuple[int, int]]] = []
        at: dict[int, tuple[int, bool]] = {}  # node → an edge, and whether it begins there
        for e, (u, v, _, _) in enumerate(self.edges):
            at.setdefault(u, (e, True))
            at.setdefault(v, (e, False))
        parameters = set(self.parameter_nodes.values())
        for held in held_items(when, places, training=self.training):
            if held.node not in first and held.node not in parameters:
                first[held.node] = helds.of(held.cases), held.interval
            elif held.node in at:
                further.append((*at[held.node], helds.of(held.cases), held.interval))
        # Frameworks that train keep what is computed with throughout.
        copies = {n: (0, self.end) if self.training else copied(when, name) for name, n in self.parameter_nodes.items()}
        return Variant(
            when.blocks,
            nodes.known,
            edges.known,
            helds.known,
            [
                (name, nodes.of((case, 2 if n in again else 1)), *first.get(n, (-1, None)))
                for n, (name, case) in enumerate(zip(self.names, self.cases, strict=True))
            ],
            [
                (u, v, edges.of((case, 2 if runner in when.blocks else 1)), copies.get(u, (0, 0)))
                for u, v, case, runner in self.edges
            ],
            further,
        )


class _Numbers:
    """Numbers hashable things in order of appearance."""

    def __init__(self) -> None:
        self.known: list[Any] = []
        self._number: dict[Hashable, int] = {}

    def of(self, thing: Hashable) -> int:
        number = self._number.setdefault(thing, len(self.known))
        if number == len(self.known):
            self.known.append(thing)
        return number


_STRUCTURES: WeakKeyDictionary[Graph, list[Structure]] = WeakKeyDictionary()


def structure_of(
    graph: Graph, rules: Mapping[str, Rule], active: frozenset[str], *, training: bool, joined: bool = True
) -> Structure:
    """The structure of a graph under its rules; made once as long as the same ones are asked for again.  `joined`:
    whether operators are fused into kernels."""
    bound = tuple(rules[op.name] for op in graph.ops)
    known = _STRUCTURES.setdefault(graph, [])
    for s in known:
        same = s.training == training and s.joined == joined and s.active == active
        if same and all(a is b for a, b in zip(s.rules, bound, strict=True)):
            return s
    parts = fusion_of(graph, rules, active, chains=joined, attention=joined, copies=not joined).parts
    classes, class_of = operator_classes(graph, rules, active, parts)
    made = Structure(bound, active, training, joined, classes, class_of, fixed_operators(graph), 2 * len(graph.ops) + 2)
    _Builder(graph, made).build()
    known[:] = [*known[-1:], made]
    return made


class _Builder:
    def __init__(self, graph: Graph, structure: Structure) -> None:
        self.graph, self.s = graph, structure
        self._reads = _Numbers()
        structure.reader_cases = self._reads.known

    def build(self) -> None:
        graph, s = self.graph, self.s
        s.shares = bucket_shares(graph)
        free = [op for op in graph.ops if op.name not in s.fixed]
        for op in free:
            s.op_nodes[op.name] = self._add(("operator", s.class_of[op.name]), op.name)
        for t in graph.parameters:
            if t.name in graph.consumers:
                case = ("parameter", t.shape, t.dtype, t.name in s.active)
                s.parameter_nodes[t.name] = self._add(case, t.name)
        results = [o for op in free for o in op.outputs if o and graph.tensors[o].shape is not None]
        for name in [*s.parameter_nodes, *results]:
            readers = self._readers_of(name)
            s.readers[name] = [(node, self._reads.of(case), reader) for node, case, reader in readers]
            if readers:
                self._connect(graph.tensors[name], readers)
        self._renumber()

    def _add(self, case: Case, name: str) -> int:
        self.s.cases.append(case)
        self.s.names.append(name)
        return len(self.s.names) - 1

    def _readers_of(self, name: str) -> list[tuple[int, Case, str]]:
        s = self.s
        slots: dict[str, list[int]] = defaultdict(list)
        for op, i in self.graph.consumers.get(name, ()) if self.graph.tensors[name].shape is not None else ():
            slots[op.name].append(i)
        readers: list[tuple[int, Case, str]] = [
            (s.op_nodes[op], ("read", s.class_of[op], tuple(indices)), op) for op, indices in slots.items()
        ]
        if name in self.graph.outputs and (not s.training or name in gradient_sources(self.graph)):
            tensor = self.graph.tensors[name]
            case = ("output", tensor.shape, tensor.dtype)
            readers.append((self._add(case, f"output {name}"), case, ""))
        return readers

    def _connect(self, tensor: Tensor, readers: list[tuple[int, Case, str]]) -> None:
        """Edges from the producer to the only reader, or to a hub and from there to all readers."""
        s, name = self.s, tensor.name
        producer = self.graph.producers.get(name)
        shape = tensor.shape or ()
        s.samples.setdefault((shape, tensor.dtype), tensor)
        if name in s.parameter_nodes:
            source, runner, write = s.parameter_nodes[name], "", s.cases[s.parameter_nodes[name]]
            redistributed = RedistributedTensor(shape, tensor.dtype, None, share=s.shares.get(name, 1.0))
        else:
            assert producer is not None, f"{name} is neither a parameter nor computed"
            writer = s.class_of[producer.name], producer.outputs.index(name)
            source, runner, write = s.op_nodes[producer.name], producer.name, ("write", *writer)
            inside = writer[1] in s.classes[writer[0]].part.inside
            redistributed = RedistributedTensor(shape, tensor.dtype, writer, inside)
        node, case, _ = readers[0]
        if len(readers) == 1 and (case[0] == "output" or len(case[2]) == 1):  # type: ignore[arg-type]  # a read's operands
            s.edges.append((source, node, ("direct", redistributed, write, case), runner))
            return
        hub = HubCase(redistributed, tuple(c for _, c, _ in readers))
        middle = self._add(("hub", hub), f"hub {name}")
        s.hubs[name] = middle, hub
        s.edges.append((source, middle, ("to hub", hub, write), runner))
        for node, case, reader in readers:
            s.edges.append((middle, node, ("from hub", hub, case), reader))

    def _renumber(self) -> None:
        """Nodes in graph order, parameters before their first reader and hubs behind their producer: solvers that
        sweep over the nodes then carry information through the whole model at once."""
        s = self.s
        position = {op.name: float(i) for i, op in enumerate(self.graph.ops)}
        key = [0.0] * len(s.names)
        for name, n in s.op_nodes.items():
            key[n] = position[name]
        for name, n in s.parameter_nodes.items():
            key[n] = min(position[op.name] for op, _ in self.graph.consumers[name]) - 0.5
        for name, readers in s.readers.items():
            producer = self.graph.producers.get(name)
            start = key[s.parameter_nodes[name]] if producer is None else position[producer.name]
            if name in s.hubs:
                key[s.hubs[name][0]] = start + 0.25
            for node, _, reader in readers:
                if not reader:  # an output of the graph
                    key[node] = start + 0.3
        order = sorted(range(len(key)), key=lambda n: (key[n], n))
        new = {n: k for k, n in enumerate(order)}
        s.names, s.cases = [s.names[n] for n in order], [s.cases[n] for n in order]
        s.edges = [(new[u], new[v], case, runner) for u, v, case, runner in s.edges]
        s.op_nodes = {name: new[n] for name, n in s.op_nodes.items()}
        s.parameter_nodes = {name: new[n] for name, n in s.parameter_nodes.items()}
        s.hubs = {name: (new[n], hub) for name, (n, hub) in s.hubs.items()}
        s.readers = {t: [(new[n], case, r) for n, case, r in readers] for t, readers in s.readers.items()}
