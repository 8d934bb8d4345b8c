"""A strategy file of MindSpore as constraints of our search: it decides the mesh, how parameters lie, and how the data
of products is split; what it leaves open (what no key names, redistributions) is searched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from planner.emit.mindspore.arrangement import Arrangement, common_mesh, layouts_of
from planner.emit.mindspore.primitives import PRIMITIVES
from planner.emit.mindspore.strategy_map import OperatorStrategy, StrategyMap
from planner.emit.names import Name
from planner.errors import InputError
from planner.ir import DeviceMesh, Graph, Layout
from planner.planning.constraints import SCHEMA, Constraints, parse_constraints
from planner.planning.readers import Reader, readers_of

__all__ = ["constraints_of_strategies"]


def constraints_of_strategies(
    found: StrategyMap, graph: Graph, names: Mapping[str, Name], source: str
) -> tuple[Constraints, DeviceMesh]:
    """Pins for `graph`, whose parameters go by `names` in the file, and the mesh they are for.

    InputError where a parameter is not in the file, its layout does not fit, or the layouts share no mesh.
    """
    stages = {n.partition("-")[0] for n in found.parameters if n.partition("-")[0].isdecimal() and "-" in n}
    if len(stages) > 1:
        raise InputError(f"{source}: holds {len(stages)} pipeline stages; plans of one stage can be read so far")
    parameters = {n.partition("-")[2] if stages else n: p for n, p in found.parameters.items()}
    if not parameters:
        raise InputError(f"{source}: has no layout of a parameter (an operator-keyed file); save one by parameters")
    lacking = [n for n, name in names.items() if name.name not in parameters]
    if lacking:
        raise InputError(
            f"{source}: parameter {names[lacking[0]].name!r} is not in it; it has {', '.join(list(parameters)[:6])}, "
            "…; say with --names what the file calls the model's parameters"
        )
    mesh = common_mesh(p.arrangement for p in parameters.values())
    pins: dict[str, Any] = {"schema": SCHEMA, "mesh": str(mesh), "operators": [], "parameters": []}
    for n, name in names.items():
        arrangement = parameters[name.name].arrangement
        compute, stored = _layouts(n, name, arrangement, graph, mesh, source)
        pins["parameters"].append({"match": n, "compute": str(compute), "stored": str(stored)})
        for r in readers_of(graph, n):
            pin = _operator_pin(found.operators, graph, r, name)
            if pin is not None:
                pins["operators"].append(pin)
    return parse_constraints(json.dumps(pins), source), mesh


def _layouts(n: str, name: Name, a: Arrangement, graph: Graph, mesh: DeviceMesh, source: str) -> tuple[Layout, Layout]:
    shape = graph.tensors[n].shape or ()
    if len(a.tensor_map) != len(shape):
        raise InputError(
            f"{source}: parameter {name.name!r} has {len(a.tensor_map)} dimensions, {n!r} of the model {len(shape)}"
        )
    compute, stored = layouts_of(a, mesh)
    if name.transposed:
        compute, stored = (Layout(x.dims[::-1]) for x in (compute, stored))
    try:
        compute.local_shape(shape, mesh)
        stored.local_shape(shape, mesh)
    except ValueError as e:
        raise InputError(f"{source}: parameter {name.name!r}: {e}") from e
    return compute, stored


def _operator_pin(
    operators: Mapping[str, OperatorStrategy], graph: Graph, r: Reader, name: Name
) -> dict[str, Any] | None:
    """How the operator's data is split, where the file says so and it can be told which dimension is meant."""
    op = graph.producers[r.operator]
    primitive = PRIMITIVES.get(op.type)
    if primitive is None or not primitive.flattened or r.slot != 1:
        return None
    strategy = operators.get(f"{primitive.name}_{name.name}")
    shape = graph.tensors[op.inputs[0]].shape
    if strategy is None or len(strategy.operands) != 2 or shape is None or len(shape) < 2:
        return None
    rows, inner = strategy.operands[0]
    weight = strategy.operands[1][::-1] if r.transposed != name.transposed else strategy.operands[1]
    if len(shape) > 2 and shape[0] % rows:
        return None
    data = [rows, *[1] * (len(shape) - 2), inner]
    return {"match": r.operator, "shard": [data, list(weight)]}
