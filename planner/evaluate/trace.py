"""Graph and configuration → `Workload`: every kernel and transfer of one rank, counted by unit of the model."""

from __future__ import annotations

from dataclasses import replace

from planner.errors import UsageError
from planner.evaluate.axis import Along, lay_out
from planner.evaluate.configuration import Configuration
from planner.evaluate.fusion import attention_cores, join
from planner.evaluate.holding import workload_of
from planner.evaluate.kernels import HEAVY, count_core, count_heavy
from planner.evaluate.local import Local
from planner.evaluate.model import Model, model_of
from planner.evaluate.regions import count_region, views
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
    at = Local(graph, model, axes, 4.0 if c.precision == "fp32" else 2.0)
    tally = Tally(len(model.repeated))
    regions = join(graph, model.rules, count_transfers(tally, at), model.fixed, c.fuse)
    at = replace(at, alias=views(at, regions))
    cores = attention_cores(graph, model.rules, regions, model.weights)
    in_core = {name for core in cores for name in (core.scores, core.output)}
    in_core |= {op.name for core in cores for r in core.regions for op in regions.members[r]}
    one_kernel = in_core if c.attention != "unfused" else set()
    if one_kernel:
        for core in cores:
            count_core(tally, at, core, regions)
    for op in graph.ops:
        if op.name not in model.fixed and op.name not in one_kernel and at.rule(op).kind in HEAVY:
            count_heavy(tally, at, op, op.name in in_core)
    for number, (first, *_) in enumerate(regions.members):
        if first.name not in one_kernel and at.rule(first).kind not in HEAVY:
            count_region(tally, at, regions, number, first.name in in_core)
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
