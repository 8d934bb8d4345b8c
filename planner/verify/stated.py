"""What a file states of a graph: its inputs, its outputs and the shapes of what it stores."""

from __future__ import annotations

from collections.abc import Mapping

from planner.ir import Graph, Role
from planner.verify.model_file import ModelFile

__all__ = ["contradiction_with"]


def contradiction_with(file: ModelFile, graph: Graph, bind: Mapping[str, int], batch: int | None) -> str:
    """Where inputs, outputs or stored tensors are others than the file's; empty where they are not."""
    if graph.outputs != file.outputs:
        return f"the graph's outputs are {list(graph.outputs)}, the file's {list(file.outputs)}"
    if set(graph.inputs) != set(file.inputs):
        return f"the graph's inputs are {list(graph.inputs)}, the file's {list(file.inputs)}"
    for name, fed in file.inputs.items():
        t = graph.tensors[name]
        if fed.dtype != t.dtype or fed.dims is None or len(fed.dims) != t.rank:
            return f"input {name} is {t.dtype} {list(t.shape or ())}, in the file {fed.dtype} {fed.dims}"
        for axis, (size, found) in enumerate(zip(fed.dims, t.shape or (), strict=True)):
            stated = size if isinstance(size, int) else bind.get(size, bind.get(f"{name}.{axis}", found))
            if found not in (stated, batch):
                return f"dimension {axis} of input {name} is {found}, in the file {stated}"
    for t in graph.tensors.values():
        if t.name in graph.producers or t.name in file.inputs:
            continue
        stored = file.stored(graph.origins.get(t.name, t.name))
        if stored is None or t.shape is None or t.shape == stored[0]:
            continue
        if t.role is Role.PARAMETER or batch is None or len(t.shape) != len(stored[0]):
            return f"{t.role} {t.name} has the shape {list(t.shape)}, in the file {list(stored[0])}"
    return ""
