"""What a rule sees of an operator: shapes, element types, attributes and the values of constant operands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.ir import Graph, Op
from planner.ir.tensor import ITEM_BYTES
from planner.rules.cost import Cost, Kind
from planner.rules.notation import Shape, expand
from planner.rules.rule import MULTIPLIED, Combine, Cut, InnerCollective, Rule

__all__ = ["KeepWholeError", "Operator", "sharded"]


class KeepWholeError(Exception):
    """Raised by a rule that can say of this very operator only that everything stays whole, and why."""


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """An `Op` with what its graph knows of its tensors.  Shapes are None, types empty, for absent ones."""

    op: Op
    inputs: tuple[Shape | None, ...]
    outputs: tuple[Shape | None, ...]
    input_types: tuple[str, ...]
    output_types: tuple[str, ...]
    values: tuple[NDArray[Any] | None, ...]
    parts: tuple[tuple[int, ...], ...] = ()  # by operand: what its dimensions may be split in (`Tensor.parts`)

    @classmethod
    def of(cls, op: Op, graph: Graph) -> Operator:
        ins = [graph.tensors[t] if t else None for t in op.inputs]
        outs = [graph.tensors[t] if t else None for t in op.outputs]
        return cls(
            op,
            tuple(None if t is None else t.shape for t in ins),
            tuple(None if t is None else t.shape for t in outs),
            tuple("" if t is None else t.dtype for t in ins),
            tuple("" if t is None else t.dtype for t in outs),
            tuple(None if t is None else t.value for t in ins),
            tuple(() if t is None else t.parts for t in ins),
        )

    @property
    def type(self) -> str:
        return self.op.type

    @property
    def opset(self) -> int:
        return self.op.opset

    def attribute(self, name: str, default: Any) -> Any:
        return self.op.attributes.get(name, default)

    def has(self, i: int) -> bool:
        """Operand i is given."""
        return i < len(self.inputs) and bool(self.op.inputs[i])

    def yields(self, j: int) -> bool:
        """Result j is asked for."""
        return j < len(self.outputs) and bool(self.op.outputs[j])

    def shape(self, i: int) -> Shape:
        """Shape of operand i.  KeepWholeError where it is absent or unknown."""
        shape = self.inputs[i] if i < len(self.inputs) else None
        if shape is None:
            raise KeepWholeError(f"operand {i} has no known shape")
        return shape

    def result(self, j: int = 0) -> Shape:
        """Shape of result j.  KeepWholeError where it is absent or unknown."""
        shape = self.outputs[j] if j < len(self.outputs) else None
        if shape is None:
            raise KeepWholeError(f"result {j} has no known shape")
        return shape

    def rank(self, i: int) -> int:
        return len(self.shape(i))

    def axis(self, default: int, rank: int | None = None) -> int:
        """The attribute `axis`, counted from the front."""
        rank = self.rank(0) if rank is None else rank
        axis = int(self.attribute("axis", default))
        return axis + rank if axis < 0 else axis

    def value(self, i: int) -> NDArray[Any] | None:
        """Value of operand i, None where it is absent or no known constant."""
        return self.values[i] if i < len(self.values) else None

    def ints(self, i: int, attribute: str) -> tuple[int, ...] | None:
        """Integers that older operator sets state as an attribute and newer ones as operand i.

        None where they are not stated.  KeepWholeError where they are computed at run time.
        """
        if attribute in self.op.attributes:
            found = self.op.attributes[attribute]
            return tuple(int(v) for v in found) if isinstance(found, Iterable) else (int(found),)
        if not self.has(i):
            return None
        value = self.value(i)
        if value is None:
            raise KeepWholeError(f"{attribute} are computed at run time")
        return tuple(int(v) for v in np.ravel(value))

    def is_float(self, i: int) -> bool:
        return _is_float(self.input_types[i]) if self.has(i) else False

    @property
    def makes_float(self) -> bool:
        """All results (those asked for) are floating point."""
        return all(_is_float(t) for t in self.output_types if t)

    def adds_up(self, i: int) -> bool:
        """Operand i may be a pending sum: wide enough a float to add up parts of it."""
        return self.has(i) and _adds_up(self.input_types[i])

    @property
    def makes_sums(self) -> bool:
        """All results (those asked for) may be pending sums."""
        return all(_adds_up(t) for t in self.output_types if t)

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES.get(self.output_types[0], 4)

    @property
    def float_bytes(self) -> int:
        """Bytes of a floating-point value of the first operand, or else of the first result; 0: neither holds any."""
        types = (*self.input_types[:1], *self.output_types[:1])
        return next((ITEM_BYTES.get(t, 4) for t in types if _is_float(t)), 0)


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def _adds_up(dtype: str) -> bool:
    """Not those of eight bits and fewer: rounding each part is another result."""
    return _is_float(dtype) and ITEM_BYTES.get(dtype, 1) > 1


def sharded(
    o: Operator,
    text: str,
    *,
    kind: str = "elementwise",
    sizes: Mapping[str, int] | None = None,
    combine: Mapping[str, Combine] | None = None,
    linear: Iterable[Iterable[int]] = (),
    differentiable: Iterable[int] = (),
    saved: Iterable[int] = (),
    saved_results: Iterable[int] = (),
    whole: Iterable[str] = (),
    flops: float | None = None,
    backward_flops: float | None = None,
    shape_operand: int | None = None,
    inner: Iterable[InnerCollective] = (),
    counts: Mapping[str, tuple[str, ...]] | None = None,
    modes: Mapping[str, tuple[str, ...]] | None = None,
    aware: Iterable[str] = (),
) -> Rule:
    """The rule written as `text` (see `notation`), bound to the shapes of `o`.

    Absent operands and results drop out everywhere, and so do integer operands where gradients or
    pending sums are concerned.  `kind` is a word of `Kind`.  `flops` defaults to one per element of the first result,
    `backward_flops` to `flops` for every differentiable operand that is not merely added, of a product for either of
    its two factors.
    Raises MismatchError where the shapes do not fit.
    """
    e = expand(text, o.inputs, o.outputs, sizes)
    groups = [frozenset(i for i in g if o.has(i)) for g in linear]
    linear_groups = [g for g in groups if g and all(o.adds_up(i) for i in g)] if o.makes_sums else []
    gradients = frozenset(i for i in differentiable if o.is_float(i))
    modes_left = {m: split for m, split in (modes or {}).items() if all(f in e.factors for f in split)}
    inner_left = tuple(
        replace(c, dims=tuple(f for f in c.dims if f in e.factors), width=o.float_bytes)
        for c in inner
        if c.factor in e.factors or c.factor in modes_left
    )
    never, noticed = {*e.whole, *whole}, {*aware, *(c.factor for c in inner_left)}
    ways = {f: (f,) for f in e.factors if f not in never} | modes_left
    if flops is None:
        flops = float(math.prod(o.outputs[0] or ())) if o.outputs and o.outputs[0] is not None else 0.0
    if backward_flops is None:
        backward_flops = flops * len(gradients & MULTIPLIED if Kind(kind).product else gradients - e.additive)
    return Rule(
        factors=e.factors,
        operands=e.operands,
        results=e.results,
        cuts={
            name: Cut(split, (combine or {}).get(name, Combine.SUM), name in noticed) for name, split in ways.items()
        },
        additive=e.additive,
        linear=tuple(dict.fromkeys(linear_groups)),
        differentiable=gradients,
        saved_operands=frozenset(i for i in saved if o.has(i)),
        saved_results=frozenset(j for j in saved_results if o.yields(j)),
        cost=Cost(Kind(kind), flops, backward_flops),
        shape_operand=shape_operand,
        inner=inner_left,
        text=text,
        counts=dict(counts or {}),
    )
