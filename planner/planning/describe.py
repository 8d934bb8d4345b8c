"""Planned -> plan document, and a plan document with its graph -> program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from planner import __version__
from planner.errors import InputError
from planner.ir import DeviceMesh, Graph, Layout
from planner.lowering import Convert, Program, lower
from planner.planning.breakdown import convert_cost
from planner.planning.document import (
    MESH,
    AxisDocument,
    CandidateDocument,
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
    ScheduleDocument,
    SearchDocument,
    StageDocument,
    StepDocument,
    TensorDocument,
    role_from_text,
    role_to_text,
)
from planner.planning.pipeline.stages import ORDER, Pipelined
from planner.planning.planner import Planned
from planner.planning.readers import readers_of
from planner.pricing import Assignment, Flow, Move, active_tensors, bind_rules
from planner.redistribute import Step, StepKind
from planner.rules.strategy import Strategy, bind

__all__ = ["describe", "program_of", "strategies_of"]


def _layout(layout: Layout) -> LayoutDocument:
    return LayoutDocument.model_validate(layout.to_json(MESH))


def _optional(layout: Layout | None) -> LayoutDocument | None:
    return None if layout is None else _layout(layout)


def describe(
    planned: Planned, *, bind: Mapping[str, int], batch: int | None, pipeline: Pipelined | None = None
) -> PlanDocument:
    """The plan as written to plan.json; `bind` and `batch` are how the model file was read; `pipeline`: the stages that
    `planned` is cut into."""
    priced, request = planned.priced, planned.request
    graph, mesh, settings = priced.graph, planned.mesh, request.settings
    server = request.profile.devices_per_server
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
        ),
        inputs={n: _input(planned, n) for n in graph.inputs},
        cluster=ClusterDocument(
            hardware=request.profile.name,
            profile_digest=request.profile.digest,
            devices=mesh.devices if pipeline is None else pipeline.devices,
            devices_per_server=server,
            memory_limit_bytes=planned.memory_limit,
        ),
        meshes={MESH: _mesh(planned)},
        stages=_stages(planned, pipeline),
        tensors=_tensors(planned),
        operators=_operators(planned, {} if pipeline is None else pipeline.stage_of),
        parameters=_parameters(planned),
        redistributions=[
            _redistribution(planned, c) for c in planned.program.converts() if c.tensor in planned.assignment.flows
        ],
        schedule=ScheduleDocument(
            mode="training" if settings.training else "inference",
            precision=settings.precision,
            optimizer=settings.optimizer,
            target=settings.target,
            stages=1 if pipeline is None else pipeline.stages,
            micro_batches=1 if pipeline is None else pipeline.micro_batches,
            order="" if pipeline is None else ORDER,
            recompute=_blocks(planned.assignment.blocks),
        ),
        pins=_pins(planned),
        cost=CostDocument(
            objective_s=planned.objective_s,
            objective_lower_bound_s=planned.bound_s,
            gap=planned.gap,
            step_time_s=planned.step_time_s if pipeline is None else pipeline.step_time_s,
            parts_s=planned.parts.seconds(priced.machine.unit_s),
            peak_memory_bytes=planned.peak_memory_bytes if pipeline is None else max(pipeline.memory),
        ),
        search=SearchDocument(
            version=__version__,
            status=planned.solution.status,
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
        ),
    )


def _input(planned: Planned, name: str) -> InputDocument:
    graph, strategies = planned.priced.graph, planned.assignment.strategies
    read = next((strategies[op.name].operands[i] for op, i in graph.consumers.get(name, ())), None)
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
    used = {s.axes for c in planned.program.converts() for s in c.steps}
    used |= {c.axes for s in planned.assignment.strategies.values() for c in s.inner}
    groups = {".".join(axes): [list(g) for g in planned.mesh.groups(axes)] for axes in sorted(used)}
    return MeshDocument(axes=[AxisDocument(name=a.name, size=a.size) for a in planned.mesh.axes], groups=groups)


def _tensors(planned: Planned) -> dict[str, TensorDocument]:
    graph = planned.priced.graph
    out = {}
    for name, flow in planned.assignment.flows.items():
        t = graph.tensors[name]
        out[name] = TensorDocument(
            shape=_shape(graph, name),
            dtype=t.dtype,
            role=str(t.role),
            layout=_layout(flow.produced),
            gradient=_optional(flow.wanted),
        )
    return out


def _stages(planned: Planned, pipeline: Pipelined | None) -> list[StageDocument]:
    if pipeline is None:
        count = len(planned.priced.graph.ops)
        return [StageDocument(mesh=MESH, operators=count, peak_memory_bytes=planned.peak_memory_bytes)]
    counts = Counter(pipeline.stage_of.values())
    return [
        StageDocument(mesh=MESH, operators=counts[s], peak_memory_bytes=size) for s, size in enumerate(pipeline.memory)
    ]


def _operators(planned: Planned, stage_of: Mapping[str, int]) -> dict[str, OperatorDocument]:
    mesh = planned.mesh
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
            operands=[_optional(x) for x in s.operands],
            results=[_optional(x) for x in s.results],
            inner=[
                InnerDocument(kind=c.kind, axes=list(c.axes), bytes=c.bytes, backward=c.backward, count=c.count)
                for c in s.inner
            ],
            stage=stage_of.get(op.name, 0),
        )
    return out


def _parameters(planned: Planned) -> dict[str, ParameterDocument]:
    graph, strategies = planned.priced.graph, planned.assignment.strategies
    out = {}
    for name, stored in planned.assignment.stored.items():
        readers = graph.consumers[name]
        reads = [strategies[op.name].operands[i] or Layout.replicated(len(stored.dims)) for op, i in readers]
        trained = name in planned.priced.active
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
        )
    return out


def _redistribution(planned: Planned, c: Convert) -> RedistributionDocument:
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
        seconds=convert_cost(planned.priced, c) * machine.unit_s,
    )


def strategies_of(plan: PlanDocument, graph: Graph) -> dict[str, Strategy]:
    """Strategies of the graph's operators as the plan says.  InputError where they do not fit each other."""
    rules, _ = bind_rules(graph)
    mesh = plan.mesh
    out = {}
    for op in graph.ops:
        entry = plan.operators.get(op.name)
        if entry is None:
            raise InputError(f"plan: operator {op.name} ({op.type}) of the model is not in it; search this model again")
        try:
            roles = tuple(role_from_text(entry.strategy[n]) for n in mesh.names)
            strategy = bind(rules[op.name], mesh, roles)
        except (KeyError, ValueError, IndexError) as e:
            raise InputError(f"plan: operator {op.name} ({op.type}): its strategy cannot be understood: {e}") from e
        if strategy is None:
            sizes = ", ".join(f"{f}={n}" for f, n in rules[op.name].factors.items())
            raise InputError(f"plan: operator {op.name} ({op.type}): {entry.strategy} does not divide {sizes}")
        out[op.name] = strategy
    return out


