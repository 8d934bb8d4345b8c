"""The gated half of a feed-forward layer as one operator: all that the planner knows of it stands in this one module.

    planner::SwiGLUMatMul(x [..., k], gate [k, n], up [k, n]) -> silu(x · gate) * (x · up)  [..., n]

ONNX's SwiGLU gates two products that were made before; here both are made inside and are never stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from planner.frontends.facts.flops import Shape, counts
from planner.frontends.facts.shapes import UNKNOWN, Inferred, Operands, given, infers
from planner.frontends.facts.sizes import carries
from planner.frontends.facts.weights import weights_at
from planner.ir import Op
from planner.ir.tensor import ITEM_BYTES
from planner.kernels.attributes import Array
from planner.kernels.gradients import Call, register
from planner.kernels.local import local_kernel
from planner.kernels.precision import widen
from planner.kernels.split import kernel
from planner.kernels.spmd import Coroutine, ShardContext, all_reduce
from planner.operators.elementwise.gradient import sigmoid
from planner.rules.notation import labels
from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, InnerCollective, Rule
from planner.runtime import registry as on_torch
from planner.verify.uses import Reading, Use, Uses, reads

if TYPE_CHECKING:
    from torch import Tensor

    from planner.frontends.resized.carry import Carrier

__all__: list[str] = []

TYPE = "planner::SwiGLUMatMul"
Given = Sequence["Array | None"]

weights_at((1, 2), TYPE)


@rule(TYPE)
def _rule(o: Operator) -> Rule:
    """Tokens and columns are split as those of a product.  The contracted dimension is not: what is gated is a product,
    and no sum of gated parts.  Ranks that hold parts of it add both products up before they gate them, in the forward
    and again in the backward, which makes the products anew.  In `up` alone the operator is linear."""
    tokens = labels("t", o.rank(0) - 1)
    products = (*tokens.split(), "n")
    both = 2 * ITEM_BYTES.get(o.output_types[0], 4)
    work = 2 * 2.0 * math.prod(o.result()) * o.shape(0)[-1]
    return sharded(
        o,
        f"{tokens} k, k n, k n -> {tokens} n",
        kind="matmul",
        combine={"k": Combine.INNER},
        linear=[(2,)],
        differentiable=(0, 1, 2),
        saved=(0, 1, 2),
        flops=work,
        backward_flops=3 * work,  # the products again, and two of each for the gradients of both sides
        inner=[InnerCollective("k", "all_reduce", products, both, backward=b) for b in (False, True)],
    )


@infers(TYPE)
def _shape(op: Op, operands: Operands) -> list[Inferred]:
    x, gate = given(operands, 0), given(operands, 1)
    if x is None or gate is None or not x.shape or not gate.shape:
        return [UNKNOWN]
    return [(x.dtype, (*x.shape[:-1], gate.shape[-1]))]


@counts(TYPE)
def _work(op: Op, shapes: Sequence[Shape | None], out: Shape | None) -> int:
    """Both products."""
    x = shapes[0]
    return 0 if x is None or out is None else 4 * math.prod(out) * x[-1]


@carries(TYPE)
def _sizes(c: Carrier, op: Op) -> None:
    """Both weights have the depth of x and one number of columns."""
    x, gate, up = op.inputs[:3]
    result, depth = op.outputs[0], len(c.before(op.inputs[0])) - 1
    for axis in range(depth):
        c.pass_up(op, result, axis, x, axis)
    c.pass_up(op, result, depth, gate, 1)
    for places in (((x, depth), (gate, 0), (up, 0)), ((gate, 1), (up, 1))):
        moved = [c.after(t)[k] for t, k in places if c.after(t)[k] != c.before(t)[k]]
        for t, k in places if moved else ():
            c.demand(t, k, moved[0], op)
    c.factors[result] = (*c.parts(x)[:depth], c.parts(gate)[1])


@reads(TYPE)
def _values(r: Reading) -> Uses:
    """Both products stay of one size."""
    weight = Use(fan_in=(r.shape(1) or (1,))[0], terms=(0,))
    return {1: weight, 2: weight}


def _products(inputs: Given) -> Array:
    """x · gate and x · up, one behind the other; half precision is computed in single."""
    x, gate, up = (widen(v) for v in inputs[:3])
    return np.stack([x @ gate, x @ up])


def _gated(products: Array) -> Array:
    gate, up = products
    return np.asarray(gate * sigmoid(gate) * up)


def _gradients(inputs: Given, products: Array, dy: Array) -> list[Array | None]:
    x, w_gate, w_up = (widen(v) for v in inputs[:3])
    gate, up = products
    s = sigmoid(gate)
    d_gate, d_up = dy * up * s * (1 + gate * (1 - s)), dy * gate * s
    rows = x.reshape(-1, x.shape[-1])
    d_weights = [rows.T @ d.reshape(-1, d.shape[-1]) for d in (d_gate, d_up)]
    return [d_gate @ w_gate.T + d_up @ w_up.T, *d_weights]


@local_kernel(TYPE)
def _forward(op: Op, inputs: Given) -> Sequence[Array | None]:
    x = inputs[0]
    assert x is not None
    return [_gated(_products(inputs)).astype(x.dtype)]


@register(TYPE)
def _gradient(c: Call) -> list[Array | None]:
    return _gradients(c.inputs, _products(c.inputs), c.dy)


def _split_forward(op: Op, inputs: Given, place: ShardContext) -> Coroutine:
    """`k` is split: each rank has parts of both products."""
    x = inputs[0]
    assert x is not None
    products = yield from all_reduce(_products(inputs).astype(x.dtype), "sum", "k")
    return [_gated(widen(products)).astype(x.dtype)]


def _split_backward(
    op: Op, inputs: Given, outputs: Given, gradients: Given, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    x, dy = inputs[0], gradients[0]
    assert x is not None
    assert dy is not None
    products = yield from all_reduce(_products(inputs).astype(x.dtype), "sum", "k")
    found = _gradients(inputs, widen(products), widen(dy))
    return [g.astype(x.dtype) if w and g is not None else None for g, w in zip(found, wanted, strict=True)]


kernel([TYPE], _split_forward, _split_backward)


@on_torch.operator(TYPE, aware=True)
def _on_torch(c: on_torch.Call) -> Tensor:
    import torch
    from torch.nn import functional

    products = torch.stack([c.x @ c.operand(1), c.x @ c.operand(2)])
    if c.place.splits("k"):
        products = c.inside.total(products, "k")
    return functional.silu(products[0]) * products[1]
