"""Context parallelism by all-to-all (DeepSpeed-Ulysses, Jacobs et al. 2023; Megatron's `--cp-comm-type a2a`).

Positions are divided everywhere but inside an attention, whose ranks divide its heads instead: an all-to-all brings
queries, keys and values to the ranks of their heads, and another one the results back to those of their positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planner.errors import UsageError
from planner.ir import DeviceMesh, Graph, Layout, Op
from planner.planning.schemes.model import Model
from planner.planning.schemes.ways import Way, divided, ways_along
from planner.rules.strategy import AxisRole
from planner.work.fusion import fusion_of

__all__ = ["by_heads"]


def by_heads(
    graph: Graph, model: Model, mesh: DeviceMesh, outside: Mapping[str, tuple[AxisRole, ...]], source: str
) -> dict[str, Way]:
    """How the operators of every attention run along the innermost axis of `mesh`; `outside`: the roles of the other
    axes, by operator.

    UsageError where the model has no attention, or one whose heads the axis does not divide.
    """
    found: dict[str, Way] = {}
    ranks = mesh.axes[-1].size
    for ops in _attentions(graph, model):
        here: dict[str, Layout | None] = {}
        for op in ops:
            ways = ways_along(model.rules[op.name], mesh, outside[op.name])
            way = _first(ways) if op is ops[0] else _following(ways, op, here)
            if way is None:
                raise UsageError(
                    f"{source}: context=all-to-all: {op.name} cannot divide its heads among {ranks} ranks; leave "
                    "context out, or give a cp (beside tp) that divides the heads of queries, keys and values"
                )
            here |= zip(op.outputs, way.results, strict=True)
            found[op.name] = way
    if not found:
        raise UsageError(f"{source}: context=all-to-all: the model has no attention whose heads are exchanged")
    return found


def _attentions(graph: Graph, model: Model) -> Iterator[Sequence[Op]]:
    """The operators of each: one, or two products of activations and what lies between."""
    yield from (
        [op] for op in graph.ops if model.rules[op.name].cost.kind == "attention" and op.name not in model.fixed
    )
    fusion = fusion_of(graph, model.rules, model.active, chains=True, attention=True, copies=False)
    place = {op.name: i for i, op in enumerate(graph.ops)}
    for core in fusion.cores:
        between = [op for op in core.between if place[core.scores] < place[op.name] < place[core.output]]
        yield [graph.op(core.scores), *between, graph.op(core.output)]


def _first(ways: Sequence[Way]) -> Way | None:
    """Along what queries, keys and the result have in common, but for the first dimension: it is of samples, or of
    samples with their heads, whose parts may be samples."""
    return next((w for w in ways if w.splits and not w.inner and _divides_heads(w)), None)


def _divides_heads(way: Way) -> bool:
    queries, keys, result = *way.operands[:2], way.results[0]
    if queries is None or result is None or result.partial or not (divided(keys) and divided(result)):
        return False
    return divided(queries) and not queries.dims[0]


def _following(ways: Sequence[Way], op: Op, here: Mapping[str, Layout | None]) -> Way | None:
    """As what the attention has made arrives; of what is made outside of it, a mask, whatever goes with that."""
    arrives = {i: here[t] for i, t in enumerate(op.inputs) if here.get(t) is not None}
    return next(
        (
            w
            for w in ways
            if (w.splits or not any(map(divided, arrives.values())))
            and all(w.operands[i] == x for i, x in arrives.items())
            and not any(x is not None and x.partial for x in w.results)
        ),
        None,
    )
