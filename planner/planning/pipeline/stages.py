"""A searched plan as a pipeline: what each stage costs and holds, and how long a step of all micro-batches takes.

The plan is that of one micro-batch on one stage's devices; all stages have meshes of that shape, ranks count stage by
stage, and what crosses goes to the rank at the same place of the next one (Narayanan et al. 2021).  Per micro-batch a
stage runs its operators and their redistributions; once a step it gathers stored parameters, sums gradients and
updates, which is counted behind the last micro-batch, as if nothing overlapped.  One stage of several micro-batches
accumulates gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cost_models.link import CollectiveModel
from cost_models.pipeline import ChunkTimes, PipelineRun, simulate
from planner.clock import compute_bound, convert_cost, overhead, run_cost
from planner.ir import Graph, Op
from planner.lowering import Convert, Run
from planner.planning.pipeline.cut import (
    boundaries,
    crossing_bytes,
    cut_points,
    cuts_between,
    stage_of_operators,
)
from planner.planning.pipeline.memory import stage_liveness
from planner.planning.pipeline.tied import StageSum, stage_sums, stages_of_parameters
from planner.planning.planner import Planned, gap_of
from planner.work.units import units_of

__all__ = ["ORDER", "Pipelined", "StageCost", "pipelined"]

ORDER: Final = "1f1b"


@dataclass(frozen=True, slots=True)
class StageCost:
    """Seconds of a stage: of a micro-batch forward, backward and sent on, and of what happens once a step."""

    forward_s: float
    backward_s: float
    sends_s: float
    once_s: float


@dataclass(frozen=True, eq=False)
class Pipelined:
    """`planned` cut into stages.  `stage_of`: operator → stage; `run`: the simulated micro-batches; `step_time_s` with
    what happens once a step; `memory`: bytes per device of each stage at its peak; `shared`: parameters that several
    stages read, which each of them holds and whose gradients they sum, as `sums` say; `costs`: by stage."""

    planned: Planned
    micro_batches: int
    stage_of: Mapping[str, int]
    run: PipelineRun
    step_time_s: float
    memory: tuple[int, ...]
    shared: tuple[str, ...]
    costs: tuple[StageCost, ...]
    sums: tuple[StageSum, ...] = ()

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
    """`held`: the stage of each parameter, where that is given; `points`: the operators that stages 1, 2, … begin with;
    else the cuts that balance the stages are found.

    InputError where the graph cannot be cut into so many stages."""
    priced = planned.priced
    graph = priced.graph
    work = _work(planned)
    sent = _sent(planned)
    model = CollectiveModel(priced.machine.profile)
    group = model.group((stages, *planned.mesh.shape), (0,))
    crossing = np.asarray(model.seconds("permute", sent, group), dtype=np.float64) * (sent > 0)
    unit = priced.machine.unit_s
    preferred = boundaries(graph)
    if points is not None:
        points = tuple(points)
    elif held is None:
        seconds = [unit * sum(work[op.name]) for op in graph.ops]
        points = cut_points(seconds, 2 * crossing, stages, preferred)
    else:
        points = cuts_between(graph, held, stages, crossing, preferred)
    stage_of = stage_of_operators(graph, points)
    forward, backward = np.zeros(stages), np.zeros(stages)
    for name, (there, back) in work.items():
        forward[stage_of[name]] += there * unit
        backward[stage_of[name]] += back * unit
    waits = _waits(planned, stage_of, stages) * unit
    forward, backward = forward + waits[0], backward + waits[1]
    sums = stage_sums(planned, stage_of)
    once = (_once(planned, stage_of, stages) + _summed(sums, stages)) * unit
    shared = tuple(name for name, over in stages_of_parameters(graph, stage_of).items() if len(over) > 1)
    alive = stage_liveness(planned.program, priced.machine.settings, stage_of, stages, micro_batches)
    chunks = [
        [ChunkTimes(float(f), float(b), activation_bytes=float(x.waiting))]
        for f, b, x in zip(forward, backward, alive, strict=True)
    ]
    sends = [float(crossing[p]) for p in points]
    run = simulate(ORDER, chunks, micro_batches, sends)
    memory = tuple(x.peak + max(0, flying - 1) * x.waiting for x, flying in zip(alive, run.in_flight, strict=True))
    outside = overhead(priced) * unit
    costs = tuple(map(StageCost, forward.tolist(), backward.tolist(), [*sends, 0.0], once.tolist()))
    return Pipelined(
        planned, micro_batches, stage_of, run, run.total_s + float(once.max()) + outside, memory, shared, costs, sums
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
        elif isinstance(i, Convert) and i.tensor not in priced.parameter_nodes:
            owner = _owner(priced.graph, i)
            if owner is not None:
                out[owner.name][i.gradient] += convert_cost(priced, i)
    return {n: (f, b) for n, (f, b) in out.items()}


def _waits(planned: Planned, stage_of: Mapping[str, int], stages: int) -> NDArray[np.float64]:
    """[pass, stage]: what a stage waits for the host that starts its kernels, unit by unit, as of `planner.clock`."""
    priced, device = planned.priced, planned.priced.machine.profile.device
    interval = 0.0 if device is None else device.dispatch_interval_s / priced.machine.unit_s
    of = units_of(priced.graph).of
    busy: dict[tuple[int, int, bool], list[int]] = {}
    seen: set[str] = set()
    for i in planned.program.instructions:
        if isinstance(i, Run) and i.op in priced.op_nodes:
            again = i.backward or i.op in seen
            seen.add(i.op)
            entry = busy.setdefault((of[i.op], stage_of[i.op], again), [0, 0])
            entry[0] += sum(run_cost(priced, planned.solution.choice, i))
            entry[1] += priced.tables[i.op].launches[i.backward]
    out = np.zeros((2, stages))
    for (_, stage, again), (computing, launches) in busy.items():
        out[int(again), stage] += max(0.0, launches * interval - computing)
    return out


def _owner(graph: Graph, convert: Convert) -> Op | None:
    """The operator in whose stage a redistribution runs: its producer's, of an input its first reader's."""
    if convert.tensor in graph.producers:
        return graph.producers[convert.tensor]
    return next((c for c, _ in graph.consumers.get(convert.tensor, ())), None)


def _sent(planned: Planned) -> NDArray[np.float64]:
    """Bytes that one device sends for a micro-batch where a stage begins with each operator."""
    priced = planned.priced
    settings, mesh = priced.machine.settings, planned.mesh
    local = {}
    for name, flow in planned.assignment.flows.items():
        t = priced.graph.tensors[name]
        local[name] = settings.tensor_bytes(t) / mesh.size(a for d in flow.produced.dims for a in d)
    return crossing_bytes(priced.graph, {t: local.get(t, 0.0) for t in priced.graph.tensors})


def _once(planned: Planned, stage_of: Mapping[str, int], stages: int) -> NDArray[np.float64]:
    """Cost by stage of what happens once a step."""
    priced, choice = planned.priced, planned.solution.choice
    out = np.zeros(stages)
    for name, node in priced.parameter_nodes.items():
        for stage in {stage_of[c.name] for c, _ in priced.graph.consumers[name]}:
            out[stage] += int(priced.problem.nodes[node].costs[choice[node]])
    for c in planned.program.converts():
        if c.tensor in priced.parameter_nodes:
            readers = priced.graph.consumers[c.tensor]
            for stage in {stage_of[r.name] for r, _ in readers if not c.reader or r.name == c.reader}:
                out[stage] += convert_cost(priced, c)
    return out


def _summed(sums: Sequence[StageSum], stages: int) -> NDArray[np.float64]:
    """Cost by stage of summing the gradients of parameters that several stages read."""
    out = np.zeros(stages)
    for s in sums:
        out[list(s.stages)] += s.cost
    return out
