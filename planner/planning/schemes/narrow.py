"""Where a tensor is moved between two layouts along an axis: at the narrowest point before its reader.

Operators are laid out one after the other as their operands arrive, so that keys and values which exporters repeat for
every group of queries (grouped-query attention, Ainslie et al. 2023) stay divided along positions until an attention
reads them, and would be moved repeated.  Runtimes move them before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.ir import DeviceMesh, Graph, Layout, Op
from planner.planning.schemes.model import Model
from planner.redistribute import Redistributions
from planner.rules.strategy import DEFER, REPLICATE, AxisRole, Strategy, axis_roles, bind

__all__ = ["moved_where_narrow"]

_WORTH: Final = 0.5  # of what is received: latencies, and what is held between the passes, may outweigh less


def moved_where_narrow(
    graph: Graph,
    model: Model,
    mesh: DeviceMesh,
    strategies: Mapping[str, Strategy],
    along: str,
    beside: str | None,
    *,
    training: bool,
) -> dict[str, Strategy]:
    """How operators before a move run along the axis `along` of `mesh` where less is received if what they read is
    moved in place of what they make; of the others nothing.  `beside`: an axis along which the same tensors may be
    moved as well.  Where there is `training`, gradients are, and operators that compute the same on all ranks pass
    pending sums of them on, to be carried out where they are narrow."""
    narrow = _Narrow(graph, model, mesh, strategies, along, beside, model.active if training else frozenset())
    found: dict[str, Strategy] = {}
    for op in graph.ops:
        if op.name in strategies and model.rules[op.name].cost.kind.product:
            for operand in range(len(op.inputs)):
                found |= narrow.before(op, operand)
    return found


@dataclass(frozen=True, slots=True)
class _Passed:
    """An operator before a move, how it runs behind the move, and which of its operands is moved in place of its
    result."""

    op: Op
    strategy: Strategy
    operand: int


@dataclass(frozen=True, slots=True)
class _Read:
    """A tensor's reader, and by which operand it reads it."""

    strategy: Strategy
    operand: int


