"""Smaller dimensions for a graph that is too large to execute, such that every operator can keep its strategy.

First the dimensions of the data (batch, sequence), then those of the weights: a hidden layer, the vocabulary, the
number of experts.  A weight's dimension takes along whatever is tied to it, as `planner.frontends.resized.rebind` finds
out; a size that some operator, constant or strategy does not admit is passed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from planner.errors import InputError
from planner.frontends.resized.rebind import rebind
from planner.ir import DeviceMesh, Graph, Layout, Op, Role, Tensor
from planner.pricing import bind_rules
from planner.rules.strategy import AxisRole, bind
from planner.rules.window import windows
from planner.verify.uses import uses

__all__ = ["Shrinker"]

LEAST_SEQUENCE = 16  # a sequence of one would hide errors along it
LEAST_WEIGHT = 64  # shorter dimensions of weights stay as they are: heads, kernels, few experts
ATTEMPTS = 6  # sizes tried for one dimension

_SLIDING = {"AveragePool": 1, "Conv": 2, "LpPool": 1, "MaxPool": 1}  # operands that say how far a window reaches


@dataclass(frozen=True, slots=True)
class Shrinker:
    """What must stay possible: `roles` are the strategies of the plan by operator, `layouts` those that a tensor is in
    on its way from one operator to the next."""

    mesh: DeviceMesh
    roles: Mapping[str, tuple[AxisRole, ...]]
    layouts: Mapping[str, frozenset[Layout]]

    def steps(self, graph: Graph) -> Iterator[tuple[Graph, str]]:
        """Ever smaller graphs, and what was made smaller by each step."""
        for axis, size in _input_sizes(graph):
            fed = [graph.tensors[t] for t in graph.inputs if graph.tensors[t].role is Role.INPUT]
            places = [(t.name, axis) for t in fed if t.shape is not None and t.shape[axis : axis + 1] == (size,)]
            least = 1 if axis == 0 else LEAST_SEQUENCE
            found = self._smallest(graph, places, [d for d in range(least, size) if size % d == 0])
            if found is not None:
                graph, smaller = found
                yield graph, f"dimension {axis} of the inputs {smaller} instead of {size}"
        alike: dict[object, list[tuple[str, int]]] = {}
        for name, axis in _weight_dimensions(graph):
            alike.setdefault(_read_as(graph, name, axis), []).append((name, axis))
        for places in alike.values():
            step = self._all_or_one(graph, places)
            while step is not None:
                graph, note, places = step
                yield graph, note
                step = self._all_or_one(graph, places) if places else None

    def _all_or_one(
        self, graph: Graph, places: list[tuple[str, int]]
    ) -> tuple[Graph, str, list[tuple[str, int]]] | None:
        """A graph in which all of these dimensions, or else the first of them, are smaller, a note, and those that are
        left to try: none behind a first one that cannot be, since they are read alike."""
        name, axis = places[0]
        size = (graph.tensors[name].shape or ())[axis]
        divisors = [d for d in range(LEAST_WEIGHT, size // 2 + 1) if size % d == 0][:ATTEMPTS]
        same = [(n, a) for n, a in places if (graph.tensors[n].shape or ())[a] == size]
        for some in (same, same[:1]) if len(same) > 1 else (same,):
            found = self._smallest(graph, some, divisors)
            if found is not None:
                smaller, to = found
                what = f"{name} and {len(some) - 1} more" if len(some) > 1 else name
                left = [p for p in places if p not in some]
                return smaller, f"dimension {axis} of {what} {to} instead of {size}", left
        return None

    def _smallest(self, graph: Graph, places: list[tuple[str, int]], sizes: list[int]) -> tuple[Graph, int] | None:
        """The graph with the first of the sizes that its operators and the plan's strategies admit."""
        for size in sizes if places else ():
            try:
                smaller = rebind(graph, dict.fromkeys(places, size))
            except (InputError, ValueError):
                continue
            if not _used_up(graph, smaller) and self._admits(smaller, graph):
                return smaller, size
        return None

    def _admits(self, smaller: Graph, graph: Graph) -> bool:
        """Every operator keeps its strategy, and a rule: one without has operands that no longer fit each other.  Every
        tensor keeps its layouts."""
        before, rules = bind_rules(graph)[0], bind_rules(smaller)[0]
        return all(self._divides(smaller.tensors[n]) for n in self.layouts if n in smaller.tensors) and all(
            bind(rules[op.name], self.mesh, self.roles[op.name]) is not None
            and rules[op.name].is_whole <= before[op.name].is_whole
            for op in smaller.ops
        )

    def _divides(self, tensor: Tensor) -> bool:
        try:
            for layout in self.layouts[tensor.name]:
                layout.local_shape(tensor.shape or (), self.mesh)
        except ValueError:
            return False
        return True


def _used_up(graph: Graph, smaller: Graph) -> bool:
    """Whether something is wrong that was not so before: nothing is left of some tensor, some window is larger than all
    that it slides over (the mean of no pixels is not a number), or an index that the graph holds, such as the word that
    a decoder begins with, points behind what it is looked up in."""
    if any(t.shape is not None and not t.elements and graph.tensors[n].elements for n, t in smaller.tensors.items()):
        return True
    if any(_overruns(op, smaller) and not _overruns(graph.op(op.name), graph) for op in smaller.ops):
        return True
    return _points_outside(smaller) and not _points_outside(graph)


def _overruns(op: Op, graph: Graph) -> bool:
    """ONNX infers one position for such a window, and kernels compute none, or one of padding alone."""
    if op.type not in _SLIDING:
        return False
    shapes = [graph.tensors[t].shape if t else None for t in (*op.inputs[: _SLIDING[op.type]], op.outputs[0])]
    if any(s is None for s in shapes):
        return False
    data, *weight, result = (s or () for s in shapes)
    kernel = op.attributes.get("kernel_shape") or (weight[0][2:] if weight else ())
    found = windows(op.attributes, kernel, data[2:], result[2:])
    return any(w.span > w.begin + w.elements + w.end for w in found)


def _points_outside(graph: Graph) -> bool:
    """Whether an index that the graph itself holds is beyond a bound that a reader of it has."""
    for name, use in uses(graph).items():
        value = graph.tensors[name].value
        if use.below is not None and value is not None and value.dtype.kind in "iu" and np.any(value >= use.below):
            return True
    return False


def _input_sizes(graph: Graph) -> list[tuple[int, int]]:
    """(axis, size) classes of the data inputs' dimensions, the batch first."""
    fed = [graph.tensors[t] for t in graph.inputs if graph.tensors[t].role is Role.INPUT]
    return sorted({(a, s) for t in fed for a, s in enumerate(t.shape or ()) if s > 1})


def _read_as(graph: Graph, name: str, axis: int) -> tuple[object, ...]:
    """What weights of repeated blocks have in common."""
    readers = tuple((op.type, slot) for op, slot in graph.consumers.get(name, ()))
    return graph.tensors[name].shape, axis, readers


def _weight_dimensions(graph: Graph) -> list[tuple[str, int]]:
    """Long dimensions of matrices, those of the largest ones first."""
    matrices = [t for t in graph.parameters if t.shape is not None and len(t.shape) > 1]
    matrices.sort(key=lambda t: -math.prod(t.shape or ()))
    return [
        (t.name, axis)
        for t in matrices
        for axis, size in sorted(enumerate(t.shape or ()), key=lambda pair: -pair[1])
        if size >= 2 * LEAST_WEIGHT
    ]
