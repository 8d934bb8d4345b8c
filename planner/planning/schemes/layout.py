"""A graph laid out along one mesh axis by the rule of its kind.

Operators are decided in order, each by how its operands arrive: the rule of the kind admits some ways to run it.  Of
these the one that moves the fewest bytes is taken, of equals the first: splits in the order of the operator's factors,
replication last.  But a product, convolution, attention or look-up runs whole only where nothing else is admitted: the
work that every rank would repeat costs more than what it would receive.

Sums are carried out where they arise, into a whole tensor or, with sequence parallelism, into one divided along the
sequence (Korthikanti et al. 2022).  Weights take the layout in which their first reader wants them, and what a
transposed or cast one is made of takes the layout that goes with it.  At the end, what would be made whole although all
that read it take the same part, as a bias of the heads, is made in parts (`_Walk.follow_readers`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from planner.frontends.facts.loss import is_loss_of_scores
from planner.ir import DeviceMesh, Graph, Layout, Op, Role
from planner.planning.schemes.arrival import Arrival, KindOfAxis
from planner.planning.schemes.model import Model
from planner.planning.schemes.traffic import Traffic
from planner.planning.schemes.ways import Layouts, Way, divided, ways_along, whole
from planner.rules.cost import Kind
from planner.rules.strategy import AxisRole

__all__ = ["Along", "lay_out"]

Outside = Mapping[str, tuple[AxisRole, ...]]


@dataclass(frozen=True, slots=True)
class Along:
    """How each operator runs along the axis, and how each tensor rests between its producer and its readers."""

    ways: Mapping[str, Way]
    rest: Mapping[str, Layout]


def lay_out(
    graph: Graph,
    model: Model,
    mesh: DeviceMesh,
    outside: Outside,
    kind: KindOfAxis,
    *,
    sequence_parallel: bool = False,
    otherwise: Mapping[str, Way] | None = None,
) -> Along:
    """Along the innermost axis of `mesh`; `outside`: the roles of the others, by operator; `otherwise`: how some
    operators run instead, which changes nothing for others.  Operators that compute the same at every step are left
    out: every rank has what it needs of them."""
    walk = _Walk(graph, model, mesh, outside, kind, sequence_parallel)
    walk.begin()
    for op in graph.ops:
        if op.name not in model.fixed:
            walk.lay(op)
    walk.chosen |= otherwise or {}
    for op in reversed(graph.ops):
        if op.name in walk.chosen:
            walk.follow_readers(op)
    return Along(walk.chosen, walk.rest)


class _Walk:
    def __init__(
        self, graph: Graph, model: Model, mesh: DeviceMesh, outside: Outside, kind: KindOfAxis, sequence_parallel: bool
    ) -> None:
        self.graph = graph
        self.model = model
        self.mesh = mesh
        self.outside = outside
        self.kind = kind
        self.sequence_parallel = sequence_parallel
        self.traffic = Traffic(graph, model, mesh)
        self.rest: dict[str, Layout] = {}
        self.chosen: dict[str, Way] = {}
        self._ways: dict[Hashable, tuple[Way, ...]] = {}
        self._decided: dict[Hashable, Way] = {}

    def begin(self) -> None:
        """Inputs of the model, as they arrive."""
        for name in self.graph.inputs:
            t = self.graph.tensors[name]
            if t.shape is not None and t.role is Role.INPUT:
                self.rest[name] = Layout.replicated(t.rank)
                readers = [(op, i) for op, i in self.graph.consumers.get(name, ()) if op.name not in self.model.fixed]
                if self.kind.inputs is not None and self.kind.inputs < t.rank and readers:
                    op, i = readers[0]
                    self.rest[name] = self._cut(self.ways(op)[-1].strategy.operands[i], t.shape, self.kind.inputs)

    def lay(self, op: Op) -> None:
        if {t for t in op.outputs if t} <= self.model.weights:
            self._lay_weight(op)
            return
        arrive = tuple(self.rest.get(t) for t in op.inputs)
        carry = tuple(t in self.model.active for t in op.inputs)
        weights = frozenset(i for i, t in enumerate(op.inputs) if t in self.model.weights)
        rule = self.model.rules[op.name]
        indexed = rule.cost.kind == "gather" and len(op.inputs) > 1 and self._is_fed(op.inputs[1])
        # What a product feeds decides, too, whether its columns are divided.
        feeds = op.outputs[0] if rule.cost.kind.product else None
        key = id(rule), self.outside[op.name], arrive, carry, weights, indexed, feeds
        if key not in self._decided:
            self._decided[key] = self._decide(op, arrive, weights, indexed)
        way = self.chosen[op.name] = self._decided[key]
        for t, wanted in zip(op.inputs, way.operands, strict=True):
            if t in self.model.weights and t not in self.rest and wanted is not None:
                self._settle(t, wanted)
        for t, leaves in zip(op.outputs, self._leave(op, way), strict=True):
            if t:
                self.rest[t] = leaves or Layout.replicated(self.graph.tensors[t].rank)

    def follow_readers(self, op: Op) -> None:
        """What would be made whole, where all that read it take the same part of it, is made in parts if it can be."""
        made, light = op.outputs[0], self.model.rules[op.name].cost.kind.fuses
        if self.chosen[op.name].splits or not light or len(op.outputs) > 1:
            return
        if made in self.model.weights or made in self.graph.outputs:
            return
        readers = [(r, i) for r, i in self.graph.consumers.get(made, ()) if r.name in self.chosen]
        wanted = {self.chosen[r.name].operands[i] for r, i in readers}
        layout = next(iter(wanted), None)
        if len(wanted) != 1 or not divided(layout):
            return
        fitting = (w for w in self.ways(op) if w.splits and not w.inner and w.results == (layout,))
        way = next((w for w in fitting if self._can_be_made_so(op, w)), None)
        if way is not None and layout is not None:
            self.chosen[op.name], self.rest[made] = way, layout

    def _can_be_made_so(self, op: Op, way: Way) -> bool:
        """Whether every rank has what the operator needs then: weights stay as they lie, and what lies whole is cut.
        And whether gradients of its operands are no more to put together than the one of its result."""
        tensors, together = self.graph.tensors, 0
        for t, need, gradient in zip(op.inputs, way.operands, way.operand_gradients, strict=True):
            if divided(need) and (t in self.model.weights or not whole(self.rest.get(t))):
                return False
            if t in self.model.active and need is not None:  # gathered; or summed, which takes twice as much
                together += tensors[t].elements * (2 if gradient is not None and gradient.partial else 1)
        return together <= tensors[op.outputs[0]].elements

    def ways(self, op: Op) -> tuple[Way, ...]:
        rule, outside = self.model.rules[op.name], self.outside[op.name]
        key = id(rule), outside
        if key not in self._ways:
            self._ways[key] = ways_along(rule, self.mesh, outside)
        return self._ways[key]

    def _decide(self, op: Op, arrive: Layouts, weights: frozenset[int], indexed: bool) -> Way:
        ways = self.ways(op)
        matrices = tuple(
            i for i in sorted(weights) if ways[-1].operands[i] is not None and self.graph.tensors[op.inputs[i]].rank > 1
        )
        rule = self.model.rules[op.name]
        at = Arrival(op, rule, arrive, weights, matrices, indexed, lambda x: self._feeds_products(op.outputs[0], x))

        def order(way: Way) -> tuple[bool, int]:
            return at.heavy and not way.splits, self.traffic.of(op, way, arrive, self._leave(op, way))

        return min(self.kind.rule(at, ways), key=order)

    def _leave(self, op: Op, way: Way) -> Layouts:
        """How results leave the operator: of pending sums, where they are carried out into."""

        def carried_out(tensor: str, strategy: Layout) -> Layout:
            shape = self.graph.tensors[tensor].shape
            if not self.sequence_parallel or shape is None or len(shape) < 2:
                return Layout.replicated(len(strategy.dims))
            return self._cut(strategy, shape, 1 if len(shape) >= 3 else 0)

        return tuple(
            made if made is None or full is None or not made.partial else carried_out(t, full)
            for t, made, full in zip(op.outputs, way.results, way.strategy.results, strict=True)
        )

    def _cut(self, outside: Layout | None, shape: tuple[int, ...], dim: int) -> Layout:
        """A tensor divided along the dimension where it divides, beside the axes that do so already, else whole."""
        axis = self.mesh.axes[-1]
        before = () if outside is None else outside.dims[dim]
        if shape[dim] % (self.mesh.size(before) * axis.size):
            return Layout.replicated(len(shape))
        return Layout(tuple((axis.name,) if d == dim else () for d in range(len(shape))))

    def _lay_weight(self, op: Op) -> None:
        """A transposed or cast weight follows the weight, or, where that is open, will follow its reader."""
        ways = self.ways(op)
        self.chosen[op.name] = ways[-1]
        made_of = [i for i, t in enumerate(op.inputs) if t in self.model.weights]
        if len(made_of) != 1 or op.inputs[made_of[0]] not in self.rest:
            return
        lies = self.rest[op.inputs[made_of[0]]]
        way = self.chosen[op.name] = next((w for w in ways if w.operands[made_of[0]] == lies), ways[-1])
        for t, made in zip(op.outputs, way.results, strict=True):
            if t and made is not None:
                self.rest[t] = Layout.replicated(len(made.dims)) if made.partial else made

    def _settle(self, tensor: str, layout: Layout) -> None:
        """Fixes the layout of a weight, and of the weights it is made of.  An added one that arrives as a pending sum
        lies whole: the first rank keeps it, the others add nothing."""
        self.rest[tensor] = Layout.replicated(len(layout.dims)) if layout.partial else layout
        op = self.graph.producers.get(tensor)
        if op is None:
            return
        j, ways = op.outputs.index(tensor), self.ways(op)
        way = self.chosen[op.name] = next((w for w in ways if w.results[j] == self.rest[tensor]), ways[-1])
        for t, wanted in zip(op.inputs, way.operands, strict=True):
            if t in self.model.weights and t not in self.rest and wanted is not None:
                self._settle(t, wanted)

    def _is_fed(self, tensor: str) -> bool:
        """Whether the tensor is an input of the model, or a view of one."""
        producers, rules = self.graph.producers, self.model.rules
        while (op := producers.get(tensor)) is not None and op.inputs and _hands_on(rules[op.name].cost.kind):
            tensor = op.inputs[0]
        t = self.graph.tensors.get(tensor)
        return t is not None and t.role is Role.INPUT

    def _feeds_products(self, tensor: str, layout: Layout) -> bool:
        """Whether a tensor in this layout is read by products, or by nothing, before a normalisation over what it
        divides."""
        open_, seen = [(tensor, layout)], set[tuple[str, Layout]]()
        while open_:
            at = open_.pop()
            if at in seen:
                continue
            seen.add(at)
            for op, i in self.graph.consumers.get(at[0], ()):
                if not self.model.rules[op.name].cost.kind.fuses or is_loss_of_scores(op.type):
                    continue
                ways = [w for w in self.ways(op) if w.operands[i] == at[1]]
                if ways and all(w.inner or any(x is not None and x.partial for x in w.results) for w in ways):
                    return False
                open_ += [(t, x) for w in ways[:1] for t, x in zip(op.outputs, w.results, strict=True) if t and x]
        return True


def _hands_on(kind: Kind) -> bool:
    """A cast of indices is elementwise."""
    return kind.view or kind is Kind.ELEMENTWISE
