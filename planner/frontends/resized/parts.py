"""Dimensions that hold several things of one size behind each other: queries, keys and values of a fused product.

Splitting such a dimension as one leaves each rank with another of the things, and what takes them apart then has to
move everything; splitting each of them by itself moves nothing.  What is taken apart is marked (`Tensor.parts`): by a
Split into equal parts, and by a Reshape whose new dimension is then indexed, sliced or split.  The mark is carried back
through whatever keeps the dimension as it is, up to the product that makes it, its weight and its bias; where no weight
has it, nothing is marked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from planner.ir import Graph, Op, Role, Tensor

__all__ = ["mark_parts"]

_SAME = frozenset({"Cast", "CastLike", "Dropout", "Gelu", "Identity", "Relu", "Sigmoid", "Tanh", "com.microsoft::Gelu"})
_BROADCAST = frozenset({"Add", "Div", "Mul", "Sub", "Sum", "com.microsoft::BiasGelu"})
_Place = tuple[str, int]  # tensor, dimension


def mark_parts(graph: Graph) -> Graph:
    """The graph, with `Tensor.parts` where dimensions hold equal parts that readers take apart."""
    found: dict[_Place, int] = {}
    for op in graph.ops:
        for place, count in _seeds(op, graph):
            places = _made_of(place, graph)
            if any(graph.tensors[name].role is Role.PARAMETER for name, _ in places):
                found |= {p: count for p in places if p not in found}
    if not found:
        return graph
    marked = {name: t if not (parts := _of(t, found)) else replace(t, parts=parts) for name, t in graph.tensors.items()}
    return replace(graph, tensors=marked)


def _made_of(place: _Place, graph: Graph) -> dict[_Place, None]:
    """The dimension, and all that it is made of as they stand."""
    found: dict[_Place, None] = {}
    open_ = [place]
    while open_:
        here = open_.pop()
        if here not in found:
            found[here] = None
            open_ += _before(*here, graph)
    return found


def _of(tensor: Tensor, found: Mapping[_Place, int]) -> tuple[int, ...]:
    counts = tuple(found.get((tensor.name, d), 1) for d in range(tensor.rank))
    return counts if any(n > 1 for n in counts) else ()


def _seeds(op: Op, graph: Graph) -> Iterator[tuple[_Place, int]]:
    """Dimensions that the operator takes apart into equal parts."""
    shape = graph.tensors[op.inputs[0]].shape if op.inputs and op.inputs[0] else None
    if not shape:
        return
    if op.type == "Split" and all(op.outputs) and len(op.outputs) > 1:
        axis = int(op.attributes.get("axis", 0)) % len(shape)
        results = {graph.tensors[t].shape for t in op.outputs}
        if len(results) == 1 and shape[axis] % len(op.outputs) == 0:
            yield (op.inputs[0], axis), len(op.outputs)
    if op.type != "Reshape":
        return
    target = graph.tensors[op.outputs[0]].shape
    if target and 0 not in target:
        for d, at in _unfolded(shape, target):
            if _taken_apart(op.outputs[0], at, graph):
                yield (op.inputs[0], d), target[at]


def _unfolded(source: tuple[int, ...], target: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """(dimension, new dimension): of every dimension that a reshape makes several of, the first that is not one."""
    for d, size in enumerate(source):
        start = math.prod(source[:d])
        at = next((k for k in range(len(target)) if math.prod(target[:k]) == start and target[k] > 1), None)
        if at is None or target[at] in (1, size):
            continue
        ends = [math.prod(target[at:k]) for k in range(at + 2, len(target) + 1)]
        if size in ends:
            yield d, at


def _taken_apart(tensor: str, dim: int, graph: Graph) -> bool:
    """Every reader, behind reorderings of the dimensions, indexes the dimension or cuts it up."""
    readers = graph.consumers.get(tensor, ())
    return bool(readers) and all(_cuts(op, i, dim, graph) for op, i in readers)


def _cuts(op: Op, operand: int, dim: int, graph: Graph) -> bool:
    rank = graph.tensors[op.inputs[0]].rank
    if operand != 0:
        return False
    if op.type == "Transpose":
        order = tuple(op.attributes.get("perm") or reversed(range(rank)))
        return _taken_apart(op.outputs[0], order.index(dim), graph)
    if op.type in ("Cast", "Identity"):
        return _taken_apart(op.outputs[0], dim, graph)
    if op.type in ("Squeeze", "Unsqueeze"):
        return _taken_apart(op.outputs[0], _without_ones(op, dim, graph), graph)
    if op.type in ("Gather", "Split"):
        return bool(int(op.attributes.get("axis", 0)) % rank == dim)
    if op.type == "Slice":
        before, after = graph.tensors[op.inputs[0]].shape, graph.tensors[op.outputs[0]].shape
        return before is not None and after is not None and after[dim] < before[dim]
    return False


def _without_ones(op: Op, dim: int, graph: Graph) -> int:
    """Where a dimension is once dimensions of size one came or went: behind as many others."""
    before, after = graph.tensors[op.inputs[0]].shape or (), graph.tensors[op.outputs[0]].shape or ()
    larger = sum(n > 1 for n in before[:dim])
    return [k for k, n in enumerate(after) if n > 1][larger]


def _before(tensor: str, dim: int, graph: Graph) -> Iterator[_Place]:
    """The dimensions of its operator's operands that a dimension is, as it stands."""
    op = graph.producers.get(tensor)
    shape = graph.tensors[tensor].shape
    if op is None or shape is None:
        return
    last = dim == len(shape) - 1
    if op.type == "MatMul" and last and graph.tensors[op.inputs[1]].rank > 1:
        yield op.inputs[1], graph.tensors[op.inputs[1]].rank - 1
    elif op.type == "Gemm" and last:
        yield op.inputs[1], 0 if op.attributes.get("transB", 0) else 1
        if len(op.inputs) > 2 and op.inputs[2]:
            yield from _aligned(op.inputs[2:], shape, dim, graph)
    elif op.type == "Transpose":
        order = tuple(op.attributes.get("perm") or reversed(range(len(shape))))
        yield op.inputs[0], order[dim]
    elif op.type == "Reshape":
        source = graph.tensors[op.inputs[0]].shape or ()
        start = math.prod(shape[:dim])
        for d, size in enumerate(source):
            if size == shape[dim] and math.prod(source[:d]) == start:
                yield op.inputs[0], d
    elif op.type in _SAME:
        yield op.inputs[0], dim
    elif op.type in _BROADCAST:
        yield from _aligned(op.inputs, shape, dim, graph)


def _aligned(operands: tuple[str, ...], shape: tuple[int, ...], dim: int, graph: Graph) -> Iterator[_Place]:
    """Of operands that are broadcast, the dimension that lies under `dim`, where it has the size."""
    for name in operands:
        own = graph.tensors[name].shape if name else None
        at = dim - len(shape) + len(own or ())
        if own is not None and at >= 0 and own[at] == shape[dim]:
            yield name, at
