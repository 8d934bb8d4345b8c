"""A searched plan as a pipeline: what each stage costs and holds, and how long a step of all micro-batches takes.

The plan is that of one micro-batch on one stage's devices; all stages have meshes of that shape, ranks count stage by
stage, and what crosses goes to the rank at the same place of the next one (Narayanan et al. 2021).  Per micro-batch a
stage runs its operators and their redistributions; once a step it gathers stored parameters, sums gradients and
updates, which is counted behind the last micro-batch, as if nothing overlapped.  One stage of several micro-batches
accumulates gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cost_models.link import CollectiveModel
from cost_models.pipeline import ChunkTimes, PipelineRun, simulate
from planner.ir import Graph, Op
from planner.lowering import Convert, Run
from planner.planning.breakdown import convert_cost, run_cost
from planner.planning.pipeline.cut import (
    boundaries,
    crossing_bytes,
    cut_points,
    cuts_between,
    stage_of_operators,
)
from planner.planning.planner import Planned
from planner.pricing import PricedProblem

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
    stages read, which each of them holds and whose gradients they sum; `costs`: by stage."""

    planned: Planned
    micro_batches: int
    stage_of: Mapping[str, int]
    run: PipelineRun
    step_time_s: float
    memory: tuple[int, ...]
    shared: tuple[str, ...]
    costs: tuple[StageCost, ...]

    @property
    def stages(self) -> int:
        return len(self.memory)

    @property
    def devices(self) -> int:
        return self.stages * self.planned.mesh.devices


def pipelined(planned: Planned, stages: int, micro_batches: int, held: Mapping[str, int] | None = None) -> Pipelined:
    """`held`: the stage of each parameter, where that is given; else the cuts that balance the stages are found.

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
    if held is None:
        seconds = [unit * sum(work[op.name]) for op in graph.ops]
        points = cut_points(seconds, 2 * crossing, stages, preferred)
    else:
        points = cuts_between(graph, held, stages, crossing, preferred)
    stage_of = stage_of_operators(graph, points)
    forward, backward = np.zeros(stages), np.zeros(stages)
    for name, (there, back) in work.items():
        forward[stage_of[name]] += there * unit
        backward[stage_of[name]] += back * unit
    once = _once(planned, stage_of, stages) * unit
    shared = tuple(
        t.name for t in graph.parameters if len({stage_of[c.name] for c, _ in graph.consumers.get(t.name, ())}) > 1
    )
    peaks, kept = _memory(priced, planned.solution.choice, stage_of, [0, *points], sent)
    chunks = [
        [ChunkTimes(float(f), float(b), activation_bytes=float(k))]
        for f, b, k in zip(forward, backward, kept, strict=True)
    ]
    sends = [float(crossing[p]) for p in points]
    run = simulate(ORDER, chunks, micro_batches, sends)
    waiting = _accumulated(planned, stage_of, stages) if micro_batches > 1 else [0.0] * stages
    memory = tuple(
        round(peak + max(0, flying - 1) * k + more)
        for peak, k, flying, more in zip(peaks, kept, run.in_flight, waiting, strict=True)
    )
    costs = tuple(map(StageCost, forward.tolist(), backward.tolist(), [*sends, 0.0], once.tolist()))
    return Pipelined(planned, micro_batches, stage_of, run, run.total_s + float(once.max()), memory, shared, costs)


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


def _accumulated(planned: Planned, stage_of: Mapping[str, int], stages: int) -> list[float]:
    """Bytes by stage of gradients as they are computed, beyond the shards that are stored: they are summed once a step,
    behind the last micro-batch."""
    priced, mesh = planned.priced, planned.mesh
    width = priced.machine.settings.per_parameter.gradient
    strategies = planned.assignment.strategies
    out = [0.0] * stages
    for name, stored in planned.assignment.stored.items():
        size, readers = priced.graph.tensors[name].elements, priced.graph.consumers[name]
        for stage in {stage_of[c.name] for c, _ in readers} if name in priced.active else ():
            reads = [strategies[c.name].operands[i] for c, i in readers if stage_of[c.name] == stage]
            whole = max(size if x is None else size / x.shards(mesh) for x in reads)
            out[stage] += width * max(0.0, whole - size / stored.shards(mesh))
    return out


def _memory(
    priced: PricedProblem,
    choice: tuple[int, ...],
    stage_of: Mapping[str, int],
    begins: list[int],
    sent: NDArray[np.float64],
) -> tuple[list[float], list[float]]:
    """By stage: bytes at the peak of one micro-batch, and of these what each further one in flight holds.

    A stage holds its parameters with their state, what its own operators keep, and what it was sent.
    """
    stages, problem = len(begins), priced.problem
    middle = len(priced.graph.ops)
    owner: dict[int, set[int]] = {n: {stage_of[name]} for name, n in priced.op_nodes.items()}
    for name, n in priced.parameter_nodes.items():
        owner[n] = {stage_of[c.name] for c, _ in priced.graph.consumers[name]}
    for name, (n, _) in priced.hubs.items():
        made = priced.graph.producers.get(name)
        readers = [stage_of[c.name] for c, _ in priced.graph.consumers.get(name, ())]
        owner[n] = owner.get(n) or ({stage_of[made.name]} if made is not None else {min(readers, default=0)})
    parameters = set(priced.parameter_nodes.values())
    held: list[dict[int, int]] = [{} for _ in range(stages)]
    kept = [float(sent[b]) if b else 0.0 for b in begins]
    items: list[tuple[int, tuple[int, int] | None, int]] = [
        (0 if node.usage is None else int(node.usage[choice[n]]), node.interval, n)
        for n, node in enumerate(problem.nodes)
    ]
    items += [
        (0 if e.usage is None else int(e.usage[choice[e.u], choice[e.v]]), e.interval, e.u) for e in problem.edges
    ]
    for amount, interval, n in items:
        if not amount or interval is None or interval[0] >= interval[1]:
            continue
        for stage in owner.get(n, {0}):
            held[stage][interval[0]] = held[stage].get(interval[0], 0) + amount
            held[stage][interval[1]] = held[stage].get(interval[1], 0) - amount
            if n not in parameters and interval[0] <= middle < interval[1]:
                kept[stage] += amount
    peaks = []
    for stage, changes in enumerate(held):
        levels = np.cumsum([changes[t] for t in sorted(changes)]) if changes else np.zeros(1)
        peaks.append(float(levels.max()) + (float(sent[begins[stage]]) if begins[stage] else 0.0))
    return peaks, kept
