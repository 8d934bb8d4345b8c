"""Quantised weights, and the scales and zero points that belong to them.

Types do not tell a weight: an int64 vector may be a shape, an int8 matrix a weight or a table of classes.  What reads
it does.  A fixed expression is what views, casts, dequantisation and arithmetic make of stored tensors alone; all of
those that it is made of are weights where the expression arrives

- in a place of a quantised operator that holds weights (`planner.frontends.facts.weights`), whatever its type: 32-bit
  biases, packed blobs; or
- beside data where any weight would stand (a product, a filter, a look-up, arithmetic), if it holds an element type
  that is used for little else (`NARROW`) or passes through dequantisation.

Scales and zero points follow the weight in the next places of its operator.  A single element is no weight: it stays a
constant, as do shapes, axes, indices and masks, which are read in none of these places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from planner.frontends.facts.weights import quantised_places
from planner.frontends.steps.draft import split_type
from planner.ir import Op

__all__ = ["NARROW", "is_quantisation_parameter", "quantised_weights"]

NARROW = frozenset({
    "int8", "uint8", "int4", "uint4", "int2", "uint2", "float4e2m1",
    "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0",
})  # fmt: skip

_CONVERSIONS = frozenset({"DequantizeLinear", "QuantizeLinear"})  # x, scale, zero point
# Views: the first operand alone is handed on.
_VIEWS = frozenset({
    "Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip
_JOINED = frozenset({"Add", "BitShift", "BitwiseAnd", "BitwiseOr", "Concat", "Div", "Mul", "Sub"})

# (sources that it is made of, whether quantised)
_Made = tuple[frozenset[str], bool]


def quantised_weights(
    ops: Iterable[Op], types: Mapping[str, str], moving: set[str], holds_weight: Callable[[Op, int], bool]
) -> set[str]:
    """Names of sources; `types` are element types of all sources that count, `moving` the tensors that depend on data.

    `holds_weight` says of an operand that is a fixed expression whether weights of any model stand there.
    """
    made: dict[str, _Made] = {t: (frozenset({t}), dtype in NARROW) for t, dtype in types.items()}
    found: set[str] = set()
    for op in ops:
        kind = split_type(op.type)[1]
        slots = quantised_places(op)
        if kind in _CONVERSIONS and op.inputs[0] in moving:
            continue  # of activations
        if not any(t in moving for t in op.inputs):
            _hand_on(op, kind, made)
        for k, t in enumerate(op.inputs):
            if t not in made:
                continue
            sources, quantised = made[t]
            if k in slots or (quantised and holds_weight(op, k)):
                found |= sources
                for other in slots.get(k, ()):
                    if other < len(op.inputs) and op.inputs[other] in made:
                        found |= made[op.inputs[other]][0]
    return found


def is_quantisation_parameter(op: Op, operand: int) -> bool:
    """Whether the operand is a scale or zero point, which no optimizer changes."""
    kind = split_type(op.type)[1]
    if kind in _CONVERSIONS:
        return operand >= 1
    return any(operand in others for others in quantised_places(op).values())


def _hand_on(op: Op, kind: str, made: dict[str, _Made]) -> None:
    if kind in _VIEWS:
        read = op.inputs[:1]
    elif kind in _CONVERSIONS:
        read = op.inputs[:3]
    elif kind in _JOINED:
        read = op.inputs
    elif kind == "Gather":
        read = op.inputs[:1]
    else:
        return
    parts = [made[t] for t in read if t in made]
    if parts:
        value = frozenset().union(*(sources for sources, _ in parts))
        quantised = kind in _CONVERSIONS or any(q for _, q in parts)
        made.update((o, (value, quantised)) for o in op.outputs if o)
