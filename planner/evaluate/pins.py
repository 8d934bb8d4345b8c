"""A known configuration as constraints of the search: what each mesh axis does to every operator is prescribed, and
what is left open, how tensors travel in between, is searched.  Sums of activations are carried out
where they arise: no operator passes a pending one on.  So Megatron's layout becomes a plan, to be priced,
verified, and emitted.

The mesh is data by expert by context by tensor parallelism, outermost first, less the axes of one rank; of hybrid
sharding data parallelism is two axes, copies by shards.  Data-parallel ranks split the index that counts samples, the
others what `planner.evaluate.axis` prescribes for the samples that `planner evaluate` prices: those of one rank.  Where
an operator cannot be split so on all axes at once, the innermost of them are left out for it.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from planner.clock.configuration import Configuration
from planner.errors import UsageError
from planner.evaluate.axis import Along, AxisKind, lay_out
from planner.evaluate.model import Model, model_of
from planner.ir import DeviceMesh, Graph, Layout, Op
from planner.planning.constraints import Constraints
from planner.planning.constraints.batch import Batch, follow_batch
from planner.planning.constraints.values import LayoutPin, OperatorPin, ParameterPin, StrategyPin
from planner.rules.rule import Rule
from planner.rules.strategy import REPLICATE, AxisRole, Strategy, bind

__all__ = ["constraints_of_configuration", "same_factor"]

_KINDS: Final[tuple[tuple[str, AxisKind | None], ...]] = (
    ("copies", None), ("data", None), ("expert", "expert"), ("context", "context"), ("tensor", "tensor")
)  # fmt: skip


def constraints_of_configuration(graph: Graph, one: Graph, c: Configuration, source: str) -> Constraints:
    """`graph`: of a micro-batch of all data-parallel ranks together; `one`: of the micro_batch · ep samples by which
    `trace` lays operators out, what they cost depending on it; `source`: what messages call the configuration.

    UsageError where an axis would do nothing but repeat the work, or one axis cannot be said as a mesh axis.
    """
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
    divided = _dividing(graph, data) if c.zero else data
    sizes = {
        "copies": c.dp * c.cp // shards * (data // divided),
        "data": divided,
        "expert": c.ep,
        "context": c.cp,
        "tensor": c.tp,
    }
    kinds = [(name, kind) for name, kind in _KINDS if sizes[name] > 1]
    mesh = DeviceMesh.of(*(sizes[name] for name, _ in kinds)) if kinds else DeviceMesh.of(1)
    model = model_of(graph)
    _check_same(graph, one, model, source)
    roles: list[Mapping[str, AxisRole]] = []
    for name, kind in kinds:
        found = _samples(graph, model, c.dp) if kind is None else _along(one, model, c, kind, sizes[name])
        if not any(r.kind == "split" for r in found.values()):
            raise UsageError(f"{source}: {name} parallelism over {sizes[name]} ranks splits nothing of the model")
        roles.append(found)
    bound: dict[str, Strategy] = {}
    for op in graph.ops:
        if op.name not in model.fixed:
            wanted = [found.get(op.name, REPLICATE) for found in roles] or [REPLICATE]
            bound[op.name] = _bound(model, op, mesh, wanted)
    operators = tuple(
        OperatorPin(source, StrategyPin.of(s, mesh, sums_pass=n in model.weights), match=(glob.escape(n),))
        for n, s in bound.items()
    )
    over = [a for a, (name, _) in zip(mesh.names, kinds, strict=False) if name in ("data", "expert", "context")]
    context = [a for a, (name, _) in zip(mesh.names, kinds, strict=False) if name == "context"]
    return Constraints(
        source,
        meshes=(mesh.shape,),
        operators=operators,
        parameters=tuple(_stored(graph, bound, mesh, over if c.zero else [], context, source)),
    )


def _dividing(graph: Graph, ranks: int) -> int:
    """The divisor of so many ranks over which parameters, whose shards are even, are cut into the smallest of them."""

    def held(count: int) -> float:
        return sum(t.elements / (count if any(s % count == 0 for s in t.shape or ()) else 1) for t in graph.parameters)

    return min((d for d in range(1, ranks + 1) if ranks % d == 0), key=lambda d: (held(d), -d))


def _samples(graph: Graph, model: Model, size: int) -> dict[str, AxisRole]:
    batch: Batch = follow_batch(graph, model.rules, {}, "batch")
    out = {}
    for name, factors in batch.factors.items():
        rule = model.rules[name]
        kept = {f for result in rule.results for d in result or () for f in d}  # a look-up's rows are no samples
        fitting = [f for f in sorted(factors, key=lambda f: (f not in kept, f)) if rule.factors[f] % size == 0]
        if fitting and (fitting[0] in kept or rule.kind != "gather"):
            out[name] = AxisRole("split", factor=fitting[0])
    return out


def _check_same(graph: Graph, one: Graph, model: Model, source: str) -> None:
    """UsageError where the operators of the two graphs are not the same."""
    other = model_of(one).rules
    for op in graph.ops:
        if op.name not in model.fixed and op.name not in other:
            raise UsageError(
                f"{source}: the model has no operator {op.name} at the batch of one rank, and one at that of all: give "
                "a --batch or micro_batch at which it has the same operators"
            )


def _along(one: Graph, model: Model, c: Configuration, kind: AxisKind, size: int) -> dict[str, AxisRole]:
    """`model`: of the graph to be planned, whose factors the roles name."""
    own = model_of(one)
    sequence = c.sequence_parallel and kind == "tensor"
    held = _output_layers(one, own, size) if kind == "tensor" else {}
    keys = {**own.keys, **{name: (own.keys[name], "output") for name in held}}
    found = lay_out(one, {**own.rules, **held}, keys, own.active, kind, size, sequence_parallel=sequence)
    _check_along(one, kind, found)
    out = {}
    for name, choice in found.choices.items():
        if name not in model.rules:
            continue
        # A strategy that is a mode names the mode's members as well.
        modes = [f for f in choice.factors if f in own.rules[name].modes]
        for factor in modes or sorted(choice.factors)[:1]:
            same = same_factor(own.rules[name], factor, model.rules[name])
            if same is not None:
                out[name] = _split_by_head(model.rules[name], same, size)
    return out


def _check_along(graph: Graph, axis: AxisKind, along: Along) -> None:
    """UsageError where an axis would do nothing but repeat the work."""
    divided = {t for t, code in along.rest.items() if code >= 0}
    size, names = along.size, {p.name for p in graph.parameters}
    if axis == "tensor" and not divided & names:
        raise UsageError(f"strategy: tp={size}: no weight of the model has columns or rows that {size} divides")
    if axis == "context" and not divided & set(graph.inputs):
        raise UsageError(
            f"strategy: cp={size}: no input of the model has a second dimension (the sequence) that {size} divides"
        )
    if axis == "expert" and not divided & names:
        raise UsageError(f"strategy: ep={size}: the model has no weights of experts in a number that {size} divides")


def _split_by_head(rule: Rule, factor: str, size: int) -> AxisRole:
    """Of queries, keys and values behind each other Megatron gives every rank its heads of all three."""
    parts = 1 if factor in rule.modes else rule.parts.get((factor,), 1)
    if parts == 1:
        return AxisRole("split", factor=factor)
    return AxisRole("split", factor=factor, parts=parts if rule.factors[factor] % (parts * size) == 0 else 1)


def _output_layers(one: Graph, own: Model, size: int) -> dict[str, Rule]:
    """Products by a table that inputs look up, turned or cast → rules that split nothing but the table.

    `lay_out` decides on such a product by its costs, since the lookup has settled the table's layout; Megatron divides
    its columns at every size.
    """
    tables: set[str] = set()
    out = {}
    for op in one.ops:
        rule = own.rules[op.name]
        if rule.kind == "gather" and op.inputs[0] in own.weights:
            tables.add(op.inputs[0])
    for op in one.ops:
        rule = own.rules[op.name]
        read = [t for t in op.inputs if t]
        if tables & set(read) and set(op.outputs) <= own.weights:
            tables.update(op.outputs)
        slot = next((i for i, t in enumerate(op.inputs) if t in tables), None)
        if rule.kind != "matmul" or slot is None:
            continue
        mine = {f for d in rule.operands[slot] or () for f in d}
        columns = [f for d in rule.results[0] or () for f in d if f in mine]
        if any(rule.factors[f] % size == 0 for f in columns):
            out[op.name] = replace(rule, whole=rule.whole | (set(rule.factors) - mine))
    return out


def same_factor(rule: Rule, factor: str, other: Rule) -> str | None:
    """The factor, or mode, of the same operator at another batch: at one sample, factors of reshapes are numbered
    without that of the samples, so names alone do not tell.  None where there is none."""
    if factor in rule.modes:
        return factor if factor in other.modes else None
    places = _places(rule, factor)
    fitting = [f for f in other.factors if _places(other, f) == places]
    return factor if factor in fitting else next(iter(fitting), None)


def _places(rule: Rule, factor: str) -> frozenset[tuple[str, int, int]]:
    """The dimensions, of operands and results, that a factor is part of."""
    return frozenset(
        (kind, i, d)
        for kind, tensors in (("operand", rule.operands), ("result", rule.results))
        for i, dims in enumerate(tensors)
        for d, parts in enumerate(dims or ())
        if factor in parts
    )


def _bound(model: Model, op: Op, mesh: DeviceMesh, wanted: list[AxisRole]) -> Strategy:
    """The operator's strategy; where the roles do not go together, without the innermost that are too many."""
    rule = model.rules[op.name]
    roles = list(wanted)
    for i in reversed(range(len(roles) + 1)):
        roles[i:] = [REPLICATE] * (len(roles) - i)
        strategy = bind(rule, mesh, tuple(roles))
        if strategy is not None:
            return strategy
    raise AssertionError(f"{op.name}: an operator can always be replicated")


