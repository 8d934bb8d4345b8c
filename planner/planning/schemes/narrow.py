"""Where a tensor is moved between two layouts along an axis: at the narrowest point before its reader.

Operators are laid out one after the other as their operands arrive, so that keys and values which exporters repeat for
every group of queries (grouped-query attention, Ainslie et al. 2023) stay divided along positions until an attention
reads them, and would be moved repeated.  Runtimes move them before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from planner.ir import DeviceMesh, Graph, Layout, Op
from planner.planning.schemes.model import Model
from planner.planning.schemes.traffic import Traffic
from planner.planning.schemes.ways import along
from planner.rules.strategy import DEFER, REPLICATE, AxisRole, Strategy, axis_roles, bind

__all__ = ["Narrow"]

_WORTH: Final = 0.5  # of what is received: latencies, and what is held between the passes, may outweigh less


@dataclass(frozen=True, slots=True)
class _Reader:
    """An operator, how it runs, and which of its operands is in question."""

    op: Op
    strategy: Strategy
    operand: int

    @property
    def tensor(self) -> str:
        return self.op.inputs[self.operand]


@dataclass(frozen=True, eq=False)
class Narrow:
    """Moves along an axis of `mesh`, where operators run by their `strategies`.

    axis      the name of the axis
    beside    that of another one along which the same tensors may be moved as well
    training  whether there are gradients.  Operators that compute the same on all ranks then pass pending sums of them
              on, to be carried out where they are narrow
    """

    graph: Graph
    model: Model
    mesh: DeviceMesh
    strategies: Mapping[str, Strategy]
    axis: str
    beside: str | None
    training: bool
    _ways: dict[Hashable, tuple[Strategy, ...]] = field(default_factory=dict)

    def strategies_before(self) -> dict[str, Strategy]:
        """How operators before a move run where less is received if what they read is moved in place of what they
        make; of the others nothing."""
        found: dict[str, Strategy] = {}
        for op in self.graph.ops:
            if op.name in self.strategies and self.model.rules[op.name].cost.kind.product:
                for operand in range(len(op.inputs)):
                    found |= self._before(_Reader(op, self.strategies[op.name], operand))
        return found

    def _before(self, reader: _Reader) -> dict[str, Strategy]:
        """Of what leads to one operand."""
        wanted, made = reader.strategy.operands[reader.operand], self._made(reader.tensor)
        if wanted is None or made is None or not self._parted(reader.tensor) or self._same(made, wanted):
            return {}
        passed: dict[str, Strategy] = {}
        found: dict[str, Strategy] = {}
        most = 0  # saved, so far
        new = old = 0  # what is received between the operators that were passed, so and as they are
        behind = behind_old = reader
        for step in self._above(reader.tensor, wanted):
            before = _Reader(step.op, self.strategies[step.op.name], step.operand)
            passed[step.op.name] = step.strategy
            new += self._received(step.strategy, behind)
            old += self._received(before.strategy, behind_old)
            behind, behind_old = step, before
            maker = self.strategies[self.graph.producers[step.tensor].name]
            so, as_is = new + self._received(maker, behind), old + self._received(maker, behind_old)
            if so <= _WORTH * as_is and as_is - so > most:
                most, found = as_is - so, dict(passed)
        return found

    def _above(self, tensor: str, wanted: Layout) -> Iterator[_Reader]:
        """Operators that alone make what leads to the tensor, and compute nothing with anything else; as they run
        behind the move."""
        graph = self.graph
        while (op := graph.producers.get(tensor)) is not None and op.name in self.strategies:
            alone = len(graph.consumers.get(tensor, ())) == 1 and tensor not in graph.outputs and len(op.outputs) == 1
            parted = [i for i, t in enumerate(op.inputs) if self._parted(t)]
            if not alone or len(parted) != 1 or not self.model.rules[op.name].cost.kind.fuses:
                return
            if any(self._active(t) for i, t in enumerate(op.inputs) if i != parted[0]):
                return
            strategy = next((s for s in self._strategies_of(op) if self._makes(s, wanted, parted[0])), None)
            needed = None if strategy is None else strategy.operands[parted[0]]
            if strategy is None or needed is None:
                return
            step = _Reader(op, strategy, parted[0])
            yield step
            tensor, wanted = step.tensor, needed

    def _strategies_of(self, op: Op) -> tuple[Strategy, ...]:
        """With every split along the axis, beside the roles that the others have, and as all ranks compute the same."""
        rule, roles, active = self.model.rules[op.name], self.strategies[op.name].roles, self._active(op.outputs[0])
        key = id(rule), roles, active
        if key not in self._ways:
            ways = [r for r in axis_roles(rule, training=active) if r.kind == "split"]
            bound = (bind(rule, self.mesh, self._with(roles, way)) for way in (*ways, DEFER if active else REPLICATE))
            self._ways[key] = tuple(s for s in bound if s is not None)
        return self._ways[key]

    def _with(self, roles: tuple[AxisRole, ...], way: AxisRole) -> tuple[AxisRole, ...]:
        place = self.mesh.names.index(self.axis)
        return (*roles[:place], way, *roles[place + 1 :])

    def _active(self, tensor: str) -> bool:
        return self.training and tensor in self.model.active

    def _makes(self, strategy: Strategy, wanted: Layout, operand: int) -> bool:
        """Whether the result lies along the axis as it is wanted, and nothing else has to be moved along it."""
        result = strategy.results[0]
        if result is None or not self._same(result, wanted) or any(self.axis in c.axes for c in strategy.inner):
            return False
        others = (x for i, x in enumerate(strategy.operands) if i != operand)
        return all(x is None or self.axis not in (*x.split_axes, *x.partial_axes) for x in others)

    def _same(self, one: Layout, other: Layout) -> bool:
        """Whether a tensor lies along the axis in both alike."""
        return along(one, self.axis) == along(other, self.axis)

    def _made(self, tensor: str) -> Layout | None:
        """As it is between its producer, behind which pending sums are carried out, and its readers."""
        op = self.graph.producers.get(tensor)
        if op is None or op.name not in self.strategies:
            return None
        layout = self.strategies[op.name].results[op.outputs.index(tensor)]
        return None if layout is None else Layout(layout.dims, (), layout.parts)

    def _parted(self, tensor: str) -> bool:
        made = self._made(tensor)
        return made is not None and self.axis in made.split_axes

    def _received(self, maker: Strategy, reader: _Reader) -> int:
        """What ranks receive of a tensor and of its gradient, along the axis and the one beside it."""
        place = self.graph.producers[reader.tensor].outputs.index(reader.tensor)
        made, read = maker.results[place], reader.strategy.operands[reader.operand]
        if made is None or read is None:
            return 0
        total = self._moved(reader.tensor, Layout(made.dims, (), made.parts), read)
        gradient, wanted = reader.strategy.operand_gradients[reader.operand], maker.result_gradients[place]
        if self._active(reader.tensor) and gradient is not None and wanted is not None:
            total += self._moved(reader.tensor, gradient, wanted)
        return total

    def _moved(self, tensor: str, source: Layout, target: Layout) -> int:
        near = self._near.names
        return self._traffic.moved(tensor, source, along(source, *near), along(target, *near))

    @cached_property
    def _near(self) -> DeviceMesh:
        return DeviceMesh(tuple(a for a in self.mesh.axes if a.name in (self.axis, self.beside)))

    @cached_property
    def _traffic(self) -> Traffic:
        return Traffic(self.graph, self.model, self.mesh, self._near)
