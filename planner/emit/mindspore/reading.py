"""A strategy file of MindSpore as constraints of our search: it decides the mesh, how parameters lie, and how the data
of products is split; what it leaves open (what no key names, redistributions) is searched."""

from __future__ import annotations

import glob
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.emit.mindspore.arrangement import common_mesh, layouts_of
from planner.emit.mindspore.primitives import Primitive, primitive_of
from planner.emit.mindspore.strategy_map import OperatorStrategy, ParameterLayout, StrategyMap, read_strategy_map
from planner.emit.names import Name, NameRules
from planner.emit.reading import Reading, check_devices, places_of, shapes_of
from planner.emit.wording import some
from planner.errors import InputError
from planner.ir import DeviceMesh, Graph, Layout, Op
from planner.planning.constraints import SCHEMA, Constraints, parse_constraints
from planner.planning.constraints.values import StrategyPin
from planner.planning.readers import Reader, readers_of
from planner.pricing.optimizer_parallel import divided_further
from planner.rules import rule_for
from planner.rules.strategy import strategies

__all__ = ["constraints_of_strategies", "read_strategies"]


def read_strategies(path: Path, graph: Graph, rules: NameRules) -> Reading:
    """A parameter-keyed strategy file, `.ckpt` or JSON.  InputError where it is none, or does not fit the graph."""
    found = read_strategy_map(path)
    names = rules.apply(shapes_of(graph), places_of(graph))
    parameters, stages = _by_name(found, str(path))
    constraints, mesh, unused = constraints_of_strategies(
        replace(found, parameters=parameters), graph, names, str(path)
    )
    held = {n: stages[name.name] for n, name in names.items() if name.name in stages}
    # A search for MindSpore divides among all ranks with equal parts; smaller groups are left to a plan for any target.
    groups = any(0 < p.arrangement.optimizer_shards < p.arrangement.replicas for p in found.parameters.values())
    return Reading(constraints, mesh, unused, "any" if groups else "mindspore", held)


def _by_name(found: StrategyMap, source: str) -> tuple[dict[str, ParameterLayout], dict[str, int]]:
    """Layouts by the parameters' names, and the stage of each that one stage alone holds, of a merged file; InputError
    where stages hold a parameter in different layouts."""
    numbered = [n.partition("-") for n in found.parameters]
    if not all(dash and head.isdecimal() and len(head) < 9 for head, dash, _ in numbered):
        return dict(found.parameters), {}
    out: dict[str, ParameterLayout] = {}
    stages: dict[str, set[int]] = {}
    for (head, _, name), p in zip(numbered, found.parameters.values(), strict=True):
        if out.setdefault(name, p) != p:
            raise InputError(f"{source}: parameter {name!r} lies otherwise in stage {head} than in an earlier one")
        stages.setdefault(name, set()).add(int(head))
    known = {s for found in stages.values() for s in found}
    if known != set(range(len(known))):
        raise InputError(f"{source}: expected stages 0 to {len(known) - 1}, found {sorted(known)}; merge all of them")
    if len(known) < 2:
        return out, {}
    return out, {n: min(found) for n, found in stages.items() if len(found) == 1}


def constraints_of_strategies(
    found: StrategyMap, graph: Graph, names: Mapping[str, Name], source: str
) -> tuple[Constraints, DeviceMesh, tuple[str, ...]]:
    """Pins for `graph`, whose parameters go by `names` in the file, the mesh they are for, and the keys of operators
    that no pin came of.

    InputError where a parameter is not in the file, its layout does not fit, or the layouts share no mesh.
    """
    parameters = found.parameters
    if not parameters:
        raise InputError(f"{source}: has no layout of a parameter (an operator-keyed file); save one by parameters")
    lacking = [n for n, name in names.items() if name.name not in parameters]
    if lacking:
        raise InputError(
            f"{source}: parameter {names[lacking[0]].name!r} is not in it; it has {', '.join(list(parameters)[:6])}, "
            "…; say with --names what the file calls the model's parameters"
        )
    mesh = common_mesh(p.arrangement for p in parameters.values())
    check_devices(source, mesh.devices)
    used: set[str] = set()
    turned: list[str] = []
    pins: dict[str, Any] = {"schema": SCHEMA, "mesh": str(mesh), "operators": [], "parameters": []}
    for n, name in names.items():
        compute, stored = _layouts(n, name, parameters[name.name], graph, mesh, source)
        if name.transposed and compute != stored:
            turned.append(n)
            stored = _along_the_first(compute, graph.tensors[n].shape or (), mesh)
        pin = {"match": glob.escape(n), "stored": str(stored)}
        if not _joins_a_sum(graph, n):
            pin["compute"] = str(compute)
        pins["parameters"].append(pin)
        for r in readers_of(graph, n):
            key, found_pin = _operator_pin(found.operators, graph, r, name, mesh, source)
            if found_pin is not None:
                used.add(key)
                pins["operators"].append(found_pin)
    unused = [k for k in found.operators if k not in used]
    if turned:
        unused.append(
            f"which part of {some(turned)} the optimizer has on a rank: the model holds it the other way round"
        )
    return parse_constraints(json.dumps(pins), source, numbered=False), mesh, tuple(unused)