def program_of(plan: PlanDocument, graph: Graph) -> Program:
    """The program that the plan describes for `graph`, which must be the model it was made for."""
    if graph.digest != plan.model.digest:
        raise InputError(
            f"plan of {plan.model.name}: the model given is another one (digest {graph.digest[:12]}, "
            f"the plan's is {plan.model.digest[:12]}); give the model that was planned, or search again"
        )
    rules, _ = bind_rules(graph)
    active = active_tensors(graph, rules) if plan.schedule.mode == "training" else frozenset[str]()
    moves: dict[str, list[Move]] = {}
    for r in plan.redistributions:
        moves.setdefault(r.tensor, []).append(_move(r, plan.mesh))
    flows = {
        name: Flow(
            name,
            "set",
            t.layout.layout(),
            None if t.gradient is None else t.gradient.layout(),
            tuple(moves.get(name, ())),
        )
        for name, t in plan.tensors.items()
    }
    stored = {name: p.stored.layout() for name, p in plan.parameters.items()}
    blocks = {name: k for k, block in enumerate(plan.schedule.recompute) for name in block}
    return lower(graph, plan.mesh, rules, active, Assignment(strategies_of(plan, graph), stored, flows, blocks))


def _move(r: RedistributionDocument, mesh: DeviceMesh) -> Move:
    source = here = r.source.layout()
    steps = []
    for s in r.steps:
        there = s.target.layout()
        unknown = [a for a in s.axes if a not in mesh.names]
        if unknown or s.kind not in set(StepKind):
            raise InputError(
                f"plan: redistribution of {r.tensor}: step {s.kind} over {s.axes} is not known to this mesh"
            )
        steps.append(Step(StepKind(s.kind), tuple(s.axes), here, there, s.dim, s.to_dim))
        here = there
    target = r.target.layout()
    if here != target:
        raise InputError(f"plan: redistribution of {r.tensor}: its steps end in {here}, not in {target}")
    return Move(r.direction == "gradient", source, target, tuple(steps), r.reader)
