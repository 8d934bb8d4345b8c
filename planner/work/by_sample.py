"""Where a step makes of one sample something that depends on others: what its micro-batches compute otherwise.

The rules of operators say it: samples are by themselves where the dimension of the batch may be split, and no rank
then needs to know anything of the others' parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from planner.ir import Graph, Op, Role
from planner.rules.bound import bind_rules
from planner.rules.rule import Combine, Dims, Rule

__all__ = ["Meeting", "both_graphs", "meetings"]

_LOOKED_UP: Final = frozenset({"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"})
_CHOSEN: Final = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Split"})  # by their places
_LOSSES: Final = frozenset(
    {"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", "com.microsoft::SoftmaxCrossEntropyLossInternal"}
)
_SCATTERED: Final = frozenset({"ScatterElements", "ScatterND"})
_DRAWN: Final = frozenset(
    {
        "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
        "com.microsoft::BiasDropout",
    }
)  # fmt: skip
# Whole numbers that count on from sample to sample still do behind these.
_COUNT_ON: Final = frozenset(
    {
        "Add",
        "Cast",
        "Concat",
        "Expand",
        "Identity",
        "Mul",
        "Reshape",
        "Squeeze",
        "Sub",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)


@dataclass(frozen=True, slots=True)
class Meeting:
    """At an operator, of whose result `tensor` the micro-batches have something else than the whole batch.

    samples   what is made of one sample depends on others, or on its place in the batch
    rows      of a tensor that is the same for any batch, as many rows are taken as there are samples
    """

    op: Op
    tensor: str
    kind: Literal["samples", "rows"]


def meetings(
    part: Graph, whole: Graph, counted: Collection[str] = (), apart: Collection[str] = ()
) -> Iterator[Meeting]:
    """In the order of the graph; what is computed of the result of one is not looked at.

    part     the graph of a micro-batch
    whole    the same graph of two or more of them
    counted  constants of whole numbers that count on from micro-batch to micro-batch, as the rows of the batch do
    apart    operators where samples may meet: what they make of a sample is taken to be its own

    Where it cannot be known, nothing is yielded: behind operators that have no rule, and shapes that depend on data.
    """
    walk = _Walk(part, whole, counted, apart)
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
    def __init__(self, part: Graph, whole: Graph, counted: Collection[str], apart: Collection[str]) -> None:
        self.part, self.whole, self.apart = part, whole, apart
        self.rules, _ = bind_rules(whole)
        self.counted = set(counted)
        self.kinds: dict[str, _Kind] = {}

    def pass_through(self, op: Op, own: Op) -> Iterator[Meeting]:
        read = [self._larger(n, m) if n else () for n, m in zip(op.inputs, own.inputs, strict=False)]
        made = [self._larger(n, m) if n else () for n, m in zip(op.outputs, own.outputs, strict=False)]
        given = [self._kind(n, larger) if n else "still" for n, larger in zip(op.inputs, read, strict=False)]
        if self._counts_on(op):
            self.counted |= {n for n in op.outputs if n and self.whole.tensors[n].dtype.startswith(("int", "uint"))}
        if any(d and self.whole.tensors[n].role is Role.PARAMETER for n, d in zip(op.inputs, read, strict=False)):
            found: Sequence[_Kind | Meeting] = [Meeting(op, n, "rows") for n in op.outputs]
        elif "unknown" in given or None in read or None in made:
            found = ["unknown"] * len(made)
        elif not any(made) and not any(isinstance(k, _Samples) for k in given):
            found = ["total" if "total" in given else "still"] * len(made)
        else:
            found = self._found(op, given, [r or () for r in read], [m or () for m in made])
        for name, kind in zip(op.outputs, found, strict=False):
            if name and isinstance(kind, Meeting):
                self.kinds[name] = given[0] if op.name in self.apart else "unknown"
                if op.name not in self.apart:
                    yield kind
            elif name and not isinstance(kind, Meeting):
                self.kinds[name] = kind

    def _counts_on(self, op: Op) -> bool:
        """Whether whole numbers that count on from sample to sample lead to others that do."""
        if op.type == "Where":  # which makes places of those that are counted from the end
            return all(n in self.counted for n in op.inputs[1:])
        return op.type in _COUNT_ON and not self.counted.isdisjoint(op.inputs)

    def _found(
        self, op: Op, given: list[_Kind], read: list[tuple[int, ...]], made: list[tuple[int, ...]]
    ) -> list[_Kind | Meeting]:
        rule = self.rules[op.name]
        if rule.is_whole:
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
        return _Samples(larger[0], alike=self._all_alike(name, larger[0])) if larger else "still"

    def _all_alike(self, name: str, dim: int) -> bool:
        """Whether the samples of a constant are equal."""
        value = self.whole.tensors[name].value if self.whole.tensors[name].role is Role.CONSTANT else None
        return value is not None and bool((value == value.take([0], axis=dim)).all())

    def _result(self, node: _Node, k: int, name: str) -> _Kind | Meeting:
        op, rule, first = node.op, node.rule, node.given[0]
        meeting = Meeting(op, name, "samples")
        if "total" in node.given:
            return meeting
        if not any(isinstance(g, _Samples) for g in node.given):
            return _of_still(node, k, name)
        if op.type == "Concat" and (times := self._times(node)):
            return _Samples(node.made[k][0], times, node.alike)
        if op.type == "Split" and isinstance(first, _Samples) and 1 < first.outer == len(op.outputs):
            return _Samples(first.dim, alike=first.alike) if self._are_copies(node, first) else meeting
        if (
            op.type == "Slice"
            and isinstance(first, _Samples)
            and self._size(op.inputs[0], first) != self._size(name, first)
        ):
            return meeting
        if (
            op.type in _LOOKED_UP
            and len(node.made[k]) == 1
            and isinstance(first, _Samples)
            and _are_rows(node, first, k)
        ):
            # Those of the sample itself, if their numbers count on with it.
            return meeting if self.counted.isdisjoint(op.inputs[1:2]) else _Samples(node.made[k][0])
        if op.type in _SCATTERED and isinstance(first, _Samples) and not self.counted.isdisjoint(op.inputs[1:2]):
            return _Samples(first.dim, first.outer)
        if any(dims is not None and isinstance(g, _Samples) and not dims[g.dim] for g, dims in _with_dims(node)):
            return meeting  # samples that no rank may have some of
        if len(node.factors) != 1:
            return "total" if not node.made[k] else meeting if _read_others(node, k) else "unknown"
        (factor,) = node.factors
        outer = _outer(node, factor)
        if outer is None:
            return meeting
        dims = rule.results[k] or ()
        place = next((d for d, factors in enumerate(dims) if factor in factors), None)
        if place is None:
            return _of_all(node, factor, meeting)
        cut = rule.cuts.get(factor)
        if op.type not in _LOSSES | _DRAWN and (cut is None or cut.aware or node.exchanges(factor)):
            return meeting
        return _Samples(place, outer * _before(rule, dims[place], factor), node.alike and op.type not in _DRAWN)

    def _times(self, node: _Node) -> int:
        """How many times all samples lie behind each other; 0 where something else does."""
        axis = int(node.op.attributes["axis"]) % len(self.whole.tensors[node.op.inputs[0]].shape or (0,))
        joined = [g for g in node.given if isinstance(g, _Samples) and g.dim == axis]
        each = {self._size(n, g) / g.outer for n, g in zip(node.op.inputs, joined, strict=False)}
        return sum(g.outer for g in joined) if len(joined) == len(node.given) and len(each) == 1 else 0

    def _are_copies(self, node: _Node, first: _Samples) -> bool:
        """Whether equal pieces of a dimension are all samples each."""
        axis = int(node.op.attributes.get("axis", 0)) % len(self.whole.tensors[node.op.inputs[0]].shape or (0,))
        return axis == first.dim and len({self.whole.tensors[n].shape for n in node.op.outputs}) == 1

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
        for kind, dims in _with_dims(node)
        if isinstance(kind, _Samples) and not kind.alike and dims is not None
    )
    return any(factors and factors.isdisjoint(left) for factors in read)


def _of_all(node: _Node, factor: str, meeting: Meeting) -> _Kind | Meeting:
    """Of what has no dimension of the batch."""
    if node.op.type in _CHOSEN:
        return "still" if node.alike else meeting
    if node.op.type in _LOSSES and not any(factor in factors for factors in node.rule.operands[1] or ()):
        return meeting  # samples are classes
    combine = node.rule.combine(factor)
    if not node.exchanges(factor) and (combine is Combine.INNER or (node.alike and combine is not Combine.SUM)):
        return "still"
    return "total"


def _outer(node: _Node, factor: str) -> int | None:
    """How much of a dimension lies before the samples, beside what the rule names itself; None where the factor is not
    that of the samples, or where operands have them in other orders."""
    found: set[int] = set()
    for kind, dims in _with_dims(node):
        if not isinstance(kind, _Samples) or dims is None:
            continue
        factors = dims[kind.dim]
        before = _before(node.rule, factors, factor) if factor in factors else 0
        if not before or kind.outer % before or (len(factors) > 1 and kind.outer != before):
            return None
        if node.alike or not kind.alike:  # what is equal lies in any order
            found.add(kind.outer // before)
    return found.pop() if len(found) == 1 else None


def _with_dims(node: _Node) -> Iterator[tuple[_Kind, Dims | None]]:
    return zip(node.given, node.rule.operands, strict=False)


def _before(rule: Rule, factors: tuple[str, ...], factor: str) -> int:
    """The size of what lies before a factor in its dimension."""
    size = 1
    for f in factors[: factors.index(factor)]:
        size *= rule.factors[f]
    return size
