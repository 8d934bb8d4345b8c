"""Layouts of parameters and inputs, as another system's file has them, as pins of our search."""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from planner.emit.reading import MOST_DEVICES, check_devices
from planner.errors import InputError
from planner.ir import DeviceMesh, Graph, Layout, MeshAxis
from planner.ir.mesh import AXIS_NAMES
from planner.planning.constraints import SCHEMA, Constraints, parse_constraints
from planner.planning.constraints.batch import follow_batch
from planner.planning.readers import Reader, readers_of
from planner.pricing import bind_rules
from planner.rules import rule_for
from planner.rules.rule import Rule
from planner.rules.strategy import REPLICATE, AxisRole, bind

__all__ = ["Placed", "mesh_of", "pinned", "read_json", "whole_number"]

_MOST_BYTES: Final = 1 << 26


@dataclass(frozen=True, slots=True)
class Placed:
    """`compute`, `stored`: parameter of the graph → its layout, where the file says one; `inputs`: input → layout;
    `data`: the axes that divide samples."""

    mesh: DeviceMesh
    compute: Mapping[str, Layout] = field(default_factory=dict)
    stored: Mapping[str, Layout] = field(default_factory=dict)
    inputs: Mapping[str, Layout] = field(default_factory=dict)
    data: tuple[str, ...] = ()


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The object that a file holds.  InputError where it holds none."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path}: {path.stat().st_size:,} bytes; {what} has at most {_MOST_BYTES:,}")
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror}); give {what}") from e
    except (ValueError, RecursionError) as e:
        raise InputError(f"{path}: is not JSON ({e}); give {what}") from e
    if not isinstance(document, dict):
        raise InputError(f"{path}: expected an object, found {document!r:.80}; give {what}")
    return document


def whole_number(where: str, value: object, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_DEVICES:
        raise InputError(f"{where}: expected a whole number from {least} to {MOST_DEVICES:,}, found {value!r:.80}")
    return value


def mesh_of(where: str, sizes: list[int]) -> DeviceMesh:
    """Axes x, y, … of these sizes, outermost first."""
    if not 1 <= len(sizes) <= len(AXIS_NAMES):
        raise InputError(f"{where}: expected 1 to {len(AXIS_NAMES)} mesh axes, found {len(sizes)}")
    mesh = DeviceMesh(tuple(MeshAxis(name, size) for name, size in zip(AXIS_NAMES, sizes, strict=False)))
    check_devices(where, mesh.devices)
    return mesh


def pinned(placed: Placed, graph: Graph, source: str, *, samples: bool = False) -> Constraints:
    """Pins of parameters and inputs, and of what the layouts of weights say of the operators that read them; `samples`:
    whatever else there is divides samples over the axes that do, and nothing else.

    InputError where a layout does not fit its tensor.
    """
    batch = follow_batch(graph, bind_rules(graph)[0], {}, source).factors if samples else {}
    parameters: list[dict[str, str]] = []
    operators: list[dict[str, Any]] = []
    for n in graph.tensors:
        pin = {
            key: str(_fitting(layouts[n], n, placed, graph, source))
            for key, layouts in (("compute", placed.compute), ("stored", placed.stored))
            if n in layouts
        }
        if pin:
            parameters.append({"match": glob.escape(n), **pin})
        if n in placed.compute:
            operators += filter(
                None, (_operator(placed, graph, r, placed.compute[n], batch) for r in readers_of(graph, n))
            )
    tensors = [
        {"match": glob.escape(n), "layout": str(_fitting(x, n, placed, graph, source))}
        for n, x in placed.inputs.items()
    ]
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "mesh": str(placed.mesh),
        "operators": operators,
        "parameters": parameters,
        "tensors": tensors,
    }
    if samples and placed.data and batch:
        document["rest"] = {"data_parallel": list(placed.data)}
    return parse_constraints(json.dumps(document), source, numbered=False)


def _fitting(layout: Layout, n: str, placed: Placed, graph: Graph, source: str) -> Layout:
    shape = graph.tensors[n].shape or ()
    if len(layout.dims) != len(shape):
        raise InputError(f"{source}: {n!r} has {len(shape)} dimensions in the model, {len(layout.dims)} in the file")
    try:
        layout.local_shape(shape, placed.mesh)
    except ValueError as e:
        raise InputError(f"{source}: {n!r}: {e}; uneven shards are not planned with") from e
    return layout


def _operator(
    placed: Placed, graph: Graph, r: Reader, weight: Layout, batch: Mapping[str, frozenset[str]]
) -> dict[str, Any] | None:
    """A product or a look-up is split as its weight is, and its data along samples; another operator that reads a
    parameter along samples, where it is known which of its indices counts them (`batch`)."""
    op = graph.producers[r.operator]
    rule = rule_for(op, graph)
    if rule is not None and op.name in batch and not any(weight.dims):
        return _along_samples(placed, rule, op.name, sorted(batch[op.name]))
    if rule is None or (op.type, r.slot) not in (("MatMul", 1), ("Gemm", 1), ("Gather", 0)):
        return None
    parameter, data = rule.operands[r.slot], rule.operands[1 - r.slot]
    dims = weight.dims[::-1] if r.transposed else weight.dims
    if parameter is None or data is None or len(parameter) != len(dims):
        return None
    roles: dict[str, str] = {}
    for factors, axes in zip(parameter, dims, strict=True):
        roles |= {a: f"split:{factors[0]}" for a in axes if len(factors) == 1}
    free = [a for a in placed.data if a not in roles]
    if data and data[0] and rule.factors[data[0][0]] % max(placed.mesh.size(free), 1) == 0:
        roles |= dict.fromkeys(free, f"split:{data[0][0]}")
    used = {a for a in roles if placed.mesh.sizes.get(a, 1) > 1}
    return {"match": glob.escape(r.operator), "roles": {a: v for a, v in roles.items() if a in used}} if used else None


def _along_samples(placed: Placed, rule: Rule, name: str, factors: list[str]) -> dict[str, Any] | None:
    for factor in factors:
        role = AxisRole("split", factor=factor)
        if placed.data and bind(
            rule, placed.mesh, tuple(role if a in placed.data else REPLICATE for a in placed.mesh.names)
        ):
            return {"match": glob.escape(name), "roles": dict.fromkeys(placed.data, f"split:{factor}")}
    return None
