"""Attention whose scores or probabilities a graph of the model's own changes."""

from __future__ import annotations

import math

import onnx

from planner.ir.tensor import ITEM_BYTES
from planner.operators.attention.rule import RING, key_collectives, ring_collectives
from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, Rule

__all__: list[str] = []

# Types whose results depend, element by element, on their operands alone.
_ELEMENTWISE = frozenset({
    "Abs", "Add", "And", "Cast", "CastLike", "Clip", "Constant", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Gelu",
    "Greater", "GreaterOrEqual", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Min", "Mul", "Neg",
    "Not", "Or", "Pow", "Reciprocal", "Relu", "Sigmoid", "Sin", "Softplus", "Sqrt", "Sub", "Swish", "Tanh", "Where",
})  # fmt: skip


@rule("ai.onnx.preview::FlexAttention")
def _flex_attention(o: Operator) -> Rule:
    """As ONNX's Attention without mask and cache, while nothing changes its scores.

    Scores and probabilities may be changed element by element; then keys stay whole, for the weights of their parts
    are no longer those of a softmax.  What knows places (a causal mask) acts on indices of the whole.
    """
    for name in ("score_mod", "prob_mod"):
        if not _is_elementwise(o.attribute(name, None)):
            raise KeepWholeError(f"{name} is not element by element")
    changed = any(name in o.op.attributes for name in ("score_mod", "prob_mod"))
    batch, heads, queries, depth = o.shape(0)
    key_heads, keys, value_depth = o.shape(2)[1:]
    if heads % key_heads:
        raise KeepWholeError(f"{heads} query heads are no multiple of {key_heads} key heads")
    item_bytes = ITEM_BYTES.get(o.input_types[0], 4)
    flops = 2.0 * batch * heads * queries * keys * (depth + value_depth)
    return sharded(
        o,
        "b (h g) s e!, b h t e!, b h t f! -> b (h g) s f!",
        kind="attention",
        sizes={"h": key_heads, "g": heads // key_heads},
        whole=["t"] if changed else [],
        combine={"t": Combine.INNER},
        linear=[(2,)],
        differentiable=(0, 1, 2),
        saved=(0, 1, 2),
        saved_results=(0,),
        flops=flops,
        backward_flops=2.5 * flops,
        inner=()
        if changed
        else (
            *key_collectives("t", value_depth, item_bytes),
            *ring_collectives(depth, value_depth, item_bytes),
        ),
        modes=None if changed else {RING: ("s", "t")},
    )


def _is_elementwise(body: bytes | None) -> bool:
    """Elementwise nodes, reading nothing but the operand and single constants; no body leaves all as it is."""
    if body is None:
        return True
    graph = onnx.GraphProto.FromString(body)
    known = {*(v.name for v in graph.input), *(t.name for t in graph.initializer)}
    single = all(math.prod(t.dims) == 1 for t in graph.initializer)
    for node in graph.node:
        constants = [a for a in node.attribute if a.type == onnx.AttributeProto.TENSOR]
        lists = [a for a in node.attribute if a.name in ("value_floats", "value_ints", "value_strings")]
        single &= all(math.prod(a.t.dims) == 1 for a in constants) and not lists
        # A name from outside may hold a tensor of any shape.
        if node.op_type not in _ELEMENTWISE or node.domain or not known.issuperset(filter(None, node.input)):
            return False
        known.update(node.output)
    return single
