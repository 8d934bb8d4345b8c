"""A searched plan as a pipeline: what each stage costs and holds, and how long a step of all micro-batches takes.

The plan is that of one micro-batch on one stage's devices; all stages have meshes of that shape, ranks count stage by
stage, and what crosses goes to the rank at the same place of the next one (Narayanan et al. 2021).  The model is cut
into chunks, of which a stage holds one, or several where the schedule interleaves them: chunk k goes to the stage that
`planner.cost_models.pipeline.stage_numbers` says.  Per micro-batch a stage runs its operators and their
redistributions.  Once a step it gathers stored parameters, sums gradients and updates: what of that hides beside the
first and the last pass is hidden, the rest counts behind the last micro-batch.  One stage of several micro-batches
accumulates gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.clock import (
    StepTimes,
    compute_bound,
    held_by_rank,
    overhead,
    redistribution_cost,
    run_cost,
    step_of,
    usual,
    workload_of_plan,
)
from planner.clock.stages import chunks as chunks_of_layers
from planner.cost_models.link import CollectiveModel
from planner.cost_models.pipeline import PipelineRun, Schedule, holders_of_chunks, simulate, stage_numbers
from planner.ir import Graph, Op
from planner.lowering import Redistribute, Run
from planner.planning.pipeline.cut import (
    boundaries,
    crossing_bytes,
    cut_points,
    cuts_between,
    flowing,
    stage_of_operators,
)
from planner.planning.pipeline.tied import StageSum, stage_sums, stages_of_parameters
from planner.planning.planner import Planned, gap_of
from planner.work.units import units_of

__all__ = ["ChunkCost", "Pipelined", "StageCost", "pipelined"]

_ORDER: Final = "1f1b"  # of a plan that no configuration prescribes


@dataclass(frozen=True, slots=True)
class ChunkCost:
    """Seconds of a chunk of the model for a micro-batch: forward, backward (of which gradients of weights, which some
    schedules run apart, take `weights_s`), and sent on."""

    forward_s: float
    backward_s: float
    weights_s: float
    sends_s: float


@dataclass(frozen=True, slots=True)
class StageCost:
    """Seconds of a stage: of a micro-batch forward, backward and sent on, and of what happens once a step; `chunks`: of
    each of its chunks of the model."""

    forward_s: float
    backward_s: float
    sends_s: float
    once_s: float
    chunks: tuple[ChunkCost, ...]


@dataclass(frozen=True, eq=False)
class Pipelined:
    """`planned` cut into stages, whose passes run in `order`.  `chunk_of`: operator → chunk of the model, from its
    beginning; `chunks`: how many each stage holds; `run`: the simulated passes, of one micro-batch or of several
    that interleave; `step_time_s` with what happens
    once a step; `memory`: bytes per device of each stage at its peak; `shared`: parameters that several stages read,
    which each of them holds and whose gradients they sum, as `sums` say; `costs`: by stage; `parts_s`: seconds of the
    step by cause, on the busiest stage; `sends_overlap`: whether stages compute while they send."""

    planned: Planned
    micro_batches: int
    order: Schedule
    chunks: int
    chunk_of: Mapping[str, int]
    run: PipelineRun
    step_time_s: float
    memory: tuple[int, ...]
    shared: tuple[str, ...]
    costs: tuple[StageCost, ...]
    parts_s: Mapping[str, float]
    sums: tuple[StageSum, ...] = ()
    sends_overlap: bool = False

    @cached_property
    def stage_of(self) -> dict[str, int]:
        """Operator → stage."""
        return _stages(self.chunk_of, self.order, self.stages, self.chunks)

    @cached_property
    def place_of(self) -> dict[str, int]:
        """Operator → which of its stage's chunks it is in."""
        numbers = stage_numbers(self.order, self.stages, self.chunks)
        place = {int(k): c for (_, c), k in np.ndenumerate(numbers)}
        return {name: place[k] for name, k in self.chunk_of.items()}

    @property
    def step_bound_s(self) -> float:
        """No division into these stages computes all micro-batches faster than evenly."""
        priced = self.planned.priced
        computing, _ = compute_bound(priced, pinned=False)
        return (self.micro_batches * computing / self.stages + overhead(priced)) * priced.machine.unit_s

    @property
    def gap(self) -> float:
        """(step time - bound) / step time."""
        return gap_of(self.step_time_s, self.step_bound_s)

    @property
    def status(self) -> str:
        return "optimal" if self.gap == 0 else "feasible"

    @property
    def stages(self) -> int:
        return len(self.memory)

    @property
    def devices(self) -> int:
        return self.stages * self.planned.mesh.devices


