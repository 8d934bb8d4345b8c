"""Where a step makes of one sample something that depends on others: what its micro-batches compute otherwise.

The rules of operators say it: samples are by themselves where the dimension of the batch may be split, and no rank
then needs to know anything of the others' parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from planner.ir import Graph, Op, Role
from planner.rules.registry import rule_for
from planner.rules.rule import Combine, Dims, Rule

__all__ = ["Meeting", "both_graphs", "meetings"]

_LOOKED_UP: Final = frozenset({"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"})
_CHOSEN: Final = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Split"})  # by their places
_LOSSES: Final = frozenset({"SoftmaxCrossEntropyLoss", "com.microsoft::SoftmaxCrossEntropyLossInternal"})
_DRAWN: Final = frozenset({"Bernoulli", "Dropout", "Multinomial", "RandomNormalLike", "RandomUniformLike"})


@dataclass(frozen=True, slots=True)
class Meeting:
    """At an operator, of whose result `tensor` the micro-batches have something else than the whole batch.

    samples   what is made of one sample depends on others, or on its place in the batch
    rows      of a tensor that is the same for any batch, as many rows are taken as there are samples
    """

    op: Op
    tensor: str
    kind: Literal["samples", "rows"]


def meetings(part: Graph, whole: Graph, counted: Collection[str] = ()) -> Iterator[Meeting]:
    """In the order of the graph; what is computed of the result of one is not looked at.

    part     the graph of a micro-batch
    whole    the same graph of two or more of them
    counted  constants of whole numbers that count on from micro-batch to micro-batch, as the rows of the batch do

    Where it cannot be known, nothing is yielded: behind operators that have no rule, and shapes that depend on data.
    """
    walk = _Walk(part, whole, counted)
    for op, own in both_graphs(part, whole):
        yield from walk.pass_through(op, own)


def both_graphs(part: Graph, whole: Graph) -> Iterator[tuple[Op, Op]]:
    """The operators of the whole batch, each with that of a part.  These may read a constant under another name, which
    was rewritten for one of its readers."""
    own = {op.name: op for op in part.ops}
    return ((op, own[op.name]) for op in whole.ops if op.name in own)


@dataclass(frozen=True, slots=True)
class _Samples:
    """A tensor with a dimension that consists of samples, each by itself: outer x samples x others, in this order.

    `alike`: they are equal, however many there are.
    """

    dim: int
    outer: int = 1
    alike: bool = False


# Of a tensor: made of samples, the same for any batch, or made of all samples of a batch together.
_Kind = _Samples | Literal["still", "total", "unknown"]


@dataclass(frozen=True, slots=True)
class _Node:
    """An operator of the whole batch; per operand and per result the dimensions that are larger there than in a part
    (none where that is not known), and what operands are."""

    op: Op
    rule: Rule
    given: Sequence[_Kind]
    read: Sequence[tuple[int, ...]]
    made: Sequence[tuple[int, ...]]

    @property
    def alike(self) -> bool:
        return all(k.alike for k in self.given if isinstance(k, _Samples))

    @property
    def factors(self) -> frozenset[str]:
        """Those that are larger for a larger batch."""
        found: set[str] = set()
        merged: list[tuple[str, ...]] = []
        for larger, all_dims in ((self.read, self.rule.operands), (self.made, self.rule.results)):
            for places, dims in zip(larger, all_dims, strict=False):
                held = [] if dims is None else [dims[d] for d in places]
                found.update(factors[0] for factors in held if len(factors) == 1)
                merged += [factors for factors in held if len(factors) != 1]
        for dim in merged:  # of one that stands in no other dimension, the samples lie outermost
            if found.isdisjoint(dim):
                found.update([f for f in dim if self.rule.factors[f] > 1][:1])
        return frozenset(found)

    def exchanges(self, factor: str) -> bool:
        return any(i.factor == factor and not i.backward for i in self.rule.inner)


class _Walk:
    def __init__(self, part: Graph, whole: Graph, counted: Collection[str]) -> None:
        self.part, self.whole = part, whole
        self.counted = set(counted)
        self.kinds: dict[str, _Kind] = {}

    def pass_through(self, op: Op, own: Op) -> Iterator[Meeting]:
        read = [self._larger(n, m) if n else () for n, m in zip(op.inputs, own.inputs, strict=False)]
        made = [self._larger(n, m) if n else () for n, m in zip(op.outputs, own.outputs, strict=False)]
        given = [self._kind(n, larger) if n else "still" for n, larger in zip(op.inputs, read, strict=False)]
        if not self.counted.isdisjoint(op.inputs):
            self.counted |= {n for n in op.outputs if n and self.whole.tensors[n].dtype.startswith(("int", "uint"))}
        if "unknown" in given or None in read or None in made:
            found: Sequence[_Kind | Meeting] = ["unknown"] * len(made)
        elif not any(made) and not any(isinstance(k, _Samples) for k in given):
            found = ["total" if "total" in given else "still"] * len(made)
        else:
            found = self._found(op, given, [r or () for r in read], [m or () for m in made])
        for name, kind in zip(op.outputs, found, strict=False):
            if name:
                self.kinds[name] = "unknown" if isinstance(kind, Meeting) else kind
                if isinstance(kind, Meeting):
                    yield kind

    def _found(
        self, op: Op, given: list[_Kind], read: list[tuple[int, ...]], made: list[tuple[int, ...]]
    ) -> list[_Kind | Meeting]:
        rule = rule_for(op, self.whole)
        if rule is None or rule.is_whole:
            return ["unknown"] * len(made)
        node = _Node(op, rule, given, read, made)
        return [self._result(node, k, n) if n else "unknown" for k, n in enumerate(op.outputs)]

    def _larger(self, name: str, own: str) -> tuple[int, ...] | None:
        """The dimensions that are larger in the whole batch; None where that is not known."""
        of_batch, of_part = self.whole.tensors[name].shape, self.part.tensors[own].shape
        if of_batch is None or of_part is None or len(of_batch) != len(of_part):
            return None
        return tuple(d for d, (a, b) in enumerate(zip(of_part, of_batch, strict=True)) if a != b)

    def _kind(self, name: str, larger: tuple[int, ...] | None) -> _Kind:
        if name in self.whole.producers:
            return self.kinds.get(name, "unknown")
        if larger is None or len(larger) > 1:
            return "unknown"
        alike = self.whole.tensors[name].role is Role.CONSTANT and name not in self.counted
        return _Samples(larger[0], alike=alike) if larger else "still"

    def _result(self, node: _Node, k: int, name: str) -> _Kind | Meeting:
        op, rule, first = node.op, node.rule, node.given[0]
        meeting = Meeting(op, name, "samples")
        otherwise: _Kind | Meeting = "unknown" if node.alike else meeting
        if "total" in node.given:
            return meeting
        if not any(isinstance(g, _Samples) for g in node.given):
            return _of_still(node, k, name)
        if op.type == "Concat" and self._lie_behind(node):
            return _Samples(node.made[k][0], len(op.inputs), node.alike)
        if (
            op.type == "Slice"
            and isinstance(first, _Samples)
            and self._size(op.inputs[0], first) != self._size(name, first)
        ):
            return otherwise
        if (
            op.type in _LOOKED_UP
            and len(node.made[k]) == 1
            and isinstance(first, _Samples)
            and _are_rows(node, first, k)
        ):
            # Those of the sample itself, if their numbers count on with it.
            return otherwise if self.counted.isdisjoint(op.inputs[1:2]) else _Samples(node.made[k][0])
        if len(node.factors) != 1:
            return meeting if _read_others(node, k) else "unknown"
        (factor,) = node.factors
        outer = _outer(node, factor)
        if outer is None:
            return otherwise
        dims = rule.results[k] or ()
        place = next((d for d, factors in enumerate(dims) if factor in factors), None)
        if place is None:
            return _of_all(node, factor, meeting)
        if factor not in rule.cuts or (node.exchanges(factor) and op.type not in _LOSSES):
            return otherwise
        return _Samples(place, outer * _before(rule, dims[place], factor), node.alike and op.type not in _DRAWN)

    def _lie_behind(self, node: _Node) -> bool:
        """Whether as many samples as there are lie behind each other, several times."""
        (axis,) = next((m for m in node.made if len(m) == 1), (-1,))
        same = len({self.whole.tensors[n].shape for n in node.op.inputs}) == 1
        joined = int(node.op.attributes["axis"]) % len(self.whole.tensors[node.op.inputs[0]].shape or (0,))
        at = (isinstance(g, _Samples) and (g.dim, g.outer) == (axis, 1) for g in node.given)
        return same and axis == joined and all(at)

    def _size(self, name: str, samples: _Samples) -> int:
        return (self.whole.tensors[name].shape or ())[samples.dim]


def _of_still(node: _Node, k: int, name: str) -> _Kind | Meeting:
    """Of what is larger for a larger batch, and made of what is not: it is repeated, or taken of that."""
    dims: Dims | None = node.rule.results[k]
    if node.op.type in ("Slice", "Split"):
        return Meeting(node.op, name, "rows")
    if dims is None or len(node.made[k]) != 1:
        return "unknown"
    held = {f for operand in node.rule.operands for factors in operand or () for f in factors}
    larger = dims[node.made[k][0]]
    if len(larger) != 1 or larger[0] in held:
        return "unknown"
    return _Samples(node.made[k][0], alike=node.op.type not in _DRAWN)


def _are_rows(node: _Node, first: _Samples, k: int) -> bool:
    """Whether what is looked up are samples, and not places in each."""
    dims, left = node.rule.operands[0], {f for factors in node.rule.results[k] or () for f in factors}
    return dims is not None and left.isdisjoint(dims[first.dim])


def _read_others(node: _Node, k: int) -> bool:
    """Whether samples of a result are made of all samples of an operand, or of two of them."""
    if len(node.made[k]) != 1:
        return len(node.made[k]) > 1 and not node.alike
    left = {f for factors in node.rule.results[k] or () for f in factors}
    read = (
        set(dims[kind.dim])
        for kind, dims in zip(node.given, node.rule.operands, strict=False)
        if isinstance(kind, _Samples) and not kind.alike and dims is not None
    )
    return any(factors and factors.isdisjoint(left) for factors in read)


def _of_all(node: _Node, factor: str, meeting: Meeting) -> _Kind | Meeting:
    """Of what has no dimension of the batch."""
    if node.op.type in _CHOSEN:
        return "still" if node.alike else meeting
    combine = node.rule.combine(factor)
    if not node.exchanges(factor) and (combine is Combine.INNER or (node.alike and combine is not Combine.SUM)):
        return "still"
    return "total"


def _outer(node: _Node, factor: str) -> int | None:
    """How much of a dimension lies before the samples, beside what the rule names itself; None where the factor is not
    that of the samples."""
    outer = 1
    for kind, dims in zip(node.given, node.rule.operands, strict=False):
        if not isinstance(kind, _Samples) or dims is None:
            continue
        factors = dims[kind.dim]
        before = _before(node.rule, factors, factor) if factor in factors else 0
        if not before or kind.outer % before or (len(factors) > 1 and kind.outer != before):
            return None
        outer = kind.outer // before
    return outer


def _before(rule: Rule, factors: tuple[str, ...], factor: str) -> int:
    """The size of what lies before a factor in its dimension."""
    size = 1
    for f in factors[: factors.index(factor)]:
        size *= rule.factors[f]
    return size
