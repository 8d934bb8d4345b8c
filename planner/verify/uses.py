"""How tensors are read: as indices below a size, as masks, as weights of a product, as divisors.

A use travels from an operator's result to its operands wherever the operator hands elements through.  Families register
how operators of theirs read (`planner.plugins`):

    @reads("Gather")
    def _look_up(r: Reading) -> Uses:
        return {0: r.moved(0, rows=False), 1: Use(below=(r.shape(0)[r.attr("axis", 0)],))}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from planner.ir import Graph, Op
from planner.plugins import load_operators

__all__ = ["Reading", "Use", "Uses", "hands_on", "reads", "uses"]


@dataclass(frozen=True, slots=True)
class Use:
    """What every reader of a tensor asks of its values.

    below      indices: exclusive bounds, one, or one per component of the last dimension
    loose      whether other values may do as well: the index is computed from them, or only some of them are read
    mask       a condition: the value that most elements should have, so that no row is masked throughout
    fan_in     weight of a product: number of terms that are added up
    terms      its dimensions that these run over, where they are known
    near_one   a scale or divisor
    positive   a variance, a radicand, the operand of a logarithm
    shift      a bias or mean
    """

    below: tuple[int, ...] | None = None
    mask: bool | None = None
    fan_in: int = 0
    terms: tuple[int, ...] = ()
    near_one: bool = False
    positive: bool = False
    shift: bool = False
    loose: bool = False

    def __or__(self, other: Use) -> Use:
        """Both uses at once: the tighter bounds, the larger sum."""
        return Use(
            _tighter(self.below, other.below),
            other.mask if self.mask is None else self.mask,
            max(self.fan_in, other.fan_in),
            self.terms if other.terms in ((), self.terms) else () if self.terms else other.terms,
            self.near_one or other.near_one,
            self.positive or other.positive,
            self.shift or other.shift,
            any(use.loose and use.below is not None for use in (self, other)),
        )

    @property
    def flat(self) -> Use:
        """That of elements which may come from any component of the last dimension."""
        return self if self.below is None else dataclasses.replace(self, below=(min(self.below),))


def _tighter(a: tuple[int, ...] | None, b: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if a is None or b is None:
        return b if a is None else a
    if len(a) == len(b):
        return tuple(map(min, a, b))
    return (min(*a, *b),)


@dataclass(frozen=True, slots=True)
class Reading:
    """One operator, the shapes of its operands, and the use made of its results."""

    graph: Graph
    op: Op
    result: Use

    def shape(self, index: int) -> tuple[int, ...]:
        """That of an operand; without dimensions where it is absent or its shape is not known."""
        name = self.op.inputs[index] if index < len(self.op.inputs) else ""
        return (self.graph.tensors[name].shape or ()) if name else ()

    def value(self, index: int) -> np.ndarray | None:
        """That of an operand, where it is fixed."""
        name = self.op.inputs[index] if index < len(self.op.inputs) else ""
        return self.graph.tensors[name].value if name else None

    @property
    def result_shape(self) -> tuple[int, ...]:
        """That of the first result."""
        return self.graph.tensors[self.op.outputs[0]].shape or ()

    def attr(self, name: str, default: int) -> int:
        """An integer attribute."""
        return int(self.op.attributes.get(name, default))

    def moved(self, operand: int = 0, *, rows: bool = True, terms: tuple[int, ...] = ()) -> Use:
        """The use of an operand whose elements the result holds: that of the result.

        `rows`: the last dimension is moved as a whole, if it is as long as before; `terms` are the dimensions of the
        operand that the terms of a product run over."""
        same = rows and self.shape(operand)[-1:] == self.result_shape[-1:]
        return dataclasses.replace(self.result if same else self.result.flat, terms=terms)

    def loosely(self, operand: int = 0) -> Use:
        """As `moved`, of what is changed on the way."""
        return dataclasses.replace(self.moved(operand), loose=True)


Uses = dict[int, Use]  # operand → use
Reader = Callable[[Reading], Uses]
_READERS: dict[str, Reader] = {}


def reads(*types: str) -> Callable[[Reader], Reader]:
    """Register how operators of these types, with their domain where it is not ONNX's own, read their operands.
    ValueError for a type that is registered already."""

    def register(function: Reader) -> Reader:
        for t in types:
            if t in _READERS:
                raise ValueError(f"how {t} reads its operands is said twice; keep one")
            _READERS[t] = function
        return function

    return register


def hands_on(*types: str) -> None:
    """Register types whose result holds elements of the first operand, and which ask nothing else."""
    reads(*types)(lambda r: {0: r.moved()})


def uses(graph: Graph) -> Mapping[str, Use]:
    """Tensor name → its use, where any operator asks for something."""
    load_operators("values")
    found: dict[str, Use] = {}
    nothing = Use()
    for op in reversed(graph.ops):
        reader = _READERS.get(op.type)
        if reader is None:
            continue
        result = nothing
        for t in op.outputs:
            result = result | found.get(t, nothing)
        for i, use in reader(Reading(graph, op, result)).items():
            if i < len(op.inputs) and op.inputs[i] and use != nothing:
                found[op.inputs[i]] = found.get(op.inputs[i], nothing) | use
    return found
