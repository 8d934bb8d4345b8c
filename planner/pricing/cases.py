"""Prices of the cases of a graph's structure on one mesh: one array for all nodes, or edges, that are alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np

from planner.ir import DeviceMesh, Graph, Layout, Reduction, Tensor
from planner.pricing.dtensor import Placeable
from planner.pricing.hubs import MAX_SET_READERS, Read, SetHub, StarHub, capped, distances
from planner.pricing.machine import IntArray, Machine
from planner.pricing.optimizer_parallel import OptimizerParallel, storable
from planner.pricing.priced import Reader
from planner.pricing.structure import Case, HubCase, RedistributedTensor, Structure
from planner.pricing.tables import Allowed, OperatorTable, distinct, operator_tables
from planner.redistribute import Parts, Redistributions, lattice_of
from planner.search.problem import FORBIDDEN
from planner.targets import ONE_COPY

__all__ = ["CasePrices", "KnownRedistributions"]

T = TypeVar("T")
_Edge = tuple[IntArray, IntArray | None]
# Of a tensor's redistributions; the last two: whether it is inside a kernel, and its share of a bucket.
_Kind = tuple[tuple[int, ...], int, Reduction, Parts, bool, float]
# By mesh and precision, at the prices of one profile.
KnownRedistributions = dict[tuple[DeviceMesh, str], dict[_Kind, Redistributions]]


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """How one end of an edge has its tensor: in state s as `combinations[rows[s]]`.

    `numbers[k, slot]`: numbers of the layout and of the gradient's, -1 for None.
    """

    combinations: tuple[tuple[Read, ...], ...]
    numbers: IntArray
    rows: np.ndarray


class CasePrices:
    """Arrays are made when first asked for, and must not be written to."""

    def __init__(
        self,
        structure: Structure,
        machine: Machine,
        allowed: Mapping[int, Sequence[Allowed]] | None = None,
        redistributions: KnownRedistributions | None = None,
    ) -> None:
        self.structure, self.machine, self.mesh = structure, machine, machine.mesh
        self.layouts, expansions = structure.expansions(self.mesh.names, tuple(a.size > 1 for a in self.mesh.axes))
        self.tables: list[OperatorTable] = operator_tables(structure.classes, expansions, machine, allowed)
        self._memo: dict[Hashable, Any] = {}
        self._shards = np.zeros(0, dtype=np.int64)
        self._optimizer_parallel = OptimizerParallel(self.layouts, self.mesh)
        self._placeable = Placeable(self.layouts, self.mesh)
        known = {} if redistributions is None else redistributions
        self._redistributions = known.setdefault((self.mesh, machine.settings.precision), {})
        kinds = dict.fromkeys(map(self._kind, structure.redistributed_tensors))
        new = [kind for kind in kinds if kind not in self._redistributions]
        self._redistributions |= zip(new, self._tables(new), strict=True)
        self._of_tensors: dict[RedistributedTensor, Redistributions] = {}

    def redistributions(self, redistributed: RedistributedTensor) -> Redistributions:
        known = self._of_tensors.get(redistributed)
        if known is None:
            kind = self._kind(redistributed)
            if kind not in self._redistributions:
                (self._redistributions[kind],) = self._tables([kind])
            known = self._of_tensors[redistributed] = self._redistributions[kind]
        return known

    def _tables(self, kinds: Sequence[_Kind]) -> list[Redistributions]:
        copied = self.machine.copied
        cases = [
            (shape, size, reduction, parts, copied if inside else None, share)
            for shape, size, reduction, parts, inside, share in kinds
        ]
        return Redistributions.of_all(cases, self.mesh, self.machine)

    def of_tensor(self, graph: Graph, tensor: Tensor) -> Redistributions:
        """All redistributions of a tensor of the graph."""
        producer = graph.producers.get(tensor.name)
        writer, inside = None, False
        if producer is not None:
            writer = self.structure.class_of[producer.name], producer.outputs.index(tensor.name)
            inside = writer[1] in self.structure.classes[writer[0]].part.inside
        self.structure.samples.setdefault((tensor.shape or (), tensor.dtype), tensor)
        share = self.structure.shares.get(tensor.name, 1.0)
        return self.redistributions(RedistributedTensor(tensor.shape or (), tensor.dtype, writer, inside, share))

    def node(self, case: Case, times: int) -> IntArray:
        """Costs of a node whose operator runs forward so often."""
        return self._once(("node", case, times), partial(self._node, case, times))

    def stored(self, case: Case) -> tuple[tuple[Layout, ...], IntArray]:
        """Layouts of a parameter and the bytes it takes in them, with its gradient and its optimizer state."""
        return self._once(("stored", case), partial(self._stored, case))

    def held(self, cases: tuple[Case, ...]) -> IntArray:
        """Bytes by state of a node that holds all these."""
        parts = [self._part(case) for case in cases]
        return self._once(("sum", *map(id, parts)), lambda: cast(IntArray, np.sum(parts, axis=0)))

    def beside(self, shape: tuple[int, ...], held: IntArray, *, begins: bool) -> _Edge:
        """Costs, which are none, and usage of an edge of that shape: what the node it begins or ends with holds."""

        def make() -> _Edge:
            usage = np.broadcast_to(held[:, None] if begins else held, shape)
            return self._once(("no costs", shape), lambda: np.zeros(shape, dtype=np.int64)), np.ascontiguousarray(usage)

        return self._once(("beside", shape, id(held), begins), make)

    def edge(self, case: Case, times: int) -> _Edge:
        """Costs and usage of an edge over which a tensor is handed so often forward."""
        kind = case[0]
        if kind == "direct":
            _, redistributed, write, read = cast(tuple[str, RedistributedTensor, Case, Case], case)
            table = self.redistributions(redistributed)
            return self._once(
                (kind, id(table), write, read, times), partial(self._direct, table, redistributed, write, read, times)
            )
        if kind == "to hub":
            _, of, write = cast(tuple[str, HubCase, Case], case)
            hub = self.hub(of)
            return self._once((kind, id(hub), write, times), partial(self._to_hub, hub, of.redistributed, write, times))
        _, of, read = cast(tuple[str, HubCase, Case], case)
        hub = self.hub(of)
        times = times if isinstance(hub, StarHub) else 1  # what a set holds is read for nothing
        return self._once((kind, id(hub), read, times), partial(self._from_hub, hub, read, times))

    def hub(self, case: HubCase) -> SetHub | StarHub:
        return self._once(("hub", case), partial(self._hub, case))

    def readers(self) -> dict[str, list[Reader]]:
        """Who reads each tensor."""
        cases = [(self._reading(case), case) for case in self.structure.reader_cases]

        def reader(node: int, number: int, name: str) -> Reader:
            side, case = cases[number]
            return Reader(node, side.combinations, side.rows, case, name)

        return {t: [reader(*r) for r in found] for t, found in self.structure.readers.items()}

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._memo:
            self._memo[key] = make()
        return cast(T, self._memo[key])

    def _kind(self, redistributed: RedistributedTensor) -> _Kind:
        reduction = Reduction.SUM
        if redistributed.writer is not None:
            cls, output = redistributed.writer
            written = self.tables[cls].written_as[output]
            pairs = () if written is None else written.distinct
            reduction = next((op for layout, _ in pairs for _, op in layout.partial), Reduction.SUM)
        parts = self.structure.parts.get(redistributed.shape, ())
        return (
            redistributed.shape,
            self._bytes(redistributed.shape, redistributed.dtype),
            reduction,
            parts,
            redistributed.inside,
            redistributed.share,
        )

    def _bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        return self.machine.settings.tensor_bytes(self.structure.samples[shape, dtype])

    def _shards_of(self, numbers: IntArray) -> IntArray:
        """Pieces that layouts cut a tensor into, by their numbers (anything for -1)."""
        known = self.layouts.known
        if len(self._shards) < len(known):
            more = [x.shards(self.mesh) for x in known[len(self._shards) :]]
            self._shards = np.concatenate([self._shards, np.array(more, dtype=np.int64)])
        return self._shards[numbers]

    # Nodes

    def _node(self, case: Case, times: int) -> IntArray:
        kind = case[0]
        if kind == "operator":
            table = self.tables[cast(int, case[1])]
            if times == 1:
                return table.costs
            again = (times - 1) * (table.work.forward + table.work.inner_forward)
            return capped(table.costs + again)
        if kind == "parameter":
            _, shape, dtype, active = cast(tuple[str, tuple[int, ...], str, bool], case)
            elements = self._elements(shape)
            trained = active and self.structure.samples[shape, dtype].is_float
            return self.machine.optimizer_update(elements) if trained else np.zeros_like(elements)
        if kind == "output":
            return np.zeros(len(self._reading(case).rows), dtype=np.int64)
        states = len(self.hub(cast(HubCase, case[1])).states)
        return self._once(("zeros", states), lambda: np.zeros(states, dtype=np.int64))

    def _ordered(self, shape: tuple[int, ...], *, kept: bool = False) -> tuple[tuple[Layout, ...], IntArray]:
        """Layouts a parameter (`kept`) or an output may have, any even split with the axes of a dimension in mesh order
        and nothing pending, of parameters also what the target makes of these; and their numbers."""

        def make() -> tuple[tuple[Layout, ...], IntArray]:
            lattice = lattice_of(shape, self.mesh, Reduction.SUM, self.structure.parts.get(shape, ()))
            layouts = storable(lattice.ordered, lattice.layouts, self.mesh) if further else lattice.ordered
            return layouts, np.array([self.layouts.number(x) for x in layouts], dtype=np.int64)

        further = kept and self.machine.settings.target == "mindspore"
        return self._once(("ordered", shape, further), make)

    def _elements(self, shape: tuple[int, ...]) -> IntArray:
        """Elements of a parameter on one device, by layout."""
        whole = int(np.prod(shape, dtype=object))
        return np.asarray(whole // self._shards_of(self._ordered(shape, kept=True)[1]))

    def _stored(self, case: Case) -> tuple[tuple[Layout, ...], IntArray]:
        _, shape, dtype, active = cast(tuple[str, tuple[int, ...], str, bool], case)
        layouts, numbers = self._ordered(shape, kept=True)
        if not (active and self.structure.samples[shape, dtype].is_float):
            return layouts, self._bytes(shape, dtype) // self._shards_of(numbers)
        return layouts, self._elements(shape) * self.machine.settings.per_parameter.total

    def _part(self, case: Case) -> IntArray:
        if case[0] == "hub":
            hub = self.hub(cast(HubCase, case[1]))
            return self._once(("held", id(hub)), partial(self._held_by_hub, hub))
        if case[0] == "delivered":
            _, shape, dtype = cast(tuple[str, tuple[int, ...], str], case)
            numbers = self._ordered(shape)[1]
            return self._once(("held", case), lambda: self._bytes(shape, dtype) // self._shards_of(numbers))
        make = self._held_as_gradients if case[0] == "gradients" else self._held_by_operator
        return self._once(("held", case), partial(make, case))

    def _held_by_hub(self, hub: SetHub | StarHub) -> IntArray:
        first, second = self._held_in(hub).T
        shards = np.maximum(self._shards_of(first), np.where(second < 0, 0, self._shards_of(second)))
        return np.asarray(hub.table.bytes // shards)

    def _held_by_operator(self, case: Case) -> IntArray:
        kind, cls, slot = cast(tuple[str, int, int], case)
        of_class, table = self.structure.classes[cls], self.tables[cls]
        tensor = (of_class.inputs if kind == "operand" else of_class.outputs)[slot]
        placed = (table.read_as if kind == "operand" else table.written_as)[slot]
        assert tensor is not None, "an absent tensor is not held"
        assert placed is not None, "a tensor of unknown shape is not held"
        size = self.machine.settings.tensor_bytes(tensor)
        return np.asarray(size // self._shards_of(placed.numbers[placed.rows, 0]))

    def _held_as_gradients(self, case: Case) -> IntArray:
        """Bytes of the gradients that an operator's backward takes and gives, of operands those in these slots."""
        _, cls, slots = cast(tuple[str, int, tuple[int, ...]], case)
        of_class, table = self.structure.classes[cls], self.tables[cls]
        total = np.zeros(len(table.costs), dtype=np.int64)
        wanted = of_class.rule.differentiable
        reads = [
            (t, p)
            for i, (t, p) in enumerate(zip(of_class.inputs, table.read_as, strict=True))
            if i in wanted and i in slots
        ]
        for tensor, placed in (*reads, *zip(of_class.outputs, table.written_as, strict=True)):
            if tensor is None or placed is None:
                continue
            numbers = placed.numbers[placed.rows, 1]
            size = self.machine.settings.tensor_bytes(tensor)
            total += np.where(numbers < 0, 0, size // self._shards_of(np.maximum(numbers, 0)))
        return total

    # Ends of edges

    def _writing(self, case: Case) -> _Side:
        return self._once(("side", case), partial(self._write_side, case))

    def _write_side(self, case: Case) -> _Side:
        if case[0] == "parameter":
            return self._ordered_side(cast(tuple[int, ...], case[1]), active=bool(case[3]), kept=True)
        _, cls, output = cast(tuple[str, int, int], case)
        placed = self.tables[cls].written_as[output]
        assert placed is not None, "a tensor of unknown shape is not redistributed"
        return _Side(tuple((x,) for x in placed.distinct), placed.numbers[:, None], placed.rows)

    def _reading(self, case: Case) -> _Side:
        return self._once(("side", case), partial(self._read_side, case))

    def _read_side(self, case: Case) -> _Side:
        if case[0] == "output":
            return self._ordered_side(cast(tuple[int, ...], case[1]), active=False)
        _, cls, slots = cast(tuple[str, int, tuple[int, ...]], case)
        placed = [p for p in (self.tables[cls].read_as[i] for i in slots) if p is not None]
        first, rows = distinct(zip(*(p.rows.tolist() for p in placed), strict=True))
        numbers = np.stack([p.numbers[p.rows[first]] for p in placed], axis=1)
        reads = zip(*([p.distinct[r] for r in p.rows[first].tolist()] for p in placed), strict=True)
        return _Side(tuple(reads), numbers, rows)

    def _ordered_side(self, shape: tuple[int, ...], *, active: bool, kept: bool = False) -> _Side:
        layouts, numbers = self._ordered(shape, kept=kept)
        pairs = np.stack([numbers, numbers if active else np.full(len(numbers), -1)], axis=1)
        return _Side(tuple(((x, x if active else None),) for x in layouts), pairs[:, None], np.arange(len(layouts)))

    def _positions(self, table: Redistributions, numbers: IntArray) -> IntArray:
        """Indices into the table by numbers of layouts; -1 for none, -2 for one that the table does not know."""
        return np.where(numbers < 0, -1, self.layouts.within(table.index)[numbers])

    # Edges

    def _direct(
        self, table: Redistributions, redistributed: RedistributedTensor, write: Case, read: Case, times: int
    ) -> _Edge:
        writes, reads = self._writing(write), self._reading(read)
        there, back = self._once(("distances", id(table), write, read), partial(self._distances, table, writes, reads))
        held = np.stack([reads.numbers[:, 0, 0], np.full(len(reads.numbers), -1)], axis=1)
        return self._expanded(capped(times * there + back), redistributed, write, held, reads.rows)

    def _distances(self, table: Redistributions, writes: _Side, reads: _Side) -> tuple[IntArray, IntArray]:
        given, wanted = self._positions(table, writes.numbers[:, 0]).T
        taken, returned = self._positions(table, reads.numbers[:, 0]).T
        return distances(table, given, taken), distances(table, returned, wanted).T

    def _hub(self, case: HubCase) -> SetHub | StarHub:
        table = self.redistributions(case.redistributed)
        reads = tuple(dict.fromkeys(r for c in case.readers for way in self._reading(c).combinations for r in way))
        few = len(case.readers) <= MAX_SET_READERS
        return self._once(
            ("hub", id(table), few, reads), lambda: SetHub(table, reads) if few else StarHub.of(table, reads)
        )

    def _held_in(self, hub: SetHub | StarHub) -> IntArray:
        """Numbers of the one or two layouts of each state; -1: only one."""

        def make() -> IntArray:
            layouts, of = hub.held_in
            numbers = np.array([self.layouts.number(x) for x in layouts], dtype=np.int64)
            return np.where(of < 0, -1, numbers[of])

        return self._once(("held in", id(hub)), make)

    def _to_hub(self, hub: SetHub | StarHub, redistributed: RedistributedTensor, write: Case, times: int) -> _Edge:
        writes = [way[0] for way in self._writing(write).combinations]
        there, back = self._once(("trees", id(hub), write), lambda: hub.producer_trees(writes))
        held = self._held_in(hub)
        return self._expanded(capped(times * there + back), redistributed, write, held, None)

    def _from_hub(self, hub: SetHub | StarHub, read: Case, times: int) -> _Edge:
        reads = self._reading(read)
        costs = hub.reader_costs(reads.combinations, times)
        return np.ascontiguousarray(costs.T[:, reads.rows]), None

    def _expanded(
        self,
        costs: IntArray,
        redistributed: RedistributedTensor,
        write: Case,
        held: IntArray,
        columns: np.ndarray | None,
    ) -> _Edge:
        """Expands costs from distinct ways to states, and for parameters adds the memory of the copies that compute
        reads.  `held[k]` numbers the one or two layouts behind column k; `columns` None: they are the states."""
        writes = self._writing(write)
        if write[0] != "parameter":
            return _states(costs, writes.rows, columns), None
        stored = writes.numbers[:, 0, :1]
        first, second = held.T
        if self.machine.settings.target in ONE_COPY:
            costs = np.where(second >= 0, FORBIDDEN, costs)
        if self.machine.settings.target == "mindspore":
            costs = np.where(self._optimizer_parallel.allows(first, stored[:, 0]), costs, FORBIDDEN)
        if self.machine.settings.target == "dtensor":
            costs = np.where(self._placeable.allows(first, second), costs, FORBIDDEN)
        size = self._bytes(redistributed.shape, redistributed.dtype)
        copies = np.where(first != stored, size // self._shards_of(first), 0)
        # Of two layouts one is certainly held as long as one is needed: the smaller, where both are copies.
        other = np.where(second != stored, size // self._shards_of(np.maximum(second, 0)), 0)
        copies = np.where(second < 0, copies, np.minimum(copies, other))
        if (
            self.machine.settings.training
            and write[3]
            and self.structure.samples[redistributed.shape, redistributed.dtype].is_float
        ):
            # The copy, in place of the part that is stored, is what is computed with, and its gradient as wide.
            each = self.machine.settings.per_parameter
            computed = int(np.prod(redistributed.shape, dtype=object)) // self._shards_of(stored) * each.compute_copy
            copies = np.maximum(0, copies - computed) * (each.compute_copy + each.gradient) // each.compute_copy
        return _states(costs, writes.rows, columns), _states(copies, writes.rows, columns)


def _states(values: IntArray, rows: np.ndarray, columns: np.ndarray | None) -> IntArray:
    by_row = values.take(rows, axis=0)
    return by_row if columns is None else by_row.take(columns, axis=1)
