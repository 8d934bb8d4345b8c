"""Multi-device annotations, whoever wrote them, as constraints of our search: the mesh that they mean, how operators
are split, and the layouts of tensors.  What none of our strategies expresses is listed and searched."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import onnx

from planner.emit.names import NameRules
from planner.emit.onnx.check import annotation_problems
from planner.emit.onnx.file import load_file
from planner.emit.onnx.placement import Placement, common_mesh, layout_of, placement_of
from planner.emit.reading import Reading, check_devices
from planner.errors import InputError
from planner.ir import DeviceMesh, Graph, Layout, Op, Role
from planner.planning.constraints import Constraints
from planner.planning.constraints.values import LayoutPin, OperatorPin, ParameterPin, StrategyPin, TensorPin
from planner.pricing import bind_rules
from planner.rules.rule import Dims, Rule
from planner.rules.strategy import REPLICATE, AxisRole, Strategy, bind
from planner.work.activity import fixed_operators

__all__ = ["constraints_of_annotations", "read_annotations"]

_MOST_TRIED: Final = 64  # ways in which modes may read one annotation

_Layouts = dict[str, Layout]


def read_annotations(path: Path, graph: Graph, rules: NameRules) -> Reading:
    """An annotated model.  InputError where its annotations contradict themselves, or there are none."""
    return constraints_of_annotations(load_file(path, "FILE"), graph, str(path))


@dataclass(slots=True)
class _Annotations:
    """What the annotations of one configuration say: per operator its pipeline stage and the placements of its tensors
    among the `devices` of a stage; and what is unused."""

    devices: int
    stages: dict[str, int] = field(default_factory=dict)
    operators: dict[str, dict[str, Placement]] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)


def constraints_of_annotations(model: onnx.ModelProto, graph: Graph, source: str) -> Reading:
    """Pins for `graph`, the mesh they are for, and what of the annotations no pin came of.  InputError as above."""
    problems = annotation_problems(model)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InputError(f"{source}: its annotations mean nothing: {problems[0]}{more}; mend the file")
    annotations = _annotations_of(model, graph, source)
    placements = [p for tensors in annotations.operators.values() for p in tensors.values()]
    mesh = common_mesh(placements, annotations.devices)
    fixed, (rules, _) = fixed_operators(graph), bind_rules(graph)
    pins: list[OperatorPin] = []
    taken: dict[str, _Layouts] = {}
    where = f"{source}: node"
    for name, tensors in annotations.operators.items():
        op, layouts = graph.op(name), _Layouts()
        for tensor, placement in tensors.items():
            try:
                layouts[tensor] = layout_of(placement, mesh)
            except ValueError as e:
                annotations.unused.append(f"{name}: {tensor}: {e}")
        if name in fixed:
            if any(x.split_axes for x in layouts.values()):
                annotations.unused.append(f"{name}: is computed from constants alone, once, and stays whole")
            continue
        found = _strategy(op, rules[name], layouts, mesh)
        if found is None:
            if any(x.split_axes for x in layouts.values()):
                annotations.unused.append(f"{name} ({op.type}): no strategy of its rule lies so")
            continue
        taken[name] = layouts
        pins.append(OperatorPin(f"{where} {name}", _pin(op, rules[name], found, layouts, mesh), (name,)))
    tensors_, parameters = _layout_pins(graph, taken, fixed, where)
    constraints = Constraints(source, (mesh.shape,), tuple(pins), tuple(tensors_), tuple(parameters))
    return Reading(constraints, mesh, tuple(annotations.unused), stages=_stages(graph, annotations))


def _stages(graph: Graph, annotations: _Annotations) -> dict[str, int]:
    """Parameters that one stage alone reads, and that stage, where there are several."""
    if len(set(annotations.stages.values())) < 2:
        return {}
    found = {}
    for t in graph.parameters:
        read = {
            annotations.stages[op.name] for op, _ in graph.consumers.get(t.name, ()) if op.name in annotations.stages
        }
        if len(read) == 1:
            found[t.name] = read.pop()
    return found


def _annotations_of(model: onnx.ModelProto, graph: Graph, source: str) -> _Annotations:
    used = Counter(c.configuration_id for n in model.graph.node for c in n.device_configurations)
    if not used:
        raise InputError(f"{source}: none of its {len(model.graph.node)} nodes has a multi-device annotation")
    (chosen, _), *others = used.most_common()
    devices = next(c.num_devices for c in model.configuration if c.name == chosen)
    check_devices(source, devices)
    nodes = [(n, c) for n in model.graph.node for c in n.device_configurations if c.configuration_id == chosen]
    stages = {c.pipeline_stage for _, c in nodes}
    if stages != set(range(len(stages))) or devices % len(stages):
        raise InputError(
            f"{source}: expected pipeline stages 0 to {len(stages) - 1} that share {devices} devices evenly, found "
            f"{', '.join(map(str, sorted(stages)[:8]))}"
        )
    annotations = _Annotations(
        devices // len(stages), unused=[f"configuration {name!r} of {count} nodes" for name, count in others]
    )
    for node, c in nodes:
        _node(node, c, graph, annotations)
    return annotations


def _node(node: onnx.NodeProto, c: onnx.NodeDeviceConfigurationProto, graph: Graph, annotations: _Annotations) -> None:
    name = next((o for o in node.output if o), node.name)
    op = graph.producers.get(name)
    if op is None or op.name != name:
        if c.sharding_spec:
            annotations.unused.append(f"{name} ({node.op_type}): the importer replaced or folded it")
        return
    annotations.stages[name] = c.pipeline_stage
    known = {*op.inputs, *op.outputs}
    for spec in c.sharding_spec:
        tensor = graph.tensors.get(spec.tensor_name)
        if tensor is None or tensor.shape is None or spec.tensor_name not in known:
            annotations.unused.append(f"{name}: {spec.tensor_name}: the operator as it was imported has no such tensor")
            continue
        try:
            placement = placement_of(spec, tensor.shape, annotations.devices, c.pipeline_stage * annotations.devices)
        except ValueError as e:
            annotations.unused.append(f"{name}: {spec.tensor_name}: {e}")
        else:
            annotations.operators.setdefault(name, {})[spec.tensor_name] = placement


def _strategy(op: Op, rule: Rule, layouts: Mapping[str, Layout], mesh: DeviceMesh) -> Strategy | None:
    """The strategy under which the annotated tensors lie as they say."""
    factors: dict[str, tuple[str, ...]] = {}
    for tensor, dims in _placed(op, rule):
        if tensor in layouts and not _read(dims, layouts[tensor], rule, mesh, factors):
            return None
    options = [_roles(rule, [f for f, axes in factors.items() if name in axes]) for name in mesh.names]
    for roles in itertools.islice(itertools.product(*options), _MOST_TRIED):
        strategy = bind(rule, mesh, roles)
        if strategy is not None and _agrees(op, strategy, layouts):
            return strategy
    return None


def _placed(op: Op, rule: Rule) -> Iterator[tuple[str, Dims | None]]:
    yield from zip(op.inputs, rule.operands, strict=False)
    yield from zip(op.outputs, rule.results, strict=False)


def _read(dims: Dims | None, layout: Layout, rule: Rule, mesh: DeviceMesh, factors: dict[str, tuple[str, ...]]) -> bool:
    """Adds the axes of every factor of one tensor; False where they do not fit it, or another tensor's."""
    if dims is None:
        return not layout.split_axes
    for names, axes in zip(dims, layout.dims, strict=True):
        left = list(axes)
        for f in names:
            mine: list[str] = []
            while left and rule.factors[f] % mesh.size([*mine, left[0]]) == 0:
                mine.append(left.pop(0))
            if factors.setdefault(f, tuple(mine)) != tuple(mine):
                return False
        if left:
            return False
    return True