def _stored(
    graph: Graph, bound: Mapping[str, Strategy], mesh: DeviceMesh, over: list[str], context: list[str], source: str
) -> list[ParameterPin]:
    """Parameters lie as their first reader computes with them; the first dimension that divides is cut further `over`
    the axes whose ranks hold the same weights."""
    out = []
    for t in graph.parameters:
        readers = [(op, i) for op, i in graph.consumers.get(t.name, ()) if op.name in bound]
        if t.shape is None or not readers:
            continue
        op, slot = readers[0]
        layout = bound[op.name].operands[slot] or Layout.replicated(len(t.shape))
        # Context-parallel ranks hold weights whole, of positions too, of which each reads a part.
        layout = Layout(tuple(tuple(a for a in d if a not in context) for d in layout.dims), (), layout.parts)
        own = [a for a in over if a not in {x for d in layout.dims for x in d}]
        # A dimension that nothing splits yet first: weights are gathered over the ranks that share them alone.
        for d, size in sorted(enumerate(t.shape), key=lambda item: bool(layout.dims[item[0]])):
            if own and size % (mesh.size([*layout.dims[d], *own]) * layout.parts_of(d)) == 0:
                cut = tuple(a for a in mesh.names if a in (*layout.dims[d], *own))
                layout = Layout(tuple(cut if i == d else x for i, x in enumerate(layout.dims)), (), layout.parts)
                break
        out.append(ParameterPin(source, (glob.escape(t.name),), stored=LayoutPin(layout.dims, parts=layout.parts)))
    return out
