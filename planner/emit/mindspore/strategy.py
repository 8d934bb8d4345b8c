"""A plan as MindSpore's strategy file: one strategy for each operator that reads a parameter, one layout for each
parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from planner.emit.mindspore.arrangement import Arrangement, arranged
from planner.emit.mindspore.optimizer import Wanted, shard_size
from planner.emit.mindspore.primitives import Primitive, primitive_of
from planner.emit.mindspore.strategy_map import OperatorStrategy, ParameterLayout, StrategyMap
from planner.emit.names import Name
from planner.errors import InputError
from planner.ir import DeviceMesh, Layout
from planner.planning.document import OperatorDocument, ParameterDocument, PlanDocument, ReaderDocument

__all__ = ["Keyed", "Strategies", "joined", "merged", "strategies_of_plan", "wanted_of_plan"]

Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Keyed:
    """An operator of MindSpore that the file names: its operands' layouts, as the network holds them.

    `displaced`: MindSpore, told shards alone, would lay it out over other ranks than the plan does.
    """

    operator: str
    primitive: str
    operands: tuple[Layout, ...]
    displaced: bool

    @property
    def name(self) -> str:
        """That of the ONNX operator; of the sum that an operator's bias is, with `:bias` behind it."""
        return f"{self.operator}:bias" if self.primitive == "BiasAdd" else self.operator

    @property
    def splits(self) -> bool:
        return any(any(x.dims) for x in self.operands)


@dataclass(frozen=True, slots=True)
class Strategies:
    """`keyed`: key in the file → operator; `unnamed`: operators that split something and that no key can name."""

    map: StrategyMap
    keyed: Mapping[str, Keyed] = field(default_factory=dict)
    unnamed: tuple[str, ...] = ()

    @property
    def displaced(self) -> tuple[str, ...]:
        return tuple(k.name for k in self.keyed.values() if k.displaced)


def strategies_of_plan(
    plan: PlanDocument,
    names: Mapping[str, Name],
    stage: int = 0,
    wanted: Mapping[str, Wanted] | None = None,
    size: int | None = None,
) -> Strategies:
    """`wanted`: the parameters, and the `size` of optimizer parallel, where they are known already.

    InputError where operators want one parameter in two layouts, where one key would stand for two strategies, or a
    layout cannot be expressed in MindSpore.
    """
    mesh = plan.mesh
    wanted = wanted_of_plan(plan, names) if wanted is None else wanted
    size = shard_size(wanted.values()) if size is None else size
    keyed: dict[str, Keyed] = {}
    operators: dict[str, OperatorStrategy] = {}
    parameters: dict[str, ParameterLayout] = {}
    first = _first_parameters(plan)
    for name, p in plan.parameters.items():
        emitted, own = names[name], wanted[name]
        arrangement = own.divided(size)
        parameters[emitted.name] = ParameterLayout(arrangement, shape=_slice(name, own.shape, arrangement))
        for reader in p.readers:
            if first[reader.operator, _part(reader, plan)] != name:
                continue
            for key, found in _entries(plan, reader, emitted):
                strategy = OperatorStrategy(stage, tuple(x.counts(mesh) for x in found.operands))
                if operators.setdefault(key, strategy) != strategy:
                    raise InputError(
                        f"plan: {keyed[key].operator} and {found.operator} both are {key} to MindSpore and are split "
                        "differently; pin them alike"
                    )
                keyed.setdefault(key, found)
    named = {k.operator for k in keyed.values()}
    unnamed = tuple(n for n, o in plan.operators.items() if n not in named and _splits(o))
    return Strategies(StrategyMap(operators, parameters, stage), keyed, unnamed)


def joined(stages: Sequence[Strategies]) -> Strategies:
    """What all stages say together, for the module that applies it; a parameter that several hold is that of the
    first."""
    operators: dict[str, OperatorStrategy] = {}
    parameters: dict[str, ParameterLayout] = {}
    keyed: dict[str, Keyed] = {}
    for each in reversed(stages):
        operators |= each.map.operators
        parameters |= each.map.parameters
        keyed |= each.keyed
    return Strategies(StrategyMap(operators, parameters), keyed, tuple(n for s in stages for n in s.unnamed))


