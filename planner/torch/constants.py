"""Known numbers of a step that differ from sample to sample, which no micro-batch can have for those of another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from planner.ir import Graph, Op, Role
from planner.torch.capture.writer import as_array
from planner.work.by_sample import both_graphs

__all__ = ["constants_of_samples", "counted_on", "part_of"]

_ALONG: Final = frozenset({"Gather", "GatherElements", "ScatterElements"})
_OF_CLASSES: Final = frozenset({"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})  # along their scores' second
_OF_SEVERAL: Final = frozenset({"GatherND", "ScatterND"})


def constants_of_samples(part: Graph, whole: Graph, known: Mapping[str, Tensor]) -> Iterator[str]:
    """Constants of the `whole` batch that have other numbers for each `part` of it, such as weights of samples; `known`
    are those whose numbers are not in the graph.

    Whole numbers that count on from part to part are the same numbers within each where they are rows of the batch: of
    what is looked up along dimensions that the batch is a part of.
    """
    for name, own, found, step in _larger(part, whole, known):
        value = part.tensors[own].value
        alike = found is not None and (value is None or np.array_equal(value, found))
        if not alike or (step and not _are_rows(own, part, whole)):
            yield name


def counted_on(part: Graph, whole: Graph, known: Mapping[str, Tensor]) -> frozenset[str]:
    """Constants of whole numbers that count on from each `part` of the `whole` batch to the next."""
    return frozenset(name for name, _, _, step in _larger(part, whole, known) if step)


def _larger(
    part: Graph, whole: Graph, known: Mapping[str, Tensor]
) -> Iterator[tuple[str, str, NDArray[Any] | None, int]]:
    """Constants that are larger in the whole batch, with their names in the part, and what `part_of` finds of them."""
    both = {n: n for n in part.tensors if n in whole.tensors}  # and what operators read under another name
    for op, counterpart in both_graphs(part, whole):
        both |= dict(zip(counterpart.inputs, op.inputs, strict=False))
    for own, name in both.items():
        shape = part.tensors[own].shape if own else None
        if shape is None or part.tensors[own].role is not Role.CONSTANT or whole.tensors[name].shape == shape:
            continue
        of_batch = as_array(known[name]) if name in known else whole.tensors[name].value
        if of_batch is not None:
            yield name, own, *part_of(of_batch, shape)


def part_of(whole: NDArray[Any], shape: tuple[int, ...]) -> tuple[NDArray[Any] | None, int]:
    """The numbers of a part of this shape, and by how much they grow from part to part; None where they differ
    otherwise.  Parts lie one behind the other, or their elements stand side by side."""
    axes = [d for d, (n, m) in enumerate(zip(whole.shape, shape, strict=False)) if n != m]
    if len(shape) != whole.ndim or len(axes) != 1 or not shape[axes[0]] or whole.shape[axes[0]] % shape[axes[0]]:
        return None, 0
    lines = np.moveaxis(whole, axes[0], -1)
    n, times = shape[axes[0]], whole.shape[axes[0]] // shape[axes[0]]
    behind = np.swapaxes(lines.reshape(*lines.shape[:-1], times, n), -1, -2)
    for parts in (behind, lines.reshape(*lines.shape[:-1], n, times)):
        first = parts[..., 0]
        if np.array_equal(np.broadcast_to(first[..., None], parts.shape), parts, equal_nan=parts.dtype.kind in "fc"):
            return np.moveaxis(first, -1, axes[0]), 0
    steps = np.diff(behind) if whole.dtype.kind in "iu" else np.empty(0)
    if not steps.size or not bool((steps == steps.flat[0]).all()):
        return None, 0
    return np.moveaxis(behind[..., 0], -1, axes[0]), int(steps.flat[0])


def _are_rows(name: str, part: Graph, whole: Graph) -> bool:
    """Whether all that is made of these whole numbers is looked up along dimensions that the batch is a part of."""
    pending, seen = [name], {name}
    while pending:
        for op, k in part.consumers.get(pending.pop(), ()):
            if k == 1 and op.type in _ALONG | _OF_CLASSES | _OF_SEVERAL:
                if all(_size(whole, op, d) == _size(part, op, d) for d in _looked_up(op, part)):
                    return False
                continue
            for o in op.outputs:
                if o and not part.tensors[o].dtype.startswith(("int", "uint")):
                    return False
                if o and o not in seen:
                    seen.add(o)
                    pending.append(o)
    return True


def _looked_up(op: Op, graph: Graph) -> list[int]:
    """The dimensions of its first operand in which an operator looks places up."""
    if op.type in _OF_CLASSES:
        return [1]
    if op.type in _ALONG:
        return [int(op.attributes.get("axis", 0))]
    first, depth = int(op.attributes.get("batch_dims", 0)), (graph.tensors[op.inputs[1]].shape or (1,))[-1]
    return list(range(first, first + depth))


def _size(graph: Graph, op: Op, d: int) -> int | None:
    shape = graph.tensors[op.inputs[0]].shape
    return None if shape is None else shape[d]
