"""Convolutions: batch, channels, groups and space are split; space needs a halo unless windows tile it."""

from __future__ import annotations

import math

from planner.ir.tensor import ITEM_BYTES
from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Rule
from planner.rules.window import Space, transposed_windows, windows

__all__ = ["convolved_space"]


def convolved_space(o: Operator, weight: int = 1) -> Space:
    """Space of a convolution of operand 0 with the weights in operand `weight`."""
    return Space.of(windows(o.op.attributes, o.shape(weight)[2:], o.shape(0)[2:], o.result()[2:]))


@rule("Conv")
def _conv(o: Operator) -> Rule:
    """Input channels are contracted within each group; the kernel's dimensions stay whole.

    The backward fetches the gradient of the positions that read a shard's elements: it then has all it needs for the
    gradient of these elements, and for its part of the weights' gradient.
    """
    weight, out, space = o.shape(1), o.result(), convolved_space(o)
    return sharded(
        o,
        f"n (g i) {space.elements}, (g o) i *..., +(g o) -> n (g o) {space.positions}",
        kind="conv",
        sizes={"g": int(o.attribute("group", 1)), "i": weight[1], **space.sizes},
        linear=[(0, 2), (1, 2)],
        differentiable=(0, 1, 2),
        saved=(0, 1),
        flops=2.0 * math.prod(out) * math.prod(weight[1:]),
        counts={"group": ("g",)},
        aware=space.aware,
        inner=(
            *space.halo("elements", ("n", "g", "i"), o.item_bytes),
            *space.halo("positions", ("n", "g", "o"), o.item_bytes, backward=True),
        ),
    )


@rule("com.microsoft::FusedConv")
def _fused_conv(o: Operator) -> Rule:
    """A convolution, a tensor added to it, and an activation, which needs the whole sum over input channels."""
    weight, out, space = o.shape(1), o.result(), convolved_space(o)
    return sharded(
        o,
        f"n (g i!) {space.elements}, (g o) i! *..., (g o), n (g o) {space.positions} -> n (g o) {space.positions}",
        kind="conv",
        sizes={"g": int(o.attribute("group", 1)), "i": weight[1], **space.sizes},
        flops=2.0 * math.prod(out) * math.prod(weight[1:]),
        counts={"group": ("g",)},
        aware=space.aware,
        inner=space.halo("elements", ("n", "g", "i"), o.item_bytes),
    )


@rule("ConvTranspose")
def _conv_transpose(o: Operator) -> Rule:
    """The gradient of a convolution: every input element meets every kernel element of its group.

    Its operand is on the side of the positions: a shard of the result needs all windows that read its elements.
    """
    weight, data, out = o.shape(1), o.shape(0), o.result()
    space = Space.of(transposed_windows(o.op.attributes, weight[2:], data[2:], out[2:]))
    stated = bool(o.attribute("output_shape", ()))  # of the whole
    return sharded(
        o,
        f"n (g i) {space.positions}, (g i) o *..., +(g o) -> n (g o) {space.elements}",
        kind="conv",
        sizes={"g": int(o.attribute("group", 1)), "o": weight[1], **space.sizes},
        linear=[(0, 2), (1, 2)],
        differentiable=(0, 1, 2),
        saved=(0, 1),
        flops=2.0 * math.prod(data) * math.prod(weight[1:]),
        counts={"group": ("g",)},
        aware=space.factors if stated else space.aware,
        inner=(
            *space.halo("positions", ("n", "g", "i"), o.item_bytes),
            *space.halo("elements", ("n", "g", "o"), o.item_bytes, backward=True),
        ),
    )


@rule("ConvInteger")
def _conv_integer(o: Operator) -> Rule:
    """Exact in int32.  A padded border counts as the zero point, which each part of the sum subtracts for itself."""
    weight, space = o.shape(1), convolved_space(o)
    per_channel = "(g o)" if o.has(3) and math.prod(o.shape(3)) > 1 else "*..."
    return sharded(
        o,
        f"n (g i) {space.elements}, (g o) i *..., *..., {per_channel} -> n (g o) {space.positions}",
        kind="conv",
        sizes={"g": int(o.attribute("group", 1)), "i": weight[1], **space.sizes},
        flops=2.0 * math.prod(o.result()) * math.prod(weight[1:]),
        counts={"group": ("g",)},
        aware=space.aware,
        inner=space.halo("elements", ("n", "g", "i"), ITEM_BYTES.get(o.input_types[0], 1)),
    )


@rule("QLinearConv")
def _qlinear_conv(o: Operator) -> Rule:
    """Operands: X, scale, zero; W, scale, zero; result's scale, zero; bias.  The sum is rounded: channels in whole."""
    weight, space = o.shape(3), convolved_space(o, 3)
    per_channel = "(g o)" if math.prod(o.shape(4)) > 1 else "*..."
    zeros = "(g o)" if o.has(5) and math.prod(o.shape(5)) > 1 else "*..."
    return sharded(
        o,
        f"n (g i!) {space.elements}, *..., *..., (g o) i! *..., {per_channel}, {zeros}, *..., *..., (g o)"
        f" -> n (g o) {space.positions}",
        kind="conv",
        sizes={"g": int(o.attribute("group", 1)), "i": weight[1], **space.sizes},
        flops=2.0 * math.prod(o.result()) * math.prod(weight[1:]),
        counts={"group": ("g",)},
        aware=space.aware,
        inner=space.halo("elements", ("n", "g", "i"), o.item_bytes),
    )