def pipelined(
    planned: Planned,
    stages: int,
    micro_batches: int,
    held: Mapping[str, int] | None = None,
    points: Sequence[int] | None = None,
) -> Pipelined:
    """`held`: the stage of each parameter, where that is given; `points`: the operators that chunks 1, 2, … of the
    model begin with; else those of a known configuration, or the cuts that balance the stages are found.

    InputError where the graph cannot be cut into so many stages."""
    priced, execution = planned.priced, planned.request.execution
    graph = priced.graph
    order: Schedule = _ORDER if execution is None else execution.order
    each = 1 if execution is None else execution.virtual_stages
    if points is None:
        points = _points(planned, stages * each, held)
    chunk_of = stage_of_operators(graph, points)
    stage_of = _stages(chunk_of, order, stages, each)
    workload = workload_of_plan(priced, planned.program, execution, chunk_of)
    c, run_as = (
        (way or usual(planned.program, priced.machine.settings)).with_(
            pp=stages, micro_batches=micro_batches, schedule=order, virtual_stages=each, stage_layers=None
        )
        for way in (execution, planned.request.run_as)
    )
    step = step_of(workload, c, priced.machine.profile, workload.chunks)
    sums = stage_sums(planned, stage_of)
    shared = tuple(name for name, over in stages_of_parameters(graph, stage_of).items() if len(over) > 1)
    run = simulate(order, step.rows, c.passes, step.sent_s, overlapped=c.overlap_pipeline)
    flying, as_made = step.pipeline.activation_bytes, priced.machine.settings.target == "torch"
    memory = tuple(x.peak for x in held_by_rank(workload, run_as, workload.chunks, flying, as_made=as_made))
    costs = _costs(step, order)
    parts, overlaps = step.breakdown, c.overlap_pipeline
    return Pipelined(
        planned, micro_batches, order, each, chunk_of, run, step.total_s, memory, shared, costs, parts, sums, overlaps
    )


def _stages(chunk_of: Mapping[str, int], order: Schedule, stages: int, chunks: int) -> dict[str, int]:
    holder = holders_of_chunks(order, stages, chunks)
    return {name: holder[k] for name, k in chunk_of.items()}


def _costs(step: StepTimes, order: Schedule) -> tuple[StageCost, ...]:
    shape = len(step.rows), len(step.rows[0])
    holder = holders_of_chunks(order, *shape)
    moves = [s if a != b else 0.0 for s, (a, b) in zip(step.sent_s, pairwise(holder), strict=True)]
    out = []
    for row, numbers, once in zip(step.rows, stage_numbers(order, *shape), step.once_s, strict=True):
        chunks = tuple(
            ChunkCost(x.forward_s, x.backward_s, x.backward_weight_s or 0.0, (*moves, 0.0)[k])
            for x, k in zip(row, numbers, strict=True)
        )
        forward, backward, sends = (sum(getattr(x, n) for x in chunks) for n in ("forward_s", "backward_s", "sends_s"))
        out.append(StageCost(forward, backward, sends, once, chunks))
    return tuple(out)


def _points(planned: Planned, stages: int, held: Mapping[str, int] | None) -> tuple[int, ...]:
    """The operators that chunks 1, 2, … begin with."""
    priced = planned.priced
    graph, unit = priced.graph, priced.machine.unit_s
    execution = planned.request.execution
    if execution is not None and held is None:
        workload = workload_of_plan(priced, planned.program, execution)
        return _layers(planned, chunks_of_layers(workload, stages, execution.stage_layers))
    sent = _sent(planned)
    model = CollectiveModel(priced.machine.profile)
    group = model.group((stages, *planned.mesh.shape), (0,))
    crossing = np.asarray(model.seconds("permute", sent, group), dtype=np.float64) * (sent > 0)
    preferred = boundaries(graph)
    if held is None:
        work = _work(planned)
        return cut_points([unit * sum(work[op.name]) for op in graph.ops], 2 * crossing, stages, preferred)
    return cuts_between(graph, held, stages, crossing, preferred)


def _layers(planned: Planned, chunks: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Where chunks of layers begin, of what data reaches."""
    graph = planned.priced.graph
    unit, moves = units_of(graph).of, flowing(graph)
    return tuple(
        next(i for i, op in enumerate(graph.ops) if op.name in moves and unit[op.name] >= part[0])
        for part in chunks[1:]
    )


def _work(planned: Planned) -> dict[str, tuple[int, int]]:
    """Operator → cost forward and backward of a micro-batch, redistributions of what it makes included; what blocks
    run again counts as backward."""
    priced, program = planned.priced, planned.program
    choice = planned.solution.choice
    out = {op.name: [0, 0] for op in priced.graph.ops}
    seen: set[str] = set()
    for i in program.instructions:
        if isinstance(i, Run) and i.op in priced.op_nodes:
            again = i.backward or i.op in seen
            seen.add(i.op)
            out[i.op][again] += sum(run_cost(priced, choice, i))
        elif isinstance(i, Redistribute) and i.tensor not in priced.parameter_nodes:
            owner = _owner(priced.graph, i)
            if owner is not None:
                out[owner.name][i.gradient] += redistribution_cost(priced, i)
    return {n: (f, b) for n, (f, b) in out.items()}


def _owner(graph: Graph, redistribution: Redistribute) -> Op | None:
    """The operator in whose stage a redistribution runs: its producer's, of an input its first reader's."""
    if redistribution.tensor in graph.producers:
        return graph.producers[redistribution.tensor]
    return next((c for c, _ in graph.consumers.get(redistribution.tensor, ())), None)


def _sent(planned: Planned) -> NDArray[np.float64]:
    """Bytes that one device sends for a micro-batch where a stage begins with each operator."""
    priced = planned.priced
    settings, mesh = priced.machine.settings, planned.mesh
    local = {}
    for name, redistribution in planned.assignment.redistributions.items():
        t = priced.graph.tensors[name]
        local[name] = settings.tensor_bytes(t) / mesh.size(a for d in redistribution.produced.dims for a in d)
    return crossing_bytes(priced.graph, {t: local.get(t, 0.0) for t in priced.graph.tensors})
