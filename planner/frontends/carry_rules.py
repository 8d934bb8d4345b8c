"""How single operator types carry a new size; see `planner.frontends.rebind`.

A handler gets the walk's state and the operator, after its operands have their new shapes.  It may rewrite
constant operands, demand sizes of operands, and state the factors of the result.  Types without a handler
take what shape inference gives.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.frontends.carry import Carrier, Factors, join
from planner.frontends.carry_experts import expert_matmul, top_k
from planner.frontends.carry_fused import FUSED_HANDLERS, LIKE_FIRST
from planner.frontends.carry_indexing import elementwise_indices, gather, gather_nd, scatter_nd
from planner.frontends.carry_views import (
    constant_of_shape,
    expand,
    flatten,
    reshape,
    slice_,
    split,
    squeezing,
    tile,
    transpose,
)
from planner.frontends.draft import split_type
from planner.ir import Op

__all__ = ["handle"]


def handle(c: Carrier, op: Op) -> None:
    domain, name = split_type(op.type)
    if any(isinstance(v, bytes) for v in op.attributes.values()):
        c.refuse(f"{op.type} '{op.name}' stops the new size: it holds a sub-graph with sizes of its own.")
        return
    handler = _HANDLERS.get(name)
    if domain == "com.microsoft" and name in FUSED_HANDLERS:
        FUSED_HANDLERS[name](c, op)
    elif domain == "com.microsoft" and name in LIKE_FIRST:
        _same_shape(c, op, LIKE_FIRST[name])
    elif handler is not None and domain in ("", "com.microsoft", "planner"):
        handler(c, op)
    elif name in _SAME_SHAPE:
        _same_shape(c, op)


def _same_shape(c: Carrier, op: Op, others: tuple[int, ...] = ()) -> None:
    """The result is shaped like operand 0, and so are the `others`."""
    t, o = op.inputs[0], op.outputs[0]
    for axis in range(len(c.before(t))):
        c.pass_up(op, o, axis, t, axis)
        for other in (op.inputs[k] for k in others if k < len(op.inputs) and op.inputs[k]):
            if len(c.before(other)) == len(c.before(t)) and c.before(other)[axis] == c.before(t)[axis]:
                c.demand(other, axis, c.after(t)[axis], op)
    c.factors[o] = c.parts(t)


def _broadcast(c: Carrier, op: Op) -> None:
    o = op.outputs[0]
    operands = [t for t in op.inputs if t]
    c.factors[o] = _broadcast_dims(c, op, operands, len(c.before(o)), 0, o)


def _broadcast_dims(c: Carrier, op: Op, operands: list[str], rank: int, tail: int, o: str) -> tuple[Factors, ...]:
    """Factors of the `rank` dimensions before the last `tail` ones, operands aligned at the right."""
    out: list[Factors] = []
    for axis in range(rank):
        places = []
        for t in operands:
            k = axis - (rank - (len(c.before(t)) - tail))
            if k >= 0:
                places.append((t, k))
        full = [(t, k) for t, k in places if c.before(t)[k] != 1]
        size, like = c.wanted.get((o, axis)), c.wanted_like.get((o, axis), ())
        best = max(places, key=lambda p: _informative(c, p[0], p[1]), default=None)
        if size is None:
            moved = [(t, k) for t, k in (full or places) if c.after(t)[k] != c.before(t)[k]]
            size = c.after(moved[0][0])[moved[0][1]] if moved else None
            like = c.parts(best[0])[best[1]] if moved and best else ()
        if size is not None:
            for t, k in full:
                c.demand(t, k, size, op, like)
            if not full and places and all(c.after(t)[k] == 1 for t, k in places) and size != 1:
                t, k = places[0]
                c.demand(t, k, size, op)
        out.append(c.parts(best[0])[best[1]] if best else ((1, 1),))
    return tuple(out)


def _informative(c: Carrier, t: str, axis: int) -> tuple[bool, bool, int]:
    return c.before(t)[axis] != 1, c.after(t)[axis] != c.before(t)[axis], len(c.parts(t)[axis])


def _matmul(c: Carrier, op: Op) -> None:
    a, b, o = op.inputs[0], op.inputs[1], op.outputs[0]
    ra, rb = len(c.before(a)), len(c.before(b))
    if ra < 2 or rb < 2 or split_type(op.type)[1] == "FusedMatMul":
        return
    for t, k, other, j in ((a, ra - 1, b, rb - 2), (b, rb - 2, a, ra - 1)):
        if c.after(t)[k] != c.before(t)[k]:
            c.demand(other, j, c.after(t)[k], op)
    rank = len(c.before(o))
    c.pass_up(op, o, rank - 2, a, ra - 2)
    c.pass_up(op, o, rank - 1, b, rb - 1)
    batch = _broadcast_dims(c, op, [a, b], rank - 2, 2, o)
    c.factors[o] = (*batch, c.parts(a)[ra - 2], c.parts(b)[rb - 1])


def _gemm(c: Carrier, op: Op) -> None:
    a, b, o = op.inputs[0], op.inputs[1], op.outputs[0]
    row, inner_a = (1, 0) if op.attributes.get("transA", 0) else (0, 1)
    inner_b, column = (1, 0) if op.attributes.get("transB", 0) else (0, 1)
    for t, k, other, j in ((a, inner_a, b, inner_b), (b, inner_b, a, inner_a)):
        if c.after(t)[k] != c.before(t)[k]:
            c.demand(other, j, c.after(t)[k], op)
    c.pass_up(op, o, 0, a, row)
    c.pass_up(op, o, 1, b, column)
    c.factors[o] = (c.parts(a)[row], c.parts(b)[column])
    bias = op.inputs[2] if len(op.inputs) > 2 else ""
    if bias:
        shape = c.before(bias)
        for k in range(len(shape)):
            size = join(c.factors[o][k + 2 - len(shape)])
            if shape[k] != 1 and size != shape[k]:
                c.demand(bias, k, size, op)


def _concat(c: Carrier, op: Op) -> None:
    o = op.outputs[0]
    rank = len(c.before(o))
    along = int(op.attributes.get("axis", 0)) % rank
    for axis in range(rank):
        if axis == along:
            continue
        size = c.wanted.get((o, axis))
        for t in op.inputs:
            if size is None and c.after(t)[axis] != c.before(t)[axis]:
                size = c.after(t)[axis]
        if size is not None:
            for t in op.inputs:
                c.demand(t, axis, size, op)
    source = next((t for t in op.inputs if c.changed(t)), op.inputs[0])
    parts = list(c.parts(source))
    parts[along] = ((c.before(o)[along], sum(c.after(t)[along] for t in op.inputs)),)
    c.factors[o] = tuple(parts)


def _recurrent(c: Carrier, op: Op) -> None:
    """Initial states [directions, batch, hidden] follow the batch of the sequence [steps, batch, features]."""
    first = bool(op.attributes.get("layout", 0))
    size = c.after(op.inputs[0])[0 if first else 1]
    for k in (5, 6):
        if len(op.inputs) > k and op.inputs[k]:
            c.demand(op.inputs[k], 0 if first else 1, size, op)


def _attention(c: Carrier, op: Op) -> None:
    """Q, K, V share the batch; the mask [batch, heads, queries, keys] follows it and both lengths."""
    q, k, v = op.inputs[:3]
    length = len(c.before(q)) - 2
    for axis, group in ((0, (q, k, v)), (length, (k, v))):
        moved = next((c.after(t)[axis] for t in group if c.after(t)[axis] != c.before(t)[axis]), None)
        for t in group if moved is not None else ():
            c.demand(t, axis, moved or 1, op)
    mask = op.inputs[3] if len(op.inputs) > 3 else ""
    if not mask:
        return
    rank = len(c.before(mask))
    for back, (t, axis) in {4: (q, 0), 2: (q, length), 1: (k, length)}.items():
        if rank >= back and c.before(mask)[rank - back] == c.before(t)[axis] != 1:
            c.demand(mask, rank - back, c.after(t)[axis], op)


def _loss(c: Carrier, op: Op) -> None:
    """Scores [samples, classes, …] and labels [samples, …] agree but for the classes."""
    scores, labels = op.inputs[:2]
    for k in range(len(c.before(labels))):
        j = k if k == 0 else k + 1
        if c.after(scores)[j] != c.before(scores)[j]:
            c.demand(labels, k, c.after(scores)[j], op)
        elif c.after(labels)[k] != c.before(labels)[k]:
            c.demand(scores, j, c.after(labels)[k], op)


def _pooling_gradient(c: Carrier, op: Op) -> None:
    """MaxPoolGrad(dY, mask): samples and channels follow dY; space, which only the forward knew, stays."""
    dy, o = op.inputs[0], op.outputs[0]
    if c.after(dy)[2:] == c.before(dy)[2:]:
        c.factors[o] = (*c.parts(dy)[:2], *(((s, s),) for s in c.before(o)[2:]))


def _reduce(c: Carrier, op: Op) -> None:
    """Dimensions that are not reduced pass through; one that is may have any size."""
    t, o = op.inputs[0], op.outputs[0]
    rank, kept = len(c.before(t)), bool(op.attributes.get("keepdims", 1))
    stated = op.attributes.get("axes", op.attributes.get("axis", 0 if op.type.startswith("Arg") else None))
    if len(op.inputs) > 1 and op.inputs[1]:
        stated = c.value(op.inputs[1])
        if stated is None:
            return
    axes = [int(a) % rank for a in np.ravel(stated)] if stated is not None else []
    if not axes and not op.attributes.get("noop_with_empty_axes", 0):
        axes = list(range(rank))
    factors: list[Factors] = []
    for axis in range(rank):
        if axis not in axes:
            c.pass_up(op, o, len(factors), t, axis)
            factors.append(c.parts(t)[axis])
        elif kept:
            factors.append(((1, 1),))
    if len(factors) == len(c.before(o)):
        c.factors[o] = tuple(factors)


def _stated_gradient(c: Carrier, op: Op) -> None:
    """GatherGrad(shape, indices, dY) and SliceGrad(dY, shape, …) spell out the shape of the result."""
    gather = split_type(op.type)[1] == "GatherGrad"
    k, dy, o = (0, op.inputs[2], op.outputs[0]) if gather else (1, op.inputs[0], op.outputs[0])
    before, after, old = c.before(dy), c.after(dy), c.before(o)
    axis = int(op.attributes.get("axis", 0)) % len(old) if gather else -1
    inserted = len(before) - len(old)  # dimensions of the indices in place of the gathered one
    new = []
    for d, size in enumerate(old):
        j = d if not gather or d < axis else d + inserted
        moved = d != axis and before[j] == size
        new.append(c.wanted.get((o, d), after[j] if moved else size))
    c.rewrite(op, k, new)
    c.factors[o] = tuple(((a, b),) for a, b in zip(old, new, strict=True))


def _resize(c: Carrier, op: Op) -> None:
    """Stated sizes follow: equal ones stay equal, others keep their ratio."""
    t = op.inputs[0]
    sizes = c.value(op.inputs[3]) if len(op.inputs) > 3 and op.inputs[3] else None
    if sizes is not None and len(sizes) == len(c.before(t)):
        c.rewrite(op, 3, [int(s) * n // o for s, o, n in zip(sizes, c.before(t), c.after(t), strict=True)])


def _einsum(c: Carrier, op: Op) -> None:
    terms = str(op.attributes.get("equation", "")).replace(" ", "").split("->")[0].split(",")
    if any("." in term for term in terms) or len(terms) != len(op.inputs):
        return
    places = [(label, t, k) for term, t in zip(terms, op.inputs, strict=True) for k, label in enumerate(term)]
    moved = {label: c.after(t)[k] for label, t, k in places if c.after(t)[k] != c.before(t)[k]}
    for label, t, k in places:
        if label in moved and c.before(t)[k] != 1:
            c.demand(t, k, moved[label], op)


_SAME_SHAPE = frozenset({
    "Abs", "Acos", "Asin", "Atan", "BatchNormalization", "BitwiseNot", "Cast", "CastLike", "Ceil", "Celu",
    "Clip", "Cos", "CumSum", "DequantizeLinear", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu",
    "GroupNormalization", "HardSigmoid", "HardSwish", "Hardmax", "Identity", "InstanceNormalization",
    "IsInf", "IsNaN", "LRN", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "Mish", "Neg", "Not",
    "QuantizeLinear", "RMSNormalization", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid",
    "Sign", "Sin", "Softmax", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu",
    "Trilu",
})  # fmt: skip

_BROADCASTING = (
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater",
    "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow",
    "Sub", "Sum", "Where", "Xor",
)  # fmt: skip

_REDUCTIONS = (
    "ArgMax", "ArgMin", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip

_HANDLERS: dict[str, Callable[[Carrier, Op], None]] = {
    "Attention": _attention,
    **dict.fromkeys(_BROADCASTING, _broadcast),
    "Concat": _concat,
    "ConstantOfShape": constant_of_shape,
    "Einsum": _einsum,
    "Expand": expand,
    "ExpertMatMul": expert_matmul,
    "Flatten": flatten,
    "FusedMatMul": _matmul,
    "GRU": _recurrent,
    "GatherElements": elementwise_indices,
    "ScatterElements": elementwise_indices,
    "ScatterND": scatter_nd,
    "Gather": gather,
    "GatherND": gather_nd,
    "Gemm": _gemm,
    "LSTM": _recurrent,
    "GatherGrad": _stated_gradient,
    "MatMul": _matmul,
    "MaxPoolGrad": _pooling_gradient,
    "NegativeLogLikelihoodLoss": _loss,
    "RNN": _recurrent,
    **dict.fromkeys(_REDUCTIONS, _reduce),
    "Reshape": reshape,
    "Resize": _resize,
    "Slice": slice_,
    "SliceGrad": _stated_gradient,
    "SoftmaxCrossEntropyLoss": _loss,
    "Split": split,
    "Squeeze": squeezing,
    "Tile": tile,
    "TopK": top_k,
    "Transpose": transpose,
    "Unsqueeze": squeezing,
}