def merged(stages: Iterable[StrategyMap]) -> StrategyMap:
    """The files of all pipeline stages as one, parameters under `stage-name`, as MindSpore merges them."""
    operators: dict[str, OperatorStrategy] = {}
    parameters: dict[str, ParameterLayout] = {}
    for number, each in enumerate(stages):
        operators |= {n: replace(s, stage=number) for n, s in each.operators.items()}
        parameters |= {f"{number}-{n}": p for n, p in each.parameters.items()}
    return StrategyMap(operators, parameters, current_stage=1)


# Parameters


def wanted_of_plan(plan: PlanDocument, names: Mapping[str, Name]) -> dict[str, Wanted]:
    """By the plan's names: how parameters are computed with, and among how many ranks the plan divides them.

    InputError where operators want one in two layouts, or in one that MindSpore cannot express.
    """
    out = {}
    for name, p in plan.parameters.items():
        compute, stored, shape = _one_layout(plan, name, p), p.stored.layout(), tuple(p.shape)
        if names[name].transposed:
            compute, stored, shape = _turned(compute), _turned(stored), shape[::-1]
        try:
            out[name] = Wanted.of(arranged(compute, plan.mesh), shape, compute, stored, plan.mesh)
        except ValueError as e:
            raise InputError(f"plan: parameter {name}: {e}; search with --target mindspore, or pin `compute`") from e
    return out


