"""Convolutions while space is split.

The backward needs one halo: the gradient at the positions that read this rank's elements.  The gradient of these
elements and its part of the weights' gradient, the products of its elements with these positions, follow from it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Window as Sliding
from planner.kernels.precision import widen
from planner.kernels.shards import Array
from planner.kernels.shared import Call, shared
from planner.kernels.split import kernel
from planner.kernels.spmd import Collective, Coroutine, Received, ShardContext
from planner.kernels.window import FIRST, Reach, explicit, fetch, fit, local_space
from planner.operators.convolution.gradient import conv_forward, conv_input_gradient, conv_weight_gradient
from planner.rules.window import Window

__all__: list[str] = []

Operands = Sequence["Array | None"]
_WEIGHT = {"QLinearConv": 3}  # operand with the weights, where it is not 1


def _backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    x, weight, dy = inputs[0], inputs[1], gradients[0]
    assert x is not None
    assert weight is not None
    assert dy is not None
    found = yield from convolution_gradients(op, x, weight, dy, [*wanted, False, False][:3], place)
    return found[: len(inputs)]


def convolution_gradients(
    op: Op, x: Array, weight: Array, dy: Array, wanted: Sequence[bool], place: ShardContext
) -> Generator[Collective, Received, list[Array | None]]:
    """Gradients of elements, weights and bias."""
    space = local_space(op, weight.shape[FIRST:], place)
    grown = yield from fetch(dy, space, "positions", place)
    groups = op.attributes.get("group", 1)
    covered = [r.window.read_by(r.needed("positions")) for r in space]
    w = _unpadded(space, [r.needed("positions") for r in space])
    found: list[Array | None] = [None, None, None]
    if wanted[0]:
        sizes = tuple(stop - first for first, stop in covered)
        dx = conv_input_gradient(widen(grown), widen(weight), w, groups, sizes)
        for r, have in zip(space, covered, strict=True):
            dx = fit(dx, r.dim, have, r.own("elements"))
        found[0] = dx.astype(x.dtype)
    if wanted[1]:
        read = widen(x)
        for r, want in zip(space, covered, strict=True):
            read = fit(read, r.dim, r.own("elements"), want)
        found[1] = conv_weight_gradient(read, widen(grown), w, groups, weight.shape).astype(weight.dtype)
    if wanted[2]:
        found[2] = _channel_sum(dy)
    return found


def _unpadded(space: Sequence[Reach[Window]], positions: Sequence[tuple[int, int]]) -> Sliding:
    """The window over exactly the elements that these positions read."""
    none = (0,) * len(space)
    return Sliding(
        tuple(r.window.kernel for r in space),
        tuple(r.window.stride for r in space),
        tuple(r.window.dilation for r in space),
        none,
        none,
        tuple(stop - first for first, stop in positions),
    )


def _channel_sum(dy: Array) -> Array:
    return np.asarray(widen(dy).sum(axis=(0, *range(FIRST, dy.ndim)))).astype(dy.dtype)


def _transposed_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """A convolution of the gradient, whose halo is that of its elements."""
    x, weight, dy = inputs[0], inputs[1], gradients[0]
    assert x is not None
    assert weight is not None
    assert dy is not None
    space = local_space(op, weight.shape[FIRST:], place, transposed=True)
    grown = widen((yield from fetch(dy, space, "elements", place)))
    own = [r.own("positions") for r in space]
    for r, positions in zip(space, own, strict=True):
        grown = fit(grown, r.dim, r.needed("elements"), r.window.read_by(positions))
    groups, w = op.attributes.get("group", 1), _unpadded(space, own)
    found: list[Array | None] = [None, None, None]
    if wanted[0]:
        found[0] = conv_forward(grown, widen(weight), w, groups).astype(x.dtype)
    if wanted[1]:
        found[1] = conv_weight_gradient(grown, widen(x), w, groups, weight.shape).astype(weight.dtype)
    if len(inputs) > 2 and wanted[2]:
        found[2] = _channel_sum(dy)
    return found[: len(inputs)]


def _gradient_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """The gradient operator of exported training graphs: (dY, X, W) → dX, dW, dB."""
    dy, x, weight = inputs
    assert dy is not None
    assert x is not None
    assert weight is not None
    requested = [*(bool(name) for name in op.outputs), False, False]
    found = yield from convolution_gradients(op, x, weight, dy, requested[:3], place)
    return found[: len(op.outputs)]


@shared("Conv", backward=_backward)
@shared("ConvInteger", "QLinearConv", "com.microsoft::FusedConv")
def _convolution(c: Call) -> Coroutine:
    """The operator itself, on elements with their halo."""
    weight = c.operand(_WEIGHT.get(c.op.type, 1))
    space = local_space(c.op, weight.shape[FIRST:], c.place)
    grown = yield from fetch(c.operand(), space, "elements", c.place)
    return list(c.run(explicit(c.op, space), [grown, *c.inputs[1:]]))


@shared("ConvTranspose", backward=_transposed_backward)
def _transposed(c: Call) -> Coroutine:
    """All windows that write this rank's elements, unpadded; what they write beyond these elements is dropped."""
    weight, bias = c.operand(1), c.maybe(2)
    space = local_space(c.op, weight.shape[FIRST:], c.place, transposed=True)
    grown = yield from fetch(c.operand(), space, "positions", c.place)
    attributes = {
        k: v for k, v in c.op.attributes.items() if k not in ("auto_pad", "pads", "output_padding", "output_shape")
    }
    (y,) = c.run(replace(c.op, attributes=attributes, inputs=c.op.inputs[:2]), [grown, weight])
    for r in space:
        y = fit(y, r.dim, r.window.read_by(r.needed("positions")), r.own("elements"))
    return [y if bias is None else y + c.xp.reshape(bias, (bias.shape[0], *(1,) * len(space)))]


kernel(["com.microsoft::ConvGrad"], _gradient_forward)
