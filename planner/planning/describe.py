"""Planned -> plan document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Literal

from planner.clock import redistribution_cost, run_cost
from planner.frontends.resized.blocks import repeated_blocks
from planner.ir import Graph, Layout, Op
from planner.lowering import Redistribute, Run
from planner.planning.document import (
    MESH,
    AxisDocument,
    ChunkDocument,
    ClusterDocument,
    CostDocument,
    InnerDocument,
    InputDocument,
    LayoutDocument,
    MeshDocument,
    ModelDocument,
    OperatorDocument,
    ParameterDocument,
    PinDocument,
    PlanDocument,
    ReaderDocument,
    RedistributionDocument,
    RunDocument,
    ScheduleDocument,
    StageDocument,
    StageSumDocument,
    StepDocument,
    TensorDocument,
)
from planner.planning.execution import run_of
from planner.planning.pipeline.stages import Pipelined
from planner.planning.pipeline.tied import StageSum, stages_of_parameters
from planner.planning.planner import Planned
from planner.planning.readers import readers_of
from planner.planning.roles import role_to_text
from planner.planning.searched import CandidateDocument, RequestDocument, SearchDocument
from planner.rules.strategy import BoundCollective
from planner.version import __version__

__all__ = ["describe"]


@lru_cache(maxsize=4096)
def _layout(layout: Layout) -> LayoutDocument:
    """One for all tensors that lie alike, of which there are tens of thousands."""
    return LayoutDocument.model_validate(layout.to_json(MESH))


def _inner(planned: Planned, op: Op) -> list[BoundCollective]:
    """The collectives that running the operator performs: those of its backward pass where it has one."""
    differentiated = any(t in planned.priced.active for t in op.outputs)
    return [c for c in planned.assignment.strategies[op.name].inner if differentiated or not c.backward]


def _optional(layout: Layout | None) -> LayoutDocument | None:
    return None if layout is None else _layout(layout)


def describe(
    planned: Planned,
    *,
    bind: Mapping[str, int],
    batch: int | None,
    pipeline: Pipelined | None = None,
    request: RequestDocument | None = None,
) -> PlanDocument:
    """The plan as written to plan.json; `bind` and `batch` are how the model file was read; `pipeline`: the stages that
    `planned` is cut into; `request`: what was asked."""
    priced, profile = planned.priced, planned.request.profile
    graph, mesh, settings = priced.graph, planned.mesh, planned.request.settings
    unit = priced.machine.unit_s
    server = profile.devices_per_server
    return PlanDocument(
        schema="planner.plan/1",
        model=ModelDocument(
            name=graph.name,
            digest=graph.digest,
            bind=dict(bind),
            batch=batch,
            operators=len(graph.ops),
            parameters=sum(t.elements for t in graph.parameters),
            loss=graph.loss,
            repeated=[[list(block) for block in run.blocks] for run in repeated_blocks(graph)],
        ),
        inputs={n: _input(planned, n) for n in graph.inputs},
        cluster=ClusterDocument(
            hardware=profile.name,
            profile_digest=profile.digest,
            devices=mesh.devices if pipeline is None else pipeline.devices,
            devices_per_server=server,
            memory_limit_bytes=planned.memory_limit,
        ),
        meshes={MESH: _mesh(planned)},
        stages=_stages(planned, pipeline),
        tensors=_tensors(planned),
        operators=_operators(planned, pipeline),
        parameters=_parameters(planned, pipeline),
        redistributions=[
            _redistribution(planned, c, begin * unit)
            for c, begin in zip(planned.program.instructions, planned.timeline.begins, strict=True)
            if isinstance(c, Redistribute) and c.tensor in planned.assignment.redistributions
        ],
        schedule=ScheduleDocument(
            mode="training" if settings.training else "inference",
            precision=settings.precision,
            optimizer=settings.optimizer,
            target=settings.target,
            stages=1 if pipeline is None else pipeline.stages,
            micro_batches=1 if pipeline is None else pipeline.micro_batches,
            chunks=1 if pipeline is None else pipeline.chunks,
            order="" if pipeline is None else pipeline.order,
            sends_overlap=pipeline is None or pipeline.sends_overlap,
            run={} if planned.request.execution is None else run_of(planned.request.execution),
            recompute=_blocks(planned.assignment.blocks),
        ),
        pins=_pins(planned),
        cost=CostDocument(
            objective_s=planned.objective_s,
            objective_lower_bound_s=planned.bound_s,
            gap=planned.gap if pipeline is None else pipeline.gap,
            step_time_s=planned.step_time_s if pipeline is None else pipeline.step_time_s,
            step_time_lower_bound_s=planned.step_bound_s if pipeline is None else pipeline.step_bound_s,
            step_parts_s={} if pipeline is not None else {k: n * unit for k, n in planned.timeline.parts.items()},
            parts_s=planned.parts.seconds(unit),
            peak_memory_bytes=planned.peak_memory_bytes if pipeline is None else max(pipeline.memory),
            memory_bytes={} if pipeline is not None else planned.memory.parts,
            price_resolution_s=unit,
        ),
        search=SearchDocument(
            version=__version__,
            status=planned.status if pipeline is None else pipeline.status,
            solver=planned.solution.solver,
            candidates=[
                CandidateDocument(
                    mesh=str(c.mesh),
                    recompute=c.recompute,
                    status=c.status,
                    objective_s=c.objective_s,
                    bound_s=c.bound_s,
                )
                for c in planned.candidates
            ],
            operators_replicated_for_want_of_a_rule=list(planned.without_rule),
            request=request,
        ),
    )


def _input(planned: Planned, name: str) -> InputDocument:
    graph, strategies = planned.priced.graph, planned.assignment.strategies
    reads = (strategies[op.name].operands[i] for op, i in graph.consumers.get(name, ()))
    read = next((layout for layout in reads if layout is not None), None)
    return InputDocument(shape=_shape(graph, name), dtype=graph.tensors[name].dtype, layout=_optional(read))


def _pins(planned: Planned) -> list[PinDocument]:
    pins = planned.pins
    if pins is None:
        return []
    found = [PinDocument(object=r.object_kind, name=r.name, pin=r.text, source=r.where) for r in pins.restrictions]
    if pins.rest.kind != "search":
        axes = pins.data_axes(planned.mesh) if pins.batch is not None else ()
        over = f" over {', '.join(axes)}" if axes else ""
        found.append(PinDocument(object="rest", pin=f"{pins.rest.kind}{over}", source=pins.rest.where))
    return found


def _blocks(number: Mapping[str, int]) -> list[list[str]]:
    blocks: dict[int, list[str]] = {}
    for name, k in number.items():
        blocks.setdefault(k, []).append(name)
    return [blocks[k] for k in sorted(blocks)]


def _shape(graph: Graph, name: str) -> list[int] | None:
    shape = graph.tensors[name].shape
    return None if shape is None else list(shape)


def _mesh(planned: Planned) -> MeshDocument:
    used = {s.axes for c in planned.program.redistributions() for s in c.steps}
    used |= {c.axes for op in planned.priced.graph.ops for c in _inner(planned, op)}
    groups = {".".join(axes): [list(g) for g in planned.mesh.groups(axes)] for axes in sorted(used)}
    return MeshDocument(axes=[AxisDocument(name=a.name, size=a.size) for a in planned.mesh.axes], groups=groups)


def _tensors(planned: Planned) -> dict[str, TensorDocument]:
    graph = planned.priced.graph
    out = {}
    for name, redistribution in planned.assignment.redistributions.items():
        t = graph.tensors[name]
        out[name] = TensorDocument(
            shape=_shape(graph, name),
            dtype=t.dtype,
            role=str(t.role),
            layout=_layout(redistribution.produced),
            gradient=_optional(redistribution.wanted),
        )
    return out


def _stages(planned: Planned, pipeline: Pipelined | None) -> list[StageDocument]:
    if pipeline is None:
        count = len(planned.priced.graph.ops)
        return [StageDocument(mesh=MESH, operators=count, peak_memory_bytes=planned.peak_memory_bytes)]
    counts = Counter(pipeline.stage_of.values())
    return [
        StageDocument(
            mesh=MESH,
            operators=counts[s],
            peak_memory_bytes=size,
            forward_s=cost.forward_s,
            backward_s=cost.backward_s,
            once_s=cost.once_s,
            sends_s=cost.sends_s,
            chunks=[] if pipeline.order == "1f1b" else [ChunkDocument(**asdict(chunk)) for chunk in cost.chunks],
        )
        for s, (size, cost) in enumerate(zip(pipeline.memory, pipeline.costs, strict=True))
    ]


def _runs(planned: Planned) -> dict[str, list[RunDocument]]:
    """Every execution of every priced operator in the simulated step, in order."""
    priced, choice, unit = planned.priced, planned.solution.choice, planned.priced.machine.unit_s
    out: dict[str, list[RunDocument]] = {}
    for i, begin in zip(planned.program.instructions, planned.timeline.begins, strict=True):
        if isinstance(i, Run) and i.op in priced.op_nodes:
            own, inside = run_cost(priced, choice, i)
            before = out.setdefault(i.op, [])
            phase: Literal["forward", "recompute", "backward"] = "recompute" if before else "forward"
            before.append(
                RunDocument(
                    phase="backward" if i.backward else phase,
                    begin_s=begin * unit,
                    seconds=(own + inside) * unit,
                    inside_s=inside * unit,
                )
            )
    return out


def _operators(planned: Planned, pipeline: Pipelined | None) -> dict[str, OperatorDocument]:
    stage_of, place_of = ({}, {}) if pipeline is None else (pipeline.stage_of, pipeline.place_of)
    mesh, runs, settings = planned.mesh, _runs(planned), planned.priced.machine.settings
    out = {}
    for op in planned.priced.graph.ops:
        s = planned.assignment.strategies[op.name]
        out[op.name] = OperatorDocument(
            type=op.type,
            source=op.source,
            module=op.module,
            strategy={n: role_to_text(r) for n, r in zip(mesh.names, s.roles, strict=True)},
            inputs=list(op.inputs),
            outputs=list(op.outputs),
            operands=[
                _optional(_unread(planned, t) if x is None else x) for t, x in zip(op.inputs, s.operands, strict=True)
            ],
            results=[_optional(x) for x in s.results],
            inner=[
                InnerDocument(
                    kind=c.kind,
                    axes=list(c.axes),
                    bytes=settings.payload_bytes(c),
                    backward=c.backward,
                    count=c.count,
                )
                for c in _inner(planned, op)
            ],
            runs=runs.get(op.name, []),
            stage=stage_of.get(op.name, 0),
            chunk=place_of.get(op.name, 0),
        )
    return out


def _unread(planned: Planned, tensor: str) -> Layout | None:
    """How a tensor lies whose values its reader does not need (the ratio of a Dropout, what CastLike takes a type
    from): as it is made, since nothing is moved for it.  None where the plan says nothing of the tensor."""
    graph = planned.priced.graph
    if tensor in planned.assignment.redistributions:
        return planned.assignment.redistributions[tensor].produced
    shape = graph.tensors[tensor].shape if tensor in graph.inputs else None
    if shape is None:
        return None
    strategies = planned.assignment.strategies
    reads = (strategies[op.name].operands[i] for op, i in graph.consumers.get(tensor, ()))
    return next((layout for layout in reads if layout is not None), Layout.replicated(len(shape)))


def _parameters(planned: Planned, pipeline: Pipelined | None) -> dict[str, ParameterDocument]:
    priced = planned.priced
    in_stages = pipeline is not None and pipeline.stages > 1
    stages = stages_of_parameters(priced.graph, pipeline.stage_of) if pipeline is not None and in_stages else {}
    across = {} if pipeline is None else {s.parameter: _across(planned, s) for s in pipeline.sums}
    graph, strategies = priced.graph, planned.assignment.strategies
    out = {}
    for name, stored in planned.assignment.stored.items():
        readers = graph.consumers[name]
        reads = [strategies[op.name].operands[i] or Layout.replicated(len(stored.dims)) for op, i in readers]
        trained = name in priced.active
        out[name] = ParameterDocument(
            shape=_shape(graph, name) or [],
            stored=_layout(stored),
            compute=[_layout(x) for x in dict.fromkeys(reads)],
            gradient=_layout(stored) if trained else None,
            optimizer=_layout(stored) if trained else None,
            aliases=[f"{op.name}:{i}" for op, i in readers[1:]],
            readers=[
                ReaderDocument(operator=r.operator, slot=r.slot, transposed=r.transposed)
                for r in readers_of(graph, name)
            ],
            optimizer_s=_update(planned, name) * priced.machine.unit_s,
            stages=list(stages.get(name, ())),
            across=across.get(name),
        )
    return out


def _across(planned: Planned, total: StageSum) -> StageSumDocument:
    return StageSumDocument(
        bytes=total.bytes,
        groups=[list(g) for g in total.groups(planned.mesh.devices)],
        seconds=total.cost * planned.priced.machine.unit_s,
    )


def _update(planned: Planned, parameter: str) -> int:
    """Price of updating a parameter, once a step."""
    priced, node = planned.priced, planned.priced.parameter_nodes.get(parameter)
    return 0 if node is None else int(priced.problem.nodes[node].costs[planned.solution.choice[node]])


def _redistribution(planned: Planned, c: Redistribute, begin_s: float) -> RedistributionDocument:
    machine = planned.priced.machine
    size = machine.settings.tensor_bytes(planned.priced.graph.tensors[c.tensor])
    return RedistributionDocument(
        tensor=c.tensor,
        direction="gradient" if c.gradient else "forward",
        reader=c.reader,
        source=_layout(c.source),
        target=_layout(c.target),
        steps=[
            StepDocument(
                kind=str(s.kind),
                axes=list(s.axes),
                dim=s.dim,
                to_dim=s.to_dim,
                target=_layout(s.target),
                bytes=round(s.group_bytes(size, machine.mesh)),
            )
            for s in c.steps
        ],
        seconds=redistribution_cost(planned.priced, c) * machine.unit_s,
        begin_s=begin_s,
    )