class _Received:
    """Prices of collectives: what a rank receives, in thousandths of a byte (`planner.planning.schemes.traffic`)."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh

    def collective(
        self, kind: str, axes: tuple[str, ...], group_bytes: NDArray[np.float64], share: object = 1.0
    ) -> NDArray[np.int64]:
        n = self.mesh.size(axes)
        times = {"all_reduce": 2 * (n - 1) / n, "all_to_all": (n - 1) / n**2, "permute": 1 / n}
        return np.rint(1e3 * group_bytes * times.get(kind, (n - 1) / n)).astype(np.int64)


class _Narrow:
    def __init__(
        self,
        graph: Graph,
        model: Model,
        mesh: DeviceMesh,
        strategies: Mapping[str, Strategy],
        along: str,
        beside: str | None,
        active: frozenset[str],
    ) -> None:
        self.graph, self.model, self.mesh, self.strategies, self.active = graph, model, mesh, strategies, active
        self.along, self._place = along, mesh.names.index(along)
        self._near = DeviceMesh(tuple(a for a in mesh.axes if a.name in (along, beside)))
        self._prices = _Received(self._near)
        self._ways: dict[Hashable, tuple[Strategy, ...]] = {}
        self._moves: dict[Hashable, int] = {}

    def before(self, reader: Op, operand: int) -> dict[str, Strategy]:
        """How the operators run between the narrowest point and what the reader wants moved, if anything."""
        own = self.strategies[reader.name]
        tensor, wanted = reader.inputs[operand], own.operands[operand]
        made = self._made(tensor)
        if wanted is None or made is None or not self._parted(tensor) or self._same(made, wanted):
            return {}
        passed: dict[str, Strategy] = {}
        found: dict[str, Strategy] = {}
        least = 0.0  # saved, so far
        new = old = 0  # what is received between the operators that were passed, so and as they are
        behind, behind_old = _Read(own, operand), _Read(own, operand)
        for step in self._above(tensor, wanted):
            before, after = self.strategies[step.op.name], step.strategy
            passed[step.op.name] = after
            new += self._received(tensor, after, behind)
            old += self._received(tensor, before, behind_old)
            behind, behind_old = _Read(after, step.operand), _Read(before, step.operand)
            tensor = step.op.inputs[step.operand]
            maker = self.strategies[self.graph.producers[tensor].name]
            so, as_is = new + self._received(tensor, maker, behind), old + self._received(tensor, maker, behind_old)
            if so <= _WORTH * as_is and as_is - so > least:
                least, found = as_is - so, dict(passed)
        return found

    def _above(self, tensor: str, wanted: Layout) -> Iterator[_Passed]:
        """Operators that alone make what leads to the tensor, which compute nothing with anything else."""
        graph = self.graph
        while (op := graph.producers.get(tensor)) is not None and op.name in self.strategies:
            alone = len(graph.consumers.get(tensor, ())) == 1 and tensor not in graph.outputs and len(op.outputs) == 1
            parted = [i for i, t in enumerate(op.inputs) if self._parted(t)]
            if not alone or len(parted) != 1 or not self.model.rules[op.name].cost.kind.fuses:
                return
            if any(t in self.active for i, t in enumerate(op.inputs) if i != parted[0]):
                return
            strategy = next((s for s in self._strategies(op) if self._makes(s, wanted, parted[0])), None)
            needed = None if strategy is None else strategy.operands[parted[0]]
            if strategy is None or needed is None:
                return
            yield _Passed(op, strategy, parted[0])
            tensor, wanted = op.inputs[parted[0]], needed

    def _strategies(self, op: Op) -> tuple[Strategy, ...]:
        """With every split along the axis, beside the roles that the others have, and as all ranks compute the same."""
        rule, roles = self.model.rules[op.name], self.strategies[op.name].roles
        active = op.outputs[0] in self.active
        key = id(rule), roles, active
        if key not in self._ways:
            ways = [r for r in axis_roles(rule, training=active) if r.kind == "split"]
            bound = (bind(rule, self.mesh, self._with(roles, way)) for way in (*ways, DEFER if active else REPLICATE))
            self._ways[key] = tuple(s for s in bound if s is not None)
        return self._ways[key]

    def _with(self, roles: tuple[AxisRole, ...], way: AxisRole) -> tuple[AxisRole, ...]:
        return (*roles[: self._place], way, *roles[self._place + 1 :])

    def _makes(self, strategy: Strategy, wanted: Layout, operand: int) -> bool:
        """Whether the result lies along the axis as it is wanted, and nothing else has to be moved along it."""
        result = strategy.results[0]
        if result is None or not self._same(result, wanted) or any(self.along in c.axes for c in strategy.inner):
            return False
        others = (x for i, x in enumerate(strategy.operands) if i != operand)
        return all(x is None or self.along not in (*x.split_axes, *x.partial_axes) for x in others)

    def _same(self, one: Layout, other: Layout) -> bool:
        """Whether a tensor lies along the axis in both alike."""
        return _only(one, (self.along,)) == _only(other, (self.along,))

    def _made(self, tensor: str) -> Layout | None:
        """As it is between its producer, behind which pending sums are carried out, and its readers."""
        op = self.graph.producers.get(tensor)
        if op is None or op.name not in self.strategies:
            return None
        layout = self.strategies[op.name].results[op.outputs.index(tensor)]
        return None if layout is None else Layout(layout.dims, (), layout.parts)

    def _parted(self, tensor: str) -> bool:
        made = self._made(tensor)
        return made is not None and self.along in made.split_axes

    def _received(self, tensor: str, maker: Strategy, reader: _Read) -> int:
        """What a rank receives of a tensor and of its gradient, along the axis and the one beside it."""
        place = self.graph.producers[tensor].outputs.index(tensor)
        made, gradient = maker.results[place], maker.result_gradients[place]
        if made is None:
            return 0
        read = reader.strategy.operands[reader.operand]
        total = self._moved(tensor, Layout(made.dims, (), made.parts), read)
        if tensor in self.active:
            total += self._moved(tensor, reader.strategy.operand_gradients[reader.operand], gradient)
        return total

    def _moved(self, tensor: str, source: Layout | None, target: Layout | None) -> int:
        t, names = self.graph.tensors[tensor], self._near.names
        if source is None or target is None or t.shape is None:
            return 0
        ends = _only(source, names), _only(target, names)
        if ends[0] == ends[1]:
            return 0
        outside = self.mesh.size(a for a in source.split_axes if a not in names)
        counts = [{x.parts_of(d) for x in ends} - {1} for d in range(t.rank)]
        parts = tuple(map(tuple, counts)) if any(counts) else ()
        key = t.shape, t.bytes // outside, ends, parts
        if key not in self._moves:
            table = Redistributions(t.shape, t.bytes // outside, self._near, self._prices, parts=parts)
            self._moves[key] = table.cost(*ends)
        return self._moves[key]


def _only(layout: Layout, axes: tuple[str, ...]) -> Layout:
    """What the layout says of these axes."""
    dims = tuple(tuple(a for a in d if a in axes) for d in layout.dims)
    parts = tuple(n if d else 1 for n, d in zip(layout.parts, dims, strict=False))
    return Layout(dims, tuple(p for p in layout.partial if p[0] in axes), parts if any(n > 1 for n in parts) else ())
