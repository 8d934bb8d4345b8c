"""What a file states of a graph: its inputs, its outputs and the shapes of what it stores."""

from __future__ import annotations

from collections.abc import Mapping

from planner.ir import Graph, Role
from planner.verify.model_file import ModelFile

__all__ = ["contradiction_with", "folded_samples"]


def contradiction_with(file: ModelFile, graph: Graph, bind: Mapping[str, int], batch: int | None) -> str:
    """Where inputs, outputs or stored tensors are others than the file's; empty where they are not."""
    if graph.outputs != file.outputs:
        return f"the graph's outputs are {list(graph.outputs)}, the file's {list(file.outputs)}"
    if set(graph.inputs) != set(file.inputs):
        return f"the graph's inputs are {list(graph.inputs)}, the file's {list(file.inputs)}"
    folded = _folded(file, graph, batch)
    for name, fed in file.inputs.items():
        t = graph.tensors[name]
        if fed.dtype != t.dtype or fed.dims is None or len(fed.dims) != t.rank:
            return f"input {name} is {t.dtype} {list(t.shape or ())}, in the file {fed.dtype} {fed.dims}"
        for axis, (size, found) in enumerate(zip(fed.dims, t.shape or (), strict=True)):
            stated = size if isinstance(size, int) else bind.get(size, bind.get(f"{name}.{axis}", found))
            if found not in (stated, batch) and (name, axis) not in folded:
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


def folded_samples(file: ModelFile, graph: Graph, batch: int | None) -> str:
    """Which input holds the words of all samples in one dimension, which grew as the batch did; empty where none does.

    A file of another batch cannot be run on slices of such an input: nothing says in which order samples and words
    stand there.
    """
    for (name, axis), (own, new) in _folded(file, graph, batch).items():
        return f"dimension {axis} of input {name} holds samples and words together: {own} in the file, {new} here"
    return ""


def _folded(file: ModelFile, graph: Graph, batch: int | None) -> dict[tuple[str, int], tuple[int, int]]:
    """Sizes in the file and in the graph, by input and dimension: of inputs without a dimension of samples."""
    sizes = {
        name: [(own, new) for own, new in zip(fed.dims or (), graph.tensors[name].shape or (), strict=False)]
        for name, fed in file.inputs.items()
    }
    carried = {name: {(own, new) for own, new in found if own != new == batch} for name, found in sizes.items()}
    growths = [(own, new) for found in carried.values() for own, new in found if isinstance(own, int)]
    return {
        (name, axis): (own, new)
        for name, found in sizes.items()
        if not carried[name]
        for axis, (own, new) in enumerate(found)
        if isinstance(own, int) and own != new and any(own * after == new * before for before, after in growths)
    }