def _slice(name: str, shape: Sequence[int], a: Arrangement) -> tuple[int, ...]:
    """Shape of what a rank keeps."""
    shards = [a.shards(d) for d in range(len(shape))]
    if shards and a.optimizer_shards:
        shards[0] *= a.optimizer_shards
    if any(s % n for s, n in zip(shape, shards, strict=True)):
        raise InputError(f"plan: parameter {name} of shape {list(shape)} does not divide into {shards}")
    return tuple(s // n for s, n in zip(shape, shards, strict=True))


def _one_layout(plan: PlanDocument, name: str, p: ParameterDocument) -> Layout:
    """The layout that all readers compute with.  Of what joins a pending sum one rank counts alone; MindSpore reduces
    the sum where it arises, and every rank has the whole to add."""
    found: dict[Layout, str] = {}
    for r in p.readers:
        operand = plan.operators[r.operator].operands[r.slot]
        layout = Layout.replicated(len(p.shape)) if operand is None else replace(operand.layout(), partial=())
        found.setdefault(_turned(layout) if r.transposed else layout, r.operator)
    if len(found) > 1:
        (a, first), (b, second) = list(found.items())[:2]
        raise InputError(
            f"plan: parameter {name} is read as {a} by {first} and as {b} by {second}; MindSpore keeps a parameter in "
            "one layout: search with --target mindspore, or pin both operators alike"
        )
    return next(iter(found))


def _part(reader: ReaderDocument, plan: PlanDocument) -> str:
    """Which of MindSpore's operators an operand belongs to: the product, or the sum of its bias."""
    primitive = primitive_of(plan.operators[reader.operator].type)
    return "bias" if primitive is not None and reader.slot == primitive.bias else "main"


def _first_parameters(plan: PlanDocument) -> dict[tuple[str, str], str]:
    """(operator, part) → the parameter that its key is named after: its first operand that is one."""
    slots: dict[tuple[str, str], tuple[int, str]] = {}
    for name, p in plan.parameters.items():
        for r in p.readers:
            at = (r.operator, _part(r, plan))
            slots[at] = min(slots.get(at, (r.slot, name)), (r.slot, name))
    return {at: name for at, (_, name) in slots.items()}


# Operators


def _entries(plan: PlanDocument, reader: ReaderDocument, emitted: Name) -> list[tuple[str, Keyed]]:
    """(key, operator) in the file; nothing where MindSpore's primitive is not known."""
    op, mesh = plan.operators[reader.operator], plan.mesh
    primitive = primitive_of(op.type)
    if primitive is None or (reader.slot not in primitive.operands and reader.slot != primitive.bias):
        return []
    turned = reader.transposed != emitted.transposed
    if reader.slot == primitive.bias:
        return [_sum_of_bias(plan, reader, emitted, _result(op), _operand(op, reader.slot))]
    slots = [s for s in primitive.operands if s < len(op.operands) and op.operands[s] is not None]
    layouts = [_operand(op, s) for s in slots]
    at = slots.index(reader.slot)
    if turned:
        layouts[at] = _turned(layouts[at])  # as the network holds it; its product turns it
    name = primitive.name
    if primitive.flattened and len(layouts) < 2:
        return []  # nobody knows the shape of the other operand, and so how it is split
    if primitive.flattened and len(layouts[1].dims) == 2 and len(layouts[0].dims) > 2:
        layouts[0] = _flattened(plan, reader.operator, layouts[0])
    elif primitive.flattened and len(_operand(op, 1).dims) > 2:
        name = "BatchMatMul"
    if primitive.normalises and layouts[0].dims[-1]:
        raise InputError(
            f"plan: {reader.operator} is split along what it normalises; MindSpore's {name} cannot be: pin it otherwise"
        )
    in_place = _in_place(_factors(primitive, op, layouts), mesh)
    out = [(f"{name}_{emitted.name}", Keyed(reader.operator, name, tuple(layouts), not in_place))]
    if name == "Add" and len(layouts[at].dims) == 1 and len(layouts) == 2:
        out.append(_sum_of_bias(plan, reader, emitted, layouts[1 - at], layouts[at]))  # nn.Dense adds with BiasAdd
    return out


def _sum_of_bias(
    plan: PlanDocument, reader: ReaderDocument, emitted: Name, data: Layout, bias: Layout
) -> tuple[str, Keyed]:
    if len(data.dims) > 2 and plan.operators[reader.operator].type != "Conv":
        data = _flattened(plan, reader.operator, data)
    in_place = _in_place([tuple(d) for d in data.dims], plan.mesh)
    return f"BiasAdd_{emitted.name}", Keyed(reader.operator, "BiasAdd", (data, bias), not in_place)


def _flattened(plan: PlanDocument, name: str, layout: Layout) -> Layout:
    """All dimensions but the last as one: rows, which are cut into contiguous parts.

    InputError where the plan cuts them otherwise, as positions of every sample.
    """
    *rows, inner = layout.dims
    tensor = plan.tensors.get(name)
    shape = (tensor.shape if tensor is not None else None) or [0] * len(layout.dims)
    for i, axes in enumerate(rows[:-1]):
        if any(rows[i + 1 :]) and shape[i] != plan.mesh.size(axes):
            raise InputError(
                f"plan: {name} splits dimension {i + 1} or a later one of its data {layout}, whose rows nn.Dense makes "
                "one dimension and MindSpore cuts into contiguous parts; pin it by samples, or along its weight"
            )
    return Layout((tuple(a for d in rows for a in d), inner), layout.partial)


def _factors(primitive: Primitive, op: OperatorDocument, layouts: Sequence[Layout]) -> list[Axes] | None:
    """The axes of each index that MindSpore's device matrix has, in its order; None where that is not known."""
    if primitive.name == "MatMul" and len(layouts[0].dims) == 2 and len(layouts[1].dims) == 2:
        return [*layouts[0].dims, _result(op).dims[-1]]
    if primitive.elementwise:
        return list(max(layouts, key=lambda x: len(x.dims)).dims)
    split = list(dict.fromkeys(d for x in layouts for d in x.dims if d))
    return split if len(split) <= 1 else None


def _in_place(factors: Sequence[Axes] | None, mesh: DeviceMesh) -> bool:
    """Whether the plan cuts at the ranks where MindSpore does: the indices in order, the last to neighbouring groups,
    ranks with equal parts rightmost."""
    if factors is None:
        return False
    reach = mesh.devices // math.prod(mesh.size(f) for f in factors)
    for axes in reversed(factors):
        for name in reversed(axes):
            if mesh.sizes[name] > 1 and mesh.stride(name) != reach:
                return False
            reach *= mesh.sizes[name]
    return True


def _turned(layout: Layout) -> Layout:
    return Layout(layout.dims[::-1], layout.partial)


def _operand(op: OperatorDocument, slot: int) -> Layout:
    found = op.operands[slot]
    assert found is not None
    return found.layout()


def _result(op: OperatorDocument) -> Layout:
    found = op.results[0]
    assert found is not None
    return found.layout()


def _splits(op: OperatorDocument) -> bool:
    return any(any(x.dims) for x in (*op.operands, *op.results) if x is not None)
