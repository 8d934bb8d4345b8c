"""Graph and configuration → `Workload`: every kernel and transfer of one rank, counted by unit of the model."""

from __future__ import annotations

from planner.errors import UsageError
from planner.evaluate.axis import Along, lay_out
from planner.evaluate.configuration import Configuration
from planner.evaluate.holding import workload_of
from planner.evaluate.kernels import count_core, count_materialised, count_operator, count_region
from planner.evaluate.local import Local
from planner.evaluate.model import Model, model_of
from planner.evaluate.tally import Tally
from planner.evaluate.transfers import count_transfers
from planner.evaluate.workload import Axis, Workload
from planner.ir import Graph

__all__ = ["check_along", "trace"]


def trace(graph: Graph, configuration: Configuration) -> Workload:
    """The workload of one rank for one micro-batch.

    The graph's batch is micro_batch · ep samples: ranks that share experts exchange tokens.  Pipeline, data
    parallelism, ZeRO and full recomputation act on units and do not change the trace, which is kept with the graph.
    """
    model = model_of(graph)
    c = configuration
    key = (c.tp, c.cp, c.ep, c.sequence_parallel, c.attention != "unfused", c.fuse, c.precision)
    if key not in model.traced:
        model.traced[key] = _traced(graph, model, c)
    return model.traced[key]


def _traced(graph: Graph, model: Model, c: Configuration) -> Workload:
    sizes: dict[Axis, int] = {"tensor": c.tp, "context": c.cp, "expert": c.ep}
    axes = {axis: _along(graph, model, c, axis, size) for axis, size in sizes.items() if size > 1}
    for axis, along in axes.items():
        check_along(graph, axis, along)
    fusion = model.fusion(graph, chains=c.fuse, attention=c.attention != "unfused")
    at = Local(graph, model, axes, 4.0 if c.precision == "fp32" else 2.0, fusion.alias)
    tally = Tally(len(model.repeated))
    barriers = count_transfers(tally, at)
    count_materialised(tally, at, fusion, barriers)
    cores = {name for core in fusion.cores for name in (core.scores, core.output)}
    cores |= {op.name for core in fusion.cores for op in fusion.members[core.region]}
    joined = set[int]()
    if c.attention != "unfused":
        joined = {core.region for core in fusion.cores}
        for core in fusion.cores:
            count_core(tally, at, fusion, core)
    for op in graph.ops:
        if op.name in fusion.parts:
            count_operator(tally, at, fusion, op, op.name in cores)
    for number, (first, *_) in enumerate(fusion.members):
        if number not in joined:
            count_region(tally, at, fusion, number, first.name in cores)
    return workload_of(tally, at)


def check_along(graph: Graph, axis: Axis, along: Along) -> None:
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


def _along(graph: Graph, model: Model, c: Configuration, axis: Axis, size: int) -> Along:
    along = c.sequence_parallel and axis == "tensor"
    key = (axis, size, along)
    if key not in model.along:
        model.along[key] = lay_out(graph, model.rules, model.keys, model.active, axis, size, sequence_parallel=along)
    return model.along[key]
