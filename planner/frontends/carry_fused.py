"""How ONNX Runtime's fused operators (`com.microsoft`) carry a new size: all their data operands share the batch.

Cached keys and values, masks and lengths follow the batch of the queries; where queries, keys and values are given
apart, keys and values share their length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.frontends.carry import Carrier
from planner.frontends.draft import split_type
from planner.ir import Op

__all__ = ["FUSED_HANDLERS", "LIKE_FIRST"]

# Results shaped like operand 0, and the operands that have its shape, too.
LIKE_FIRST: dict[str, tuple[int, ...]] = {
    "BiasDropout": (2,),
    "BiasGelu": (),
    "BiasSoftmax": (),
    "DequantizeLinear": (),
    "FastGelu": (),
    "Gelu": (),
    "GroupNorm": (),
    "QLinearLeakyRelu": (),
    "QLinearSigmoid": (),
    "QLinearSoftmax": (),
    "QuantizeLinear": (),
    "QuickGelu": (),
    "SimplifiedLayerNormalization": (),
    "SkipLayerNormalization": (1,),
    "SkipSimplifiedLayerNormalization": (1,),
}

# Operand → its batch dimension.
_BATCH: Mapping[str, Mapping[int, int]] = {
    "Attention": {0: 0, 3: 0, 4: 1, 5: 0},
    "DecoderMaskedMultiHeadAttention": {0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0},
    "EmbedLayerNormalization": {0: 0, 1: 0, 7: 0},
    "GroupQueryAttention": {0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0},
    "MultiHeadAttention": {0: 0, 1: 0, 2: 0, 4: 0, 5: 0, 6: 0, 7: 0},
    "QAttention": {0: 0, 5: 0, 8: 1},
    "RotaryEmbedding": {0: 0, 1: 0},
}


def _share(c: Carrier, op: Op, dimensions: Mapping[int, int]) -> None:
    """The dimension given of each operand present has one size; ones broadcast."""
    present = [(op.inputs[k], d) for k, d in dimensions.items() if k < len(op.inputs) and op.inputs[k]]
    known = [(t, d) for t, d in present if d < len(c.before(t))]
    moved = next(((c.before(t)[d], c.after(t)[d]) for t, d in known if c.after(t)[d] != c.before(t)[d]), None)
    for t, d in known if moved is not None else ():
        if moved is not None and c.before(t)[d] == moved[0]:
            c.demand(t, d, moved[1], op)


def _fused(c: Carrier, op: Op) -> None:
    name = split_type(op.type)[1]
    _share(c, op, _BATCH[name])
    if name == "EmbedLayerNormalization":
        _share(c, op, {0: 1, 1: 1, 7: 1})
    elif name == "GroupQueryAttention" or (name == "MultiHeadAttention" and all(op.inputs[1:3])):
        _share(c, op, {1: 1, 2: 1})
    if c.before(op.outputs[0]) == c.before(op.inputs[0]):
        c.factors[op.outputs[0]] = c.parts(op.inputs[0])


FUSED_HANDLERS: dict[str, Callable[[Carrier, Op], None]] = dict.fromkeys(_BATCH, _fused)
