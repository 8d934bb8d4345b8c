"""A known configuration as constraints of the search: what each mesh axis does to every operator is prescribed, and
what is left open, how tensors travel in between, is searched.  Sums of activations are carried out where they arise: no
operator passes a pending one on, but of gradients of what is moved before it is repeated (`narrow`).  So Megatron's
layout becomes a plan, to be priced, verified, and emitted.

The mesh is data by expert by context by tensor parallelism, outermost first (context inside tensor parallelism where
attention exchanges heads), less the axes of one rank; of hybrid sharding data parallelism is two axes, copies by
shards.  Axes are laid out one after the other, each within what those outside it leave.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from planner.clock.configuration import Configuration
from planner.errors import UsageError
from planner.ir import DeviceMesh, Graph
from planner.planning.constraints import Constraints
from planner.planning.constraints.values import OperatorPin, StrategyPin
from planner.planning.schemes.arrival import KindOfAxis
from planner.planning.schemes.context import BY_GATHER, BY_RING
from planner.planning.schemes.expert import EXPERT
from planner.planning.schemes.heads import by_heads
from planner.planning.schemes.layout import Along, lay_out
from planner.planning.schemes.model import Model, model_of
from planner.planning.schemes.narrow import Narrow
from planner.planning.schemes.rank_axes import rank_axes
from planner.planning.schemes.samples import roles_of_samples
from planner.planning.schemes.stored import Inside, beyond_zero, ranks_that_divide, stored
from planner.planning.schemes.tensor import TENSOR
from planner.rules.strategy import REPLICATE, AxisRole, Strategy, bind
from planner.targets import Target

__all__ = ["constraints_of_configuration"]


@dataclass(frozen=True, slots=True)
class _Axis:
    """`kind`: None of data parallelism."""

    name: str
    size: int
    kind: KindOfAxis | None


_Operators = tuple[Mapping[str, Strategy], tuple[OperatorPin, ...]]
_KNOWN: WeakKeyDictionary[Graph, dict[object, _Operators]] = WeakKeyDictionary()


def constraints_of_configuration(
    graph: Graph, c: Configuration, source: str, target: Target = "any", *, training: bool = True
) -> Constraints:
    """`graph`: of a micro-batch of all data-parallel ranks together; `source`: what messages call the configuration;
    `target`: the runtime whose way of dividing the optimizer's state is taken; `training`: whether there are gradients.

    UsageError where an axis would do nothing but repeat the work, or one axis cannot be said as a mesh axis.
    """
    axes = _axes(graph, c, source, target)

    def named(*names: str) -> list[str]:
        return [axis for axis, a in zip(mesh.names, axes, strict=False) if a.name in names]

    mesh = DeviceMesh.of(*(a.size for a in axes)) if axes else DeviceMesh.of(1)
    model = model_of(graph)
    known = _KNOWN.setdefault(graph, {})
    key = tuple(axes), c.dp, c.sequence_parallel, c.exchanges_heads, training, source
    if key not in known:  # levels of ZeRO differ in parameters alone
        found = _strategies(graph, model, c, mesh, axes, source)
        context, tensor = (next(iter(named(name)), None) for name in ("context", "tensor"))
        if context is not None:
            found |= Narrow(graph, model, mesh, found, context, tensor, training).strategies_before()
        known[key] = (
            found,
            tuple(
                OperatorPin(source, StrategyPin.of(s, mesh, sums_pass=n in model.weights), match=(glob.escape(n),))
                for n, s in found.items()
            ),
        )
    strategies, operators = known[key]
    over = named("data", "expert", "context") if c.zero else []
    whole = beyond_zero(graph, c.zero) if training else frozenset()
    parameters = stored(graph, strategies, mesh, over, named("context"), source, target, whole)
    return Constraints(source, meshes=(mesh.shape,), operators=operators, parameters=parameters)


def _axes(graph: Graph, c: Configuration, source: str, target: Target) -> list[_Axis]:
    """Those of more than one rank, outermost first."""
    if c.dp % c.ep:
        raise UsageError(f"{source}: ep={c.ep}: expected a divisor of dp={c.dp}: experts lie on data-parallel ranks")
    # Context-parallel ranks hold the same weights as well; they lie inside, and so does what divides experts.
    inside = c.ep * c.cp
    shards = c.dp * c.cp if c.shard_ranks is None else c.shard_ranks
    if (c.dp * c.cp) % shards or shards % inside:
        raise UsageError(
            f"{source}: shard={shards}: expected a divisor of dp * cp = {c.dp * c.cp}, and a multiple of "
            f"ep * cp = {inside}"
        )
    data = shards // inside
    # MindSpore divides a parameter among all ranks with equal parts, or not at all.
    divided = ranks_that_divide(graph, data, Inside(c.ep, c.cp)) if c.zero and target != "mindspore" else data
    if c.exchanges_heads and c.tp > 1 and c.sequence_parallel:
        raise UsageError(
            f"{source}: context=all-to-all beside sequence parallelism: heads would be divided by TP, then by CP, "
            "and positions by CP, then by TP; a plan's mesh has its axes in one order; give sp=false, or leave "
            "context out"
        )
    kinds = {"expert": EXPERT, "context": BY_GATHER if c.context == "gather" else BY_RING, "tensor": TENSOR}
    return [_Axis(name, size, kinds.get(name)) for name, size in rank_axes(c, divided)]


def _strategies(
    graph: Graph, model: Model, c: Configuration, mesh: DeviceMesh, axes: list[_Axis], source: str
) -> dict[str, Strategy]:
    """Of every operator that computes something at every step."""
    roles: dict[str, tuple[AxisRole, ...]] = {op.name: () for op in graph.ops if op.name not in model.fixed}
    for i, axis in enumerate(axes):
        within = DeviceMesh(mesh.axes[: i + 1])
        if axis.kind is None:
            found = _samples(graph, model, c.dp, within, roles)
        else:
            exchanging = axis.name == "context" and c.exchanges_heads
            along = lay_out(
                graph,
                model,
                within,
                roles,
                axis.kind,
                sequence_parallel=c.sequence_parallel and axis.kind is TENSOR,
                otherwise=by_heads(graph, model, within, roles, source) if exchanging else None,
            )
            _check(graph, axis, along)
            found = {name: way.role for name, way in along.ways.items()}
        if not any(r.kind == "split" for r in found.values()):
            raise UsageError(f"{source}: {axis.name} parallelism over {axis.size} ranks splits nothing of the model")
        roles = {name: (*outside, found.get(name, REPLICATE)) for name, outside in roles.items()}
    bound = _Bound(model, mesh)
    return {name: bound.strategy(name, mine or (REPLICATE,)) for name, mine in roles.items()}


def _samples(
    graph: Graph, model: Model, ranks: int, mesh: DeviceMesh, outside: Mapping[str, tuple[AxisRole, ...]]
) -> dict[str, AxisRole]:
    """Where the role goes together with those outside."""
    wanted, bound = roles_of_samples(graph, model.rules, ranks), _Bound(model, mesh)
    return {n: role for n, role in wanted.items() if n in outside and bound.allows(n, (*outside[n], role))}


class _Bound:
    """Strategies on one mesh; operators that look the same have the same."""

    def __init__(self, model: Model, mesh: DeviceMesh) -> None:
        self.model = model
        self.mesh = mesh
        self._found: dict[object, Strategy | None] = {}

    def allows(self, name: str, roles: tuple[AxisRole, ...]) -> bool:
        return self._of(name, roles) is not None

    def strategy(self, name: str, roles: tuple[AxisRole, ...]) -> Strategy:
        found = self._of(name, roles)
        assert found is not None, f"{name}: {roles} are found to go together axis by axis"
        return found

    def _of(self, name: str, roles: tuple[AxisRole, ...]) -> Strategy | None:
        rule = self.model.rules[name]
        key = id(rule), roles
        if key not in self._found:
            self._found[key] = bind(rule, self.mesh, roles)
        return self._found[key]


def _check(graph: Graph, axis: _Axis, along: Along) -> None:
    """UsageError where an axis would do nothing but repeat the work."""
    kind = axis.kind
    assert kind is not None
    names = [p.name for p in graph.parameters] if kind.divides_weights else graph.inputs
    if not any(any(along.rest[t].dims) for t in names if t in along.rest):
        raise UsageError(f"strategy: {kind.key}={axis.size}: {kind.lacking.format(axis.size)}")