def _along_the_first(compute: Layout, shape: tuple[int, ...], mesh: DeviceMesh) -> Layout:
    """The optimizer's shards of a matrix that the network holds the other way round: as many, cut along the first
    dimension of the model's, as they are planned; none where it does not divide."""
    further = divided_further(compute, mesh)
    even = all(n % mesh.size(axes) == 0 for n, axes in zip(shape, further.dims, strict=True))
    return further if even else compute


def _layouts(
    n: str, name: Name, p: ParameterLayout, graph: Graph, mesh: DeviceMesh, source: str
) -> tuple[Layout, Layout]:
    a = p.arrangement
    shape = graph.tensors[n].shape or ()
    if len(a.tensor_map) != len(shape):
        raise InputError(
            f"{source}: parameter {name.name!r} has {len(a.tensor_map)} dimensions, {n!r} of the model {len(shape)}"
        )
    try:
        compute, stored = layouts_of(a, mesh)
    except InputError as e:
        raise InputError(f"{source}: parameter {name.name!r}: {e}") from None
    if name.transposed:
        compute, stored = (Layout(x.dims[::-1]) for x in (compute, stored))
    try:
        compute.local_shape(shape, mesh)
        stored.local_shape(shape, mesh)
    except ValueError as e:
        raise InputError(f"{source}: parameter {name.name!r}: {e}") from e
    local = stored.local_shape(shape, mesh)
    if p.shape is not None and p.shape != (local[::-1] if name.transposed else local):
        raise InputError(
            f"{source}: parameter {name.name!r}: its slice has shape {list(p.shape)}, expected {list(local)} of {n!r}"
        )
    return compute, stored


def _joins_a_sum(graph: Graph, n: str) -> bool:
    """Whether an operator of ours adds the parameter itself, as a part of a pending sum where its inner dimension is
    divided; MindSpore adds it behind the sum, and the operator's own pin says the rest."""
    found = ((graph.producers[r.operator], r.slot) for r in readers_of(graph, n))
    return any((primitive := primitive_of(op.type)) is not None and slot == primitive.bias for op, slot in found)


def _operator_pin(
    operators: Mapping[str, OperatorStrategy], graph: Graph, r: Reader, name: Name, mesh: DeviceMesh, source: str
) -> tuple[str, dict[str, Any] | None]:
    """(key, how the operator is split) where the file says so and it can be told which dimension is meant."""
    op = graph.producers[r.operator]
    primitive = primitive_of(op.type)
    if primitive is None or r.slot not in primitive.operands:
        return "", None
    key = f"{primitive.name}_{name.name}"
    strategy = operators.get(key)
    if strategy is None:
        return key, None
    turned = r.transposed != name.transposed
    if primitive.flattened:
        shards = _of_product(strategy, graph, op, turned, key, source) if r.slot == 1 else None
    else:
        shards = _of_operands(strategy, primitive, graph, op, r.slot if turned else None)
    if shards is None or not _offered(op, graph, mesh, shards):
        return key, None
    return key, {"match": glob.escape(r.operator), "shard": shards}


def _of_product(
    strategy: OperatorStrategy, graph: Graph, op: Op, turned: bool, key: str, source: str
) -> list[list[int] | None] | None:
    shape = graph.tensors[op.inputs[0]].shape
    if shape is None or len(shape) < 2 or len(graph.tensors[op.inputs[1]].shape or ()) != 2:
        return None
    if [len(x) for x in strategy.operands] != [2, 2]:
        raise InputError(f"{source}: operator {key}: expected shards of two matrices, found {strategy.operands}")
    rows, inner = strategy.operands[0]
    weight = strategy.operands[1][::-1] if turned else strategy.operands[1]
    if shape[0] % rows:
        if math.prod(shape[:-1]) % rows:
            raise InputError(f"{source}: operator {key}: {rows} shards do not divide {math.prod(shape[:-1])} rows")
        return None  # parts of samples: rows of the flattened data, which no dimension of the graph is
    return [[rows, *[1] * (len(shape) - 2), inner], list(weight)]


def _of_operands(
    strategy: OperatorStrategy, primitive: Primitive, graph: Graph, op: Op, turned: int | None
) -> list[list[int] | None] | None:
    """Shards slot by slot; None where the file counts other dimensions than the graph has."""
    slots = [s for s in primitive.operands if s < len(op.inputs) and op.inputs[s]]
    if len(slots) != len(strategy.operands):
        return None
    out: list[list[int] | None] = [None] * len(op.inputs)
    for slot, counts in zip(slots, strategy.operands, strict=True):
        if len(counts) != len(graph.tensors[op.inputs[slot]].shape or ()):
            return None
        out[slot] = list(counts[::-1] if slot == turned else counts)
    return out


def _offered(op: Op, graph: Graph, mesh: DeviceMesh, shards: list[list[int] | None]) -> bool:
    """Whether a strategy of ours is split so; a pin that none is would refuse the whole file."""
    rule = rule_for(op, graph)
    if rule is None:
        return False
    pin = StrategyPin(shard=tuple(None if c is None else tuple(c) for c in shards))
    return any(pin.admits(s, mesh) for s in strategies(rule, mesh, training=False))