def _roles(rule: Rule, factors: list[str]) -> list[AxisRole]:
    """What an axis may do that splits these factors."""
    if not factors:
        return [REPLICATE]
    named = [factors[0]] if len(factors) == 1 else []
    named += [m for m in rule.modes if set(rule.members(m)) == set(factors)]
    return [AxisRole("split", factor=f) for f in named]


def _agrees(op: Op, strategy: Strategy, layouts: Mapping[str, Layout]) -> bool:
    pairs = [*zip(op.inputs, strategy.operands, strict=False), *zip(op.outputs, strategy.results, strict=False)]
    return all(
        layouts[t] == (Layout.replicated(len(layouts[t].dims)) if x is None else x) for t, x in pairs if t in layouts
    )


def _pin(op: Op, rule: Rule, strategy: Strategy, layouts: Mapping[str, Layout], mesh: DeviceMesh) -> StrategyPin:
    """All that is split, where every factor is seen in some annotated tensor; else the axes that are."""
    seen = {f for tensor, dims in _placed(op, rule) if tensor in layouts for d in dims or () for f in d}
    split = [(name, role) for name, role in zip(mesh.names, strategy.roles, strict=True) if role.kind == "split"]
    if seen < set(rule.factors):
        return StrategyPin(roles=tuple(split)) if split else StrategyPin(shard=_counts(op, layouts, mesh))
    axes: dict[str, tuple[str, ...]] = {}
    for name, role in split:
        axes[role.factor] = (*axes.get(role.factor, ()), name)
    return StrategyPin(factors=tuple(axes.items()))


def _counts(op: Op, layouts: Mapping[str, Layout], mesh: DeviceMesh) -> tuple[tuple[int, ...] | None, ...]:
    return tuple(tuple(mesh.size(d) for d in layouts[t].dims) if t in layouts else None for t in op.inputs)


def _layout_pins(
    graph: Graph, taken: Mapping[str, _Layouts], fixed: frozenset[str], where: str
) -> tuple[list[TensorPin], list[ParameterPin]]:
    """Tensors as all of their readers, or their producer, are said to hold them: without pending sums."""
    tensors: list[TensorPin] = []
    parameters: list[ParameterPin] = []
    for name, readers in graph.consumers.items():
        role = graph.tensors[name].role
        if role is Role.CONSTANT or (name in graph.producers and graph.producers[name].name in fixed):
            continue
        read = {taken.get(op.name, {}).get(name) for op, _ in readers}
        layout = next(iter(read)) if len(read) == 1 else None
        at = f"{where} {readers[0][0].name}"
        if layout is not None and role is Role.PARAMETER:
            parameters.append(ParameterPin(at, (name,), compute=LayoutPin(layout.dims)))
        elif layout is not None and name not in graph.outputs:
            tensors.append(TensorPin(at, (name,), layout=LayoutPin(layout.dims)))
    for op in graph.ops:
        for name in op.outputs:
            made = taken.get(op.name, {}).get(name) if name and op.name not in fixed else None
            if made is not None and graph.tensors[name].shape is not None:
                tensors.append(TensorPin(f"{where} {op.name}", (name,), produced=LayoutPin(made.dims)))
    return tensors, parameters
