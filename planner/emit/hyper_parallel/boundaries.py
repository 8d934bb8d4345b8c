"""Modules at whose boundaries HyperParallel converts tensors, and what the plan says happens there.

Its planner takes attention and feed-forward blocks, normalisations, embeddings and the output layer as boundaries
(distributed/sharding_planner.py), declares for each how inputs arrive (`in_src`) and are computed with (`in_dst`), how
the output arises (`out_src`) and is handed on (`out_dst`), and executes what differs.  Between boundaries tensors are
the ranks' own parts, with nothing converted; a bias behind a product by rows is added after its sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.emit.modules import weights_of
from planner.emit.names import Name
from planner.ir import Layout
from planner.planning.document import OperatorDocument, PlanDocument, RedistributionDocument

__all__ = ["Boundary", "blocks_of", "forward_moves", "leaves_of"]

_PRODUCTS = ("MatMul", "Gemm")


@dataclass(frozen=True, slots=True)
class Boundary:
    """A module by its path in the user's network.  `parameters`: ONNX name → name inside the module.

    The layouts are None together, where the plan does not tell them.  `first` and `last`: indices, in graph order, of
    the operator that reads its input and of that which makes its output; `reads`: how its products but the last read
    their data; `moves`: indices of the redistributions that happen at the boundary.
    """

    module: str
    parameters: Mapping[str, str]
    in_src: Layout | None
    in_dst: Layout | None
    out_src: Layout | None
    out_dst: Layout | None
    first: int
    last: int
    reads: tuple[Layout, ...]
    moves: frozenset[int]


def leaves_of(plan: PlanDocument, names: Mapping[str, Name]) -> list[Boundary]:
    """A boundary for every module that has parameters of its own, in graph order."""
    owners: dict[str, dict[str, str]] = defaultdict(dict)
    for onnx, name in names.items():
        module, _, own = name.name.rpartition(".")
        owners[module][onnx] = own
    return _Finder(plan).boundaries(owners)


def blocks_of(plan: PlanDocument, names: Mapping[str, Name]) -> list[Boundary]:
    """As leaves, but the products of one part of a layer (attention, feed-forward) have its boundary in common."""
    finder = _Finder(plan)
    blocks = {_block(name.name) for onnx, name in names.items() if finder.is_product(onnx)} - {""}
    owners: dict[str, dict[str, str]] = defaultdict(dict)
    for onnx, name in names.items():
        module, _, own = name.name.rpartition(".")
        block = next((b for b in (_block(name.name), module) if b in blocks), None)
        owners[module if block is None else block][onnx] = own if block is None else name.name[len(block) + 1 :]
    return finder.boundaries(owners)


def _block(parameter: str) -> str:
    """The module around that of a parameter, where it is a part of a numbered layer; else nothing."""
    parts = parameter.split(".")[:-2]
    inside = any(p.isdecimal() for p in parts[:-1]) and not parts[-1].isdecimal()
    return ".".join(parts) if inside else ""


def forward_moves(plan: PlanDocument) -> dict[int, RedistributionDocument]:
    """Index → redistribution, of those of activations in the forward pass; what is recomputed is listed once."""
    found: dict[int, RedistributionDocument] = {}
    seen = set()
    for i, r in enumerate(plan.redistributions):
        key = (r.tensor, r.reader, r.source.layout(), r.target.layout())
        if r.direction == "forward" and r.tensor in plan.operators and key not in seen:
            seen.add(key)
            found[i] = r
    return found


class _Finder:
    def __init__(self, plan: PlanDocument) -> None:
        self.plan = plan
        self.names = list(plan.operators)
        self.place = {o: i for i, o in enumerate(self.names)}
        self.weights: dict[str, set[int]] = defaultdict(set)  # operator → slots that are parameters
        for p in plan.parameters.values():
            for r in p.readers:
                self.weights[r.operator].add(r.slot)
        self.turned = weights_of(plan)  # what turns or casts a weight takes no data
        self.of_module: dict[str, list[int]] = defaultdict(list)
        for o, i in self.place.items():
            self.of_module[plan.operators[o].module].append(i)
        self.from_tensor: dict[str, list[int]] = defaultdict(list)
        self.to_reader: dict[str, list[int]] = defaultdict(list)
        for i, m in forward_moves(plan).items():
            self.from_tensor[m.tensor].append(i)
            self.to_reader[m.reader].append(i)

    def is_product(self, parameter: str) -> bool:
        return any(
            self.plan.operators[r.operator].type in _PRODUCTS and r.slot == 1
            for r in self.plan.parameters[parameter].readers
        )

    def boundaries(self, owners: Mapping[str, Mapping[str, str]]) -> list[Boundary]:
        """A parameter that other modules read as well (a table tied to the output layer) is its own module's; the
        others, by their paths in the graph, have boundaries without it."""
        readers: dict[str, set[int]] = defaultdict(set)
        for module, parameters in owners.items():
            for n in parameters:
                own, others = self._home(module, n)
                readers[module] |= own
                for path, places in others.items():
                    readers[path] |= places
        found = [self._boundary(m, owners.get(m, {}), sorted(places)) for m, places in readers.items() if places]
        return sorted((b for b in found if b is not None), key=lambda b: b.first)

    def _home(self, module: str, parameter: str) -> tuple[set[int], dict[str, set[int]]]:
        """(places of the readers in the parameter's own module, module path → places of the others)."""
        groups: dict[tuple[str, bool], set[int]] = defaultdict(set)
        for r in self.plan.parameters[parameter].readers:
            op = self.plan.operators[r.operator]
            groups[op.module.replace("/", "."), op.type == "Gather"].add(self.place[r.operator])
        last = module.rpartition(".")[2]
        home = min(groups, key=lambda g: (g[0].rpartition(".")[2] != last, min(groups[g])), default=None)
        if home is None:
            return set(), {}
        return groups[home], {path: places for (path, kind), places in groups.items() if (path, kind) != home and path}

    def _boundary(self, module: str, parameters: Mapping[str, str], readers: Sequence[int]) -> Boundary | None:
        kinds = {self.plan.operators[self.names[i]].type for i in readers}
        if kinds == {"Add"}:  # a table that is added: what its module takes, if it is one, is not in the graph
            none = (None, None, None, None)
            return Boundary(module, parameters, *none, readers[0], readers[0], (), frozenset())
        modules = {self.plan.operators[self.names[i]].module for i in readers} - {""}
        beside = {i for m in modules for i in self.of_module[m] if i < readers[-1]}
        members = sorted(i for i in beside.union(readers) if self.names[i] not in self.turned)
        entry = next((i for i in members if self._data(i) is not None), None)
        if entry is None:
            return None
        products = [i for i in members if self.plan.operators[self.names[i]].type in _PRODUCTS]
        inside = self._data(entry)
        source, moves = inside, set()
        for k in (k for i in members for k in self.to_reader.get(self.names[i], ())):
            m = self.plan.redistributions[k]
            if self.place[m.tensor] < entry and m.target.layout() == inside:
                source = m.source.layout() if source == inside else source
                moves.add(k)
        last = readers[-1]
        makes = products[-1] if products else last
        raised = self._result(makes)
        handed, settled = self._handed(makes, raised, last)
        if last > makes:
            bias = self._result(last)
            handed, more = self._handed(last, bias, last)
            settled |= more
        reads = tuple(x for x in map(self._data, products[:-1]) if x is not None)
        return Boundary(
            module, parameters, source, inside, raised, handed, entry, last, reads, frozenset(moves | settled)
        )

    def _handed(self, operator: int, layout: Layout | None, last: int) -> tuple[Layout | None, set[int]]:
        """How the result of an operator is after what is done to it for all its readers, or for the last operator of
        its module; a copy that is left pending for one who adds it is not followed."""
        done = set()
        for k in self.from_tensor.get(self.names[operator], ()):
            m = self.plan.redistributions[k]
            own = not m.reader or m.reader == self.names[last]
            if own and m.source.layout() == layout and not (m.target.partial and not m.source.partial):
                layout = m.target.layout()
                done.add(k)
        return layout, done

    def _data(self, index: int) -> Layout | None:
        """The first operand that is no parameter."""
        op, weights = self.plan.operators[self.names[index]], self.weights.get(self.names[index], set())
        return next((x.layout() for i, x in enumerate(op.operands) if x is not None and i not in weights), None)

    def _result(self, index: int) -> Layout | None:
        op: OperatorDocument = self.plan.operators[self.names[index]]
        found = op.results[0] if op.results else None
        return None if found is None else found.layout()
