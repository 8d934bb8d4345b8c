"""Gradients of convolutions and pools in ONNX Runtime's training graphs: batch, channels, groups and space."""

from __future__ import annotations

import math

from planner.rules.notation import labels
from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, Rule
from planner.rules.window import Space, windows

__all__: list[str] = []


@rule("com.microsoft::ConvGrad")
def _conv(o: Operator) -> Rule:
    """dY, X, W to dX (lacks output channels), dW (lacks batch and space) and dB (lacks batch and space).

    dB does not depend on input channels: ranks that split them all compute it in full.
    """
    weight = o.shape(2)
    wanted = sum(map(o.yields, (0, 1)))
    alone = [(2,)] if o.yields(0) else [(1,)] if o.yields(1) else []  # dX is linear in W, dW in X
    space = Space.of(windows(o.op.attributes, weight[2:], o.shape(1)[2:], o.shape(0)[2:]))
    return sharded(
        o,
        f"n (g o) {space.positions}, n (g i) {space.elements}, (g o) i *..."
        f" -> n (g i) {space.elements}, (g o) i *..., (g o)",
        kind="conv",
        sizes={"g": int(o.attribute("group", 1)), "i": weight[1], **space.sizes},
        combine={"i": Combine.INNER},
        linear=[(0,), *(alone if wanted == 1 and not o.yields(2) else [])],
        flops=2.0 * wanted * math.prod(o.shape(0)) * math.prod(weight[1:]),
        counts={"group": ("g",)},
        aware=space.aware,
        inner=space.halo("positions", ("n", "g", "o"), o.item_bytes),
    )


def _pooled(o: Operator) -> Space:
    kernel = tuple(int(k) for k in o.attribute("kernel_shape", ()))
    return Space.of(windows(o.op.attributes, kernel, o.result()[2:], o.shape(0)[2:]))


@rule("MaxPoolGrad", "com.microsoft::MaxPoolGrad")
def _max_pool(o: Operator) -> Rule:
    """dY and indices into the whole of dX, which every split must know of.

    Where the window is not stated, an index may lie anywhere, and space stays whole.
    """
    if "kernel_shape" not in o.op.attributes:
        image = labels("s", o.rank(0) - 2, whole=True)
        text = f"n c *..., n c *... -> n c {image}"
        return sharded(o, text, kind="pooling", linear=[(0,)], flops=float(math.prod(o.shape(0))), aware=("n", "c"))
    space = _pooled(o)
    return sharded(
        o,
        f"n c {space.positions}, n c {space.positions} -> n c {space.elements}",
        kind="pooling",
        sizes=space.sizes,
        linear=[(0,)],
        flops=float(math.prod(o.shape(0))),
        aware=("n", "c", *space.factors),
        inner=space.halo("elements", ("n", "c"), o.item_bytes, back=True),
    )


@rule("AveragePoolGrad", "com.microsoft::AveragePoolGrad")
def _average_pool(o: Operator) -> Rule:
    if "kernel_shape" not in o.op.attributes:
        raise KeepWholeError("its window is not stated")
    space = _pooled(o)
    return sharded(
        o,
        f"n c {space.positions} -> n c {space.elements}",
        kind="pooling",
        sizes=space.sizes,
        linear=[(0,)],
        flops=float(math.prod(o.result())),
        aware=space.aware,
        inner=space.halo("elements", ("n", "c"), o.item_bytes, back=True),
    )
