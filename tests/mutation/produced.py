"""What a program computes when it runs from beginning to end with nobody beside it.

Nothing is taken from the whole model after the sources were loaded, so that a mutant whose outputs and gradients are
those of the original is equivalent, whatever a verifier says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from planner.ir import DeviceMesh, Graph, Layout
from planner.kernels.shards import Array, Shards, combine, shard
from planner.lowering import Load, Program, Redistribute, Run, Seed
from planner.verify.data import random_tensors
from planner.verify.double import in_double
from planner.verify.execute import VirtualDevices
from planner.verify.reference import incoming_gradient

__all__ = ["alike", "places", "produced", "reduced"]

Produced = dict[str, list[Array]]


def produced(program: Program, seed: int = 0) -> Produced:
    """The outputs of the graph, as every rank that holds a shard sees it, and the gradients that are left in the end.

    Raises what the execution raises where the program cannot run."""
    graph = in_double(program.graph)
    values = random_tensors(graph, seed)
    devices = VirtualDevices(replace(program, graph=graph))
    mesh, latest = program.mesh, dict[str, tuple[Layout, Shards]]()
    rng = np.random.default_rng(seed)
    for i in program.instructions:
        match i:
            case Load(tensor, layout):
                devices.values[tensor, layout] = shard(_value(graph, values, tensor), layout, mesh, rng)
            case Redistribute():
                key, shards = (i.tensor, i.target), devices.redistribute(i)
                if i.gradient:
                    _add(devices.gradients, key, shards)
                else:
                    devices.values[key] = shards
            case Seed(tensor, layout):
                _add(devices.gradients, (tensor, layout), shard(incoming_gradient(graph, tensor), layout, mesh, rng))
            case Run(name, False):
                op, strategy = graph.op(name), program.strategies[name]
                for t, layout, found in zip(op.outputs, strategy.results, devices.forward(op), strict=True):
                    if t and found is not None:
                        key = t, devices.layout(t, layout)
                        devices.values[key] = found
                        latest[t] = key[1], found
            case Run(name, True):
                op, strategy = graph.op(name), program.strategies[name]
                rule = program.rules[name]
                wanted = [bool(t) and t in program.active and k in rule.differentiable for k, t in enumerate(op.inputs)]
                gradients = devices.backward(op, wanted)
                for t, layout, found in zip(op.inputs, strategy.operand_gradients, gradients, strict=True):
                    if found is not None:
                        _add(devices.gradients, (t, devices.layout(t, layout)), found)
    out: Produced = {t: _whole(graph, t, *latest[t], mesh) for t in graph.outputs if t in latest}
    for (name, layout), shards in devices.gradients.items():
        final = program.final_gradients.get(name) == layout
        what = f"gradient of {name}" if final else f"gradient of {name} left in {layout}"
        out[what] = _whole(graph, name, layout, shards, mesh)
    return out


def _value(graph: Graph, values: Mapping[str, Array], name: str) -> Array:
    stated = graph.tensors[name].value
    return values[name] if stated is None else np.asarray(stated)


def _add(store: dict[tuple[str, Layout], Shards], key: tuple[str, Layout], shards: Shards) -> None:
    held = store.get(key)
    store[key] = shards if held is None else tuple(a + b for a, b in zip(held, shards, strict=True))


def _whole(graph: Graph, name: str, layout: Layout, shards: Shards, mesh: DeviceMesh) -> list[Array]:
    """The value that the shards stand for; two of them where replicas differ."""
    values = reduced(shards, layout, mesh)
    shape = graph.tensors[name].shape
    if shape is None or len(shape) != len(layout.dims):
        return values
    first, last = (np.empty(shape, values[0].dtype) for _ in range(2))
    for rank in range(mesh.devices):
        last[places(layout, shape, mesh, rank)] = values[rank]
    for rank in reversed(range(mesh.devices)):
        first[places(layout, shape, mesh, rank)] = values[rank]
    return [first] if _close(first, last) else [first, last]


def places(layout: Layout, shape: Sequence[int], mesh: DeviceMesh, rank: int) -> tuple[Array, ...]:
    """Indices of a rank's elements, for every dimension: one range of each of its equal parts."""
    at = mesh.coordinates(rank)
    found = []
    for d, size in enumerate(shape):
        parts = layout.parts[d] if layout.parts else 1
        index, shards = 0, 1
        for a in layout.dims[d]:
            index, shards = index * mesh.sizes[a] + at[a], shards * mesh.sizes[a]
        each = size // parts // shards
        starts = np.arange(parts) * (size // parts) + index * each
        found.append((starts[:, None] + np.arange(each)).reshape(-1))
    return np.ix_(*found)


def reduced(shards: Sequence[Array], layout: Layout, mesh: DeviceMesh) -> list[Array]:
    """The shards after their pending reductions."""
    values = list(shards)
    for axis, reduction in reversed(layout.partial):
        for group in mesh.groups([axis]):
            whole = combine([values[r] for r in group], reduction)
            for r in group:
                values[r] = whole
    return values


def alike(a: Produced, b: Produced) -> bool:
    """The same names, and the same numbers but for rounding."""
    if a.keys() != b.keys():
        return False
    return all(len(a[n]) == len(b[n]) and all(map(_close, a[n], b[n])) for n in a)


def _close(x: Array, y: Array) -> bool:
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    if x.dtype.kind != "f":
        return bool(np.array_equal(x, y))
    size = float(np.max(np.abs(y), initial=0.0, where=np.isfinite(y)))
    return bool(np.allclose(x, y, rtol=1e-8, atol=1e-8 * size, equal_nan=True))
