"""Known numbers of a step that differ from sample to sample, which no micro-batch can have for those of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.ir import Graph, Op, Role
from planner.work.by_sample import both_graphs

Known = Callable[[str], NDArray[Any] | None]  # the numbers of a constant, None where nobody knows them

__all__ = ["Known", "constants_of_samples", "counted_on", "part_of"]

_ALONG: Final = frozenset({"Gather", "GatherElements", "ScatterElements"})
_OF_CLASSES: Final = frozenset({"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})  # along their scores' second
_OF_SEVERAL: Final = frozenset({"GatherND", "ScatterND"})


def constants_of_samples(part: Graph, whole: Graph, known: Known) -> Iterator[str]:
    """Constants of the `whole` batch that have other numbers for each `part` of it, such as weights of samples; `known`
    gives the numbers of a constant of the whole batch.

    Whole numbers that count on from part to part are the same numbers within each where they are rows of the batch: of
    what is looked up along dimensions that the batch is a part of.
    """
    for name, own, found, steps in _larger(part, whole, known):
        value = part.tensors[own].value
        alike = found is not None and (value is None or np.array_equal(value, found))
        if not alike or (any(steps) and not _are_rows(own, steps, part, whole)):
            yield name


def counted_on(part: Graph, whole: Graph, known: Known) -> frozenset[str]:
    """Constants of whole numbers that count on from each `part` of the `whole` batch to the next."""
    return frozenset(name for name, _, _, steps in _larger(part, whole, known) if any(steps))


def _larger(part: Graph, whole: Graph, known: Known) -> Iterator[tuple[str, str, NDArray[Any] | None, tuple[int, ...]]]:
    """Constants that are larger in the whole batch, with their names in the part, and what `part_of` finds of them."""
    both = {n: n for n in part.tensors if n in whole.tensors}  # and what operators read under another name
    for op, counterpart in both_graphs(part, whole):
        both |= dict(zip(counterpart.inputs, op.inputs, strict=False))
    for own, name in both.items():
        shape = part.tensors[own].shape if own else None
        if shape is None or part.tensors[own].role is not Role.CONSTANT or whole.tensors[name].shape == shape:
            continue
        of_batch = known(name)
        if of_batch is not None:
            yield name, own, *part_of(of_batch, shape)


def part_of(whole: NDArray[Any], shape: tuple[int, ...]) -> tuple[NDArray[Any] | None, tuple[int, ...]]:
    """The numbers of a part of this shape, and by how much they grow from part to part: all of them, or those of each
    place in the last dimension; None where they differ otherwise.  Parts lie one behind the other, or their elements
    stand side by side."""
    axes = [d for d, (n, m) in enumerate(zip(whole.shape, shape, strict=False)) if n != m]
    if len(shape) != whole.ndim or len(axes) != 1 or not shape[axes[0]] or whole.shape[axes[0]] % shape[axes[0]]:
        return None, ()
    lines = np.moveaxis(whole, axes[0], -1)
    n, times = shape[axes[0]], whole.shape[axes[0]] // shape[axes[0]]
    behind = np.swapaxes(lines.reshape(*lines.shape[:-1], times, n), -1, -2)
    for parts in (behind, lines.reshape(*lines.shape[:-1], n, times)):
        first = parts[..., 0]
        if np.array_equal(np.broadcast_to(first[..., None], parts.shape), parts, equal_nan=parts.dtype.kind in "fc"):
            return np.moveaxis(first, -1, axes[0]), ()
    steps = np.diff(behind) if whole.dtype.kind in "iu" else np.empty(0)
    if not steps.size:
        return None, ()
    columns = steps.reshape(1, -1)
    if axes[0] < whole.ndim - 1 and not bool((columns == columns[:, :1]).all()):
        columns = np.moveaxis(steps, -3, 0).reshape(whole.shape[-1], -1)
    if not bool((columns == columns[:, :1]).all()):
        return None, ()
    return np.moveaxis(behind[..., 0], -1, axes[0]), tuple(map(int, columns[:, 0]))


def _are_rows(name: str, steps: tuple[int, ...], part: Graph, whole: Graph) -> bool:
    """Whether all that is made of these whole numbers is looked up along dimensions that the batch is a part of."""
    pending, seen = [name], {name}
    while pending:
        read = pending.pop()
        for op, k in part.consumers.get(read, ()):
            if k == 1 and op.type in _ALONG | _OF_CLASSES | _OF_SEVERAL:
                fixed = [_size(whole, op, d) == _size(part, op, d) for d in _looked_up(op, part)]
                if read != name:  # but made of it: one of several dimensions may be that of the batch
                    if all(fixed) or len(steps) > 1:
                        return False
                    continue
                each = steps * len(fixed) if len(steps) == 1 else steps
                if len(each) != len(fixed) or any(f == bool(s) for f, s in zip(fixed, each, strict=True)):
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
