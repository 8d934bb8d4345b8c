"""How tensors are read: as indices below a size, as masks, as weights of a product, as divisors.

A use travels from an operator's result to its operands wherever the operator hands elements through.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from planner.ir import Graph, Op
from planner.kernels.attributes import normalise_axis, string

__all__ = ["Use", "uses"]


@dataclass(frozen=True, slots=True)
class Use:
    """What every reader of a tensor asks of its values.

    below      indices: exclusive bounds, one, or one per component of the last dimension
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
        )


def _tighter(a: tuple[int, ...] | None, b: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if a is None or b is None:
        return b if a is None else a
    if len(a) == len(b):
        return tuple(map(min, a, b))
    return (min(*a, *b),)


@dataclass(frozen=True, slots=True)
class _Reading:
    """One operator, the shapes of its operands, and the use made of its first result."""

    graph: Graph
    op: Op
    result: Use

    def shape(self, index: int) -> tuple[int, ...]:
        name = self.op.inputs[index] if index < len(self.op.inputs) else ""
        return (self.graph.tensors[name].shape or ()) if name else ()

    def value(self, index: int) -> np.ndarray | None:
        name = self.op.inputs[index] if index < len(self.op.inputs) else ""
        return self.graph.tensors[name].value if name else None

    @property
    def result_shape(self) -> tuple[int, ...]:
        return self.graph.tensors[self.op.outputs[0]].shape or ()

    def attr(self, name: str, default: int) -> int:
        return int(self.op.attributes.get(name, default))


Uses = dict[int, Use]  # operand → use
_READERS: dict[str, Callable[[_Reading], Uses]] = {}


def _reader(*types: str) -> Callable[[Callable[[_Reading], Uses]], Callable[[_Reading], Uses]]:
    def add(function: Callable[[_Reading], Uses]) -> Callable[[_Reading], Uses]:
        _READERS.update(dict.fromkeys(types, function))
        return function

    return add


def uses(graph: Graph) -> Mapping[str, Use]:
    """Tensor name → its use, where any operator asks for something."""
    found: dict[str, Use] = {}
    nothing = Use()
    for op in reversed(graph.ops):
        reader = _READERS.get(op.type)
        if reader is None:
            continue
        result = nothing
        for t in op.outputs:
            result = result | found.get(t, nothing)
        for i, use in reader(_Reading(graph, op, result)).items():
            if i < len(op.inputs) and op.inputs[i] and use != nothing:
                found[op.inputs[i]] = found.get(op.inputs[i], nothing) | use
    return found


def _flat(use: Use) -> Use:
    """The use of elements that may come from any component of the last dimension."""
    return use if use.below is None else dataclasses.replace(use, below=(min(use.below),))


@_reader(
    "Abs", "Cast", "CastLike", "Clip", "Identity", "Relu", "Pad", "Slice", "Expand", "Tile", "Split", "Dropout",
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "GatherElements", "Trilu", "TopK", "Where", "Max", "Min",
    "Add", "Sub", "Sum", "CumSum", "ReduceMax", "ReduceMin", "DequantizeLinear", "Gather", "GatherND", "Concat",
    "ScatterND", "ScatterElements",
)  # fmt: skip
def _movement(r: _Reading) -> Uses:
    """Operators whose results hold elements of their operands, or small sums of them."""
    kind = r.op.type
    use = r.result
    last = r.result_shape[-1:]
    out: Uses = {}
    for i in _carried(r.op):
        mine = use
        if use.below is not None:
            if kind == "Concat" and last == (len(use.below),) and r.attr("axis", 0) in (-1, len(r.result_shape) - 1):
                first = sum((r.shape(j) or (1,))[-1] for j in range(i))
                mine = dataclasses.replace(use, below=use.below[first : first + (r.shape(i) or (1,))[-1]])
            elif kind in ("Slice", "Gather", "GatherND", "GatherElements", "Transpose", "Split"):
                mine = _flat(use)
            if r.shape(i)[-1:] != last and kind != "Concat":
                mine = _flat(mine)
            if kind in ("Add", "Sum") and mine.below is not None:
                mine = dataclasses.replace(mine, below=tuple(_share(r, i, b) for b in mine.below))
            if kind == "CumSum" and mine.below is not None:
                length = max(1, math.prod(r.result_shape))
                mine = dataclasses.replace(mine, below=tuple(max(1, b // length) for b in mine.below))
        if mine.terms and kind not in ("Cast", "CastLike", "Identity"):
            mine = dataclasses.replace(mine, terms=_turned(r, mine.terms))
        if kind in ("Add", "Sub", "Sum"):
            # The terms of a sum are no weights or divisors by themselves.
            mine = Use(below=mine.below, mask=mine.mask)
        out[i] = mine
    for i, use_of_indices in _index_operands(r).items():
        out[i] = out.get(i, Use()) | use_of_indices
    return out


def _turned(r: _Reading, terms: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions of the operand that those of the result are."""
    if r.op.type != "Transpose":
        return ()
    perm = r.op.attributes.get("perm") or tuple(reversed(range(len(r.result_shape))))
    return tuple(perm[d] for d in terms)


def _share(r: _Reading, index: int, bound: int) -> int:
    """Largest bound of one term of a sum that must stay below `bound`."""
    others = [j for j in range(len(r.op.inputs)) if j != index]
    known = [v for j in others if (v := r.value(j)) is not None]
    rest = sum(int(np.max(v, initial=0)) for v in known)
    return max(1, (bound - 1 - rest) // (len(others) - len(known) + 1) + 1)


def _carried(op: Op) -> tuple[int, ...]:
    """Operands whose elements the result holds."""
    if op.type in ("Max", "Min", "Add", "Sub", "Sum", "Concat"):
        return tuple(range(len(op.inputs)))
    if op.type == "Where":
        return (1, 2)
    if op.type in ("ScatterND", "ScatterElements"):
        return (0, 2)
    return (0,)


@_reader("Mul")
def _mul(r: _Reading) -> Uses:
    """An index masked by ones keeps its bound; a parameter that multiplies whole rows is a scale."""
    out: Uses = {}
    for i in range(len(r.op.inputs)):
        scale = len(r.shape(i)) <= 1 or math.prod(r.shape(i)) * 2 <= math.prod(r.result_shape)
        out[i] = Use(below=_flat(r.result).below, near_one=scale)
    return out


def _index_operands(r: _Reading) -> Uses:
    kind, data = r.op.type, r.shape(0)
    if kind == "Gather":
        return {1: Use(below=(data[normalise_axis(r.attr("axis", 0), len(data))],))} if data else {}
    if kind in ("GatherElements", "ScatterElements"):
        return {1: Use(below=(data[normalise_axis(r.attr("axis", 0), len(data))],))} if data else {}
    if kind in ("GatherND", "ScatterND"):
        batch = r.attr("batch_dims", 0) if kind == "GatherND" else 0
        depth = (r.shape(1) or (0,))[-1]
        return {1: Use(below=data[batch : batch + depth])} if depth else {}
    if kind == "Where":
        return {0: Use(mask=_keeps(r))}
    return {}


def _keeps(r: _Reading) -> bool:
    """What most of a condition should be: the side that is not a masking value."""
    low = r.value(1)
    return not (low is not None and low.dtype.kind == "f" and low.size and float(np.max(low)) < -100)


@_reader("Not")
def _not(r: _Reading) -> Uses:
    return {} if r.result.mask is None else {0: Use(mask=not r.result.mask)}


@_reader("And", "Or")
def _and(r: _Reading) -> Uses:
    return {0: Use(mask=r.result.mask), 1: Use(mask=r.result.mask)}


@_reader("Equal")
def _equal(r: _Reading) -> Uses:
    """A mask compared with zero or one, or an index compared with a table (a one-hot code spelt out)."""
    out: Uses = {}
    for i in (0, 1):
        table = r.value(1 - i)
        if table is None or not np.issubdtype(table.dtype, np.integer):
            continue
        if table.size > 1 and table.min() >= 0:
            out[i] = Use(below=(int(table.max()) + 1,))
        elif table.size == 1 and r.result.mask is not None and int(table.reshape(-1)[0]) in (0, 1):
            out[i] = Use(mask=r.result.mask == bool(table.reshape(-1)[0]))
    return out


@_reader("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def _labels(r: _Reading) -> Uses:
    return {1: Use(below=r.shape(0)[1:2]), 2: Use(positive=True)}


@_reader("RotaryEmbedding")
def _rotary(r: _Reading) -> Uses:
    return {3: Use(below=r.shape(1)[:1])} if len(r.op.inputs) > 3 else {}


@_reader("OneHot")
def _one_hot(r: _Reading) -> Uses:
    depth = r.value(1)
    return {} if depth is None else {0: Use(below=(int(depth.reshape(-1)[0]),))}


@_reader("com.microsoft::GatherGrad")
def _gather_grad(r: _Reading) -> Uses:
    shape = r.value(0)
    return {} if shape is None else {1: Use(below=(int(shape[r.attr("axis", 0)]),))}


@_reader("com.microsoft::SoftmaxCrossEntropyLossGrad")
def _loss_grad(r: _Reading) -> Uses:
    return {2: Use(below=r.shape(1)[1:2])}


@_reader("MatMul", "com.microsoft::FusedMatMul")
def _matmul(r: _Reading) -> Uses:
    flip_a, flip_b = r.attr("transA", 0), r.attr("transB", 0)
    a, b = r.shape(0), r.shape(1)
    terms = (b[-1] if flip_b else b[-2]) if len(b) > 1 else (a[-2] if flip_a and len(a) > 1 else (a or (1,))[-1])
    left = len(a) - (2 if flip_a and len(a) > 1 else 1)
    right = len(b) - (1 if flip_b or len(b) < 2 else 2)
    return {0: Use(fan_in=terms, terms=(left,)), 1: Use(fan_in=terms, terms=(right,))}


@_reader("planner::ExpertMatMul")
def _expert_matmul(r: _Reading) -> Uses:
    weights = r.shape(1) or (1, 1, 1)
    terms = weights[2 if r.attr("transB", 0) else 1]
    return {0: Use(fan_in=terms), 1: Use(fan_in=terms), 2: Use(below=weights[:1]), 3: Use(shift=True)}


@_reader("Gemm")
def _gemm(r: _Reading) -> Uses:
    b = r.shape(1) or (1, 1)
    terms = b[1] if r.attr("transB", 0) else b[0]
    left, right = (0 if r.attr("transA", 0) else 1), (1 if r.attr("transB", 0) else 0)
    return {0: Use(fan_in=terms, terms=(left,)), 1: Use(fan_in=terms, terms=(right,)), 2: Use(shift=True)}


@_reader("Conv")
def _conv(r: _Reading) -> Uses:
    weight = r.shape(1)
    return {1: Use(fan_in=math.prod(weight[1:]), terms=tuple(range(1, len(weight)))), 2: Use(shift=True)}


@_reader("ConvTranspose")
def _conv_transpose(r: _Reading) -> Uses:
    weight = r.shape(1)
    return {1: Use(fan_in=max(1, weight[0] // r.attr("group", 1))), 2: Use(shift=True)}


@_reader("LSTM", "GRU", "RNN")
def _recurrent(r: _Reading) -> Uses:
    return {1: Use(fan_in=(r.shape(1) or (1,))[-1]), 2: Use(fan_in=(r.shape(2) or (1,))[-1]), 3: Use(shift=True)}


@_reader("Einsum")
def _einsum(r: _Reading) -> Uses:
    equation = string(r.op.attributes.get("equation")).replace(" ", "").replace("...", "")
    left, _, right = equation.partition("->")
    sizes: dict[str, int] = {}
    for i, term in enumerate(left.split(",")):
        sizes.update(zip(reversed(term), reversed(r.shape(i)), strict=False))
    terms = math.prod(n for label, n in sizes.items() if label not in right)
    return {i: Use(fan_in=max(1, terms)) for i in range(len(r.op.inputs))}


@_reader("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "InstanceNormalization",
         "GroupNormalization", "com.microsoft::SimplifiedLayerNormalization")  # fmt: skip
def _norm(r: _Reading) -> Uses:
    return {1: Use(near_one=True), 2: Use(shift=True)}


@_reader("BatchNormalization")
def _batch_norm(r: _Reading) -> Uses:
    return {1: Use(near_one=True), 2: Use(shift=True), 3: Use(shift=True), 4: Use(positive=True)}


@_reader("Div")
def _div(r: _Reading) -> Uses:
    return {1: Use(positive=True)}


@_reader("Sqrt", "Log", "Reciprocal")
def _root(r: _Reading) -> Uses:
    return {0: Use(positive=True)}


@_reader("Pow")
def _pow(r: _Reading) -> Uses:
    exponent = r.value(1)
    whole = exponent is not None and bool(np.all(exponent == np.round(exponent)) and np.all(exponent > 0))
    return {} if whole else {0: Use(positive=True), 1: Use(near_one=True)}
