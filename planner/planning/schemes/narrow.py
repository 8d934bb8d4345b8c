"""Where a tensor is moved between two layouts along an axis: at the narrowest point before its reader.

Operators are laid out one after the other as their operands arrive, so that keys and values which exporters repeat for
every group of queries (grouped-query attention, Ainslie et al. 2023) stay divided along positions until an attention
reads them, and would be moved repeated.  Runtimes move them before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

from planner.ir import DeviceMesh, Graph, Layout, Op
from planner.planning.schemes.model import Model
from planner.planning.schemes.ways import Way, deferring, divided, ways_along, whole
from planner.rules.strategy import AxisRole

__all__ = ["moved_where_narrow"]


def moved_where_narrow(
    graph: Graph,
    model: Model,
    mesh: DeviceMesh,
    outside: Mapping[str, tuple[AxisRole, ...]],
    ways: Mapping[str, Way],
    rest: Mapping[str, Layout],
) -> dict[str, Way]:
    """How operators before a move run along the innermost axis of `mesh` where less is moved ahead of them; of the
    others nothing.  `ways`: how each runs, `rest`: how tensors leave their producers, along that axis; `outside`: the
    roles of the other axes, by operator."""
    found: dict[str, Way] = {}
    narrow = _Narrow(graph, model, mesh, outside, rest)
    for op in graph.ops:
        if op.name in ways and model.rules[op.name].cost.kind.product:
            for tensor, wanted in zip(op.inputs, ways[op.name].operands, strict=True):
                if wanted is not None and divided(rest.get(tensor)) and rest[tensor] != wanted:
                    found |= narrow.before(tensor, wanted)
    return found


class _Narrow:
    def __init__(
        self,
        graph: Graph,
        model: Model,
        mesh: DeviceMesh,
        outside: Mapping[str, tuple[AxisRole, ...]],
        rest: Mapping[str, Layout],
    ) -> None:
        self.graph, self.model, self.mesh, self.outside, self.rest = graph, model, mesh, outside, rest
        self._ways: dict[Hashable, tuple[Way, ...]] = {}

    def before(self, tensor: str, wanted: Layout) -> dict[str, Way]:
        """How the operators run between the narrowest point and the tensor, which its reader wants so."""
        passed: dict[str, Way] = {}
        least, found = self._received(tensor, wanted), {}
        for op, way, operand in self._above(tensor, wanted):
            passed[op.name] = way
            received = self._received(op.inputs[operand], way.operands[operand])
            if received < least:
                least, found = received, dict(passed)
        return found

    def _received(self, tensor: str, wanted: Layout | None) -> int:
        """Elements by which moves compare: of a gathered tensor every rank receives all, of another its part."""
        return self.graph.tensors[tensor].elements * (self.mesh.axes[-1].size if whole(wanted) else 1)

    def _above(self, tensor: str, wanted: Layout) -> Iterator[tuple[Op, Way, int]]:
        """Operators that alone make what leads to the tensor, how they run to make it so, and from which operand."""
        graph = self.graph
        while (op := graph.producers.get(tensor)) is not None and op.name in self.outside:
            alone = len(graph.consumers.get(tensor, ())) == 1 and tensor not in graph.outputs and len(op.outputs) == 1
            parted = [i for i, t in enumerate(op.inputs) if divided(self.rest.get(t))]
            if not alone or len(parted) != 1 or not self.model.rules[op.name].cost.kind.fuses:
                return
            way = self._making(op, wanted, parted[0])
            needed = None if way is None else way.operands[parted[0]]
            if way is None or needed is None:
                return
            yield op, way, parted[0]
            tensor, wanted = op.inputs[parted[0]], needed

    def _making(self, op: Op, wanted: Layout, operand: int) -> Way | None:
        """A way to make a tensor so that moves nothing else."""
        rule, outside = self.model.rules[op.name], self.outside[op.name]
        key = id(rule), outside
        if key not in self._ways:
            self._ways[key] = (*ways_along(rule, self.mesh, outside), *deferring(rule, self.mesh, outside))
        # A pending sum of gradients passes what computes the same on all ranks, to be carried out where it is narrow.
        ways = reversed(self._ways[key]) if op.outputs[0] in self.model.active else self._ways[key]
        return next(
            (
                w
                for w in ways
                if w.results[0] == wanted
                and not w.inner
                and all(whole(x) for i, x in enumerate(w.operands) if i != operand)
            ),
            None,
        )
