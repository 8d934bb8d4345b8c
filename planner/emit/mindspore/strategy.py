"""A plan as MindSpore's strategy file: one strategy for each operator that reads a parameter, one layout for each
parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from planner.emit.mindspore.arrangement import Arrangement, arranged
from planner.emit.mindspore.primitives import PRIMITIVES, Primitive
from planner.emit.mindspore.strategy_map import OperatorStrategy, ParameterLayout, StrategyMap
from planner.emit.names import Name
from planner.errors import InputError
from planner.ir import DeviceMesh, Layout
from planner.planning.document import LayoutDocument, OperatorDocument, ParameterDocument, PlanDocument, ReaderDocument

__all__ = ["Strategies", "merged", "strategies_of_plan"]


@dataclass(frozen=True, slots=True)
class Strategies:
    """`keys`: operator → its key in the file; `unnamed`: operators that split something and that no key can name.
    `displaced`: operators that MindSpore, told shards alone, would lay out over other ranks than the plan does → the
    operand that the network holds turned, None where it holds all as they are."""

    map: StrategyMap
    keys: Mapping[str, str]
    unnamed: tuple[str, ...]
    displaced: Mapping[str, int | None]


def strategies_of_plan(plan: PlanDocument, names: Mapping[str, Name], stage: int = 0) -> Strategies:
    """InputError where operators want one parameter in two layouts, or a layout has no words in MindSpore."""
    mesh = plan.mesh
    operators: dict[str, OperatorStrategy] = {}
    parameters: dict[str, ParameterLayout] = {}
    keys: dict[str, str] = {}
    displaced: dict[str, int | None] = {}
    first = _first_parameters(plan)
    for name, p in plan.parameters.items():
        if not p.readers:
            raise InputError(f"plan: parameter {name}: its readers are not said; search again with this version")
        told = names[name]
        compute = _one_layout(plan, name, p)
        stored = _layout(p.stored)
        if told.transposed:
            compute, stored = _turned(compute), _turned(stored)
        try:
            arrangement = arranged(compute, stored, mesh)
        except ValueError as e:
            raise InputError(
                f"plan: parameter {name}: {e}; search with --target mindspore, or pin `stored` and `compute`"
            ) from e
        shape = tuple(p.shape[::-1] if told.transposed else p.shape)
        local = tuple(s // arrangement.shards(d) for d, s in enumerate(shape))
        if arrangement.optimizer_shards and local:
            local = (local[0] // arrangement.optimizer_shards, *local[1:])
        parameters[told.name] = ParameterLayout(arrangement, shape=local)
        for reader in p.readers:
            for key, operands in _entries(plan.operators[reader.operator], reader, told, mesh):
                if first.get((reader.operator, _part(reader, plan))) == name:
                    operators[key] = OperatorStrategy(stage, operands)
                    keys.setdefault(reader.operator, key)
                    if not _as_derived(key, operands, arrangement):
                        turned = reader.transposed != told.transposed
                        displaced[reader.operator] = reader.slot if turned else None
    unnamed = tuple(n for n, o in plan.operators.items() if n not in keys and _splits(o))
    return Strategies(StrategyMap(operators, parameters, stage), keys, unnamed, displaced)


def _as_derived(key: str, operands: tuple[tuple[int, ...], ...], a: Arrangement) -> bool:
    """Whether the parameter lies where MindSpore lays it when told the operator's shards: its device matrix has the
    rows, the inner dimension and the columns of a product, or the dimensions of a sum's result, and what is left over
    on the right.  Of other primitives nothing is assumed but that what is whole lies whole."""
    if all(a.shards(d) == 1 for d in range(len(a.tensor_map))):
        return True
    primitive = key.partition("_")[0]
    if primitive == "MatMul":
        (rows, inner), weight = operands
        sizes = [rows, inner, math.prod(weight) // inner]
        order = [1, 2] if weight[0] == inner else [2, 1]
    elif primitive in ("Add", "Sub", "Mul", "RealDiv", "BiasAdd") and len(operands[0]) >= len(a.tensor_map):
        sizes = list(operands[0])
        order = list(range(len(sizes) - len(a.tensor_map), len(sizes)))
    else:
        return False
    used = math.prod(sizes)
    matrix = (*sizes, a.ranks // used)
    places = tuple(len(matrix) - 1 - i if sizes[i] > 1 else -1 for i in order)
    return Arrangement(matrix, places).footprint() == a.footprint()


def merged(stages: Iterable[StrategyMap]) -> StrategyMap:
    """The files of all pipeline stages as one, parameters under `stage-name`, as MindSpore merges them."""
    operators: dict[str, OperatorStrategy] = {}
    parameters: dict[str, ParameterLayout] = {}
    for number, each in enumerate(stages):
        operators |= {n: replace(s, stage=number) for n, s in each.operators.items()}
        parameters |= {f"{number}-{n}": p for n, p in each.parameters.items()}
    return StrategyMap(operators, parameters, current_stage=1)


def _layout(d: LayoutDocument) -> Layout:
    return Layout.from_json(d.model_dump())


def _turned(layout: Layout) -> Layout:
    return Layout(layout.dims[::-1], layout.partial)


def _one_layout(plan: PlanDocument, name: str, p: ParameterDocument) -> Layout:
    """The layout that all readers compute with."""
    found: dict[Layout, str] = {}
    for r in p.readers:
        operand = plan.operators[r.operator].operands[r.slot]
        layout = Layout.replicated(len(p.shape)) if operand is None else _layout(operand)
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
    primitive = PRIMITIVES.get(plan.operators[reader.operator].type)
    return "bias" if primitive is not None and reader.slot == primitive.bias else "main"


def _first_parameters(plan: PlanDocument) -> dict[tuple[str, str], str]:
    """(operator, part) → the parameter that its key is named after: its first operand that is one."""
    slots: dict[tuple[str, str], tuple[int, str]] = {}
    for name, p in plan.parameters.items():
        for r in p.readers:
            at = (r.operator, _part(r, plan))
            slots[at] = min(slots.get(at, (r.slot, name)), (r.slot, name))
    return {at: name for at, (_, name) in slots.items()}


def _entries(
    op: OperatorDocument, reader: ReaderDocument, told: Name, mesh: DeviceMesh
) -> list[tuple[str, tuple[tuple[int, ...], ...]]]:
    """(key, strategy) of the operator in the file, or nothing where MindSpore's primitive is not known."""
    primitive = PRIMITIVES.get(op.type)
    if primitive is None or (reader.slot not in primitive.operands and reader.slot != primitive.bias):
        return []
    if reader.slot == primitive.bias:
        result = op.results[0]
        assert result is not None
        data, bias = _shards(_layout(result), mesh), _shards(_operand(op, reader.slot), mesh)
        return [(f"BiasAdd_{told.name}", (data, bias))]
    present = [slot for slot in primitive.operands if slot < len(op.operands) and op.operands[slot] is not None]
    lists = [_listed(op, primitive, slot, reader, told, mesh) for slot in present]
    name = "BatchMatMul" if primitive.flattened and len(_operand(op, 1).dims) > 2 else primitive.name
    return [(f"{name}_{told.name}", tuple(lists))]


def _operand(op: OperatorDocument, slot: int) -> Layout:
    found = op.operands[slot]
    assert found is not None
    return _layout(found)


def _listed(
    op: OperatorDocument, primitive: Primitive, slot: int, reader: ReaderDocument, told: Name, mesh: DeviceMesh
) -> tuple[int, ...]:
    shards = _shards(_operand(op, slot), mesh)
    if slot == reader.slot and reader.transposed != told.transposed:
        shards = shards[::-1]  # as the network holds it; its product turns it
    if primitive.flattened and slot == 0 and len(shards) > 2 and len(_operand(op, 1).dims) == 2:
        shards = (math.prod(shards[:-1]), shards[-1])
    return shards


def _shards(layout: Layout, mesh: DeviceMesh) -> tuple[int, ...]:
    return tuple(mesh.size(d) for d in layout.dims)


def _splits(op: OperatorDocument) -> bool:
    return any(any(x.dims) for x in (*op.operands, *op.results) if x is not None)
