"""Operators that read features at computed places, and those that fold or slide along one sequence.

Places depend on data and may lie anywhere, so that the space they refer to stays whole; batch, channels, regions and
the places themselves are split.
"""

from __future__ import annotations

import math

from planner.rules.notation import labels
from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Rule

__all__: list[str] = []


@rule("Col2Im")
def _col2im(o: Operator) -> Rule:
    """Columns are added up into an image, channel by channel."""
    return sharded(
        o,
        "n (c k!) *, -, - -> n c *...",
        kind="gather",
        sizes={"c": o.result()[1]},
        linear=[(0,)],
        differentiable=(0,),
        flops=float(math.prod(o.shape(0))),
    )


@rule("CausalConvWithState")
def _causal_conv(o: Operator) -> Rule:
    """A depthwise convolution over time, with the last steps of the past: time stays whole."""
    plain = o.attribute("activation", "none") in ("none", b"none", "")
    return sharded(
        o,
        "n c t!, c * *, c, n c * -> n c t!, n c *",
        kind="conv",
        linear=[(0, 2, 3)] if plain else [],
        differentiable=(0, 1, 2, 3),
        saved=(0, 1, 3) if plain else (0, 1, 2, 3),
        flops=2.0 * math.prod(o.result()) * o.shape(1)[-1],
    )


@rule("AffineGrid")
def _affine_grid(o: Operator) -> Rule:
    """Places follow from their own coordinates: each rank makes those of its part."""
    return sharded(
        o,
        f"n * *, - -> n {labels('s', len(o.result()) - 2)} *",
        linear=[(0,)],
        differentiable=(0,),
        flops=float(math.prod(o.result()) * 2 * o.shape(0)[-1]),
        aware=("n", *(f"s{d}" for d in range(len(o.result()) - 2))),
    )


@rule("GridSample")
def _grid_sample(o: Operator) -> Rule:
    return sharded(
        o,
        "n c *..., n p... * -> n c p...",
        kind="gather",
        linear=[(0,)],
        differentiable=(0, 1),
        saved=(0, 1),
        flops=10.0 * math.prod(o.result()),
    )


@rule("RoiAlign")
def _roi_align(o: Operator) -> Rule:
    """Images `b` are looked up: a rank pools the regions of its own images, and adds zeros for the others."""
    return sharded(
        o,
        "b c * *, r *, r -> r c * *",
        kind="gather",
        linear=[(0,)] if o.attribute("mode", "avg") in ("avg", b"avg") else [],
        differentiable=(0,),
        saved=(0, 1, 2),
        flops=40.0 * math.prod(o.result()),
        aware=("b",),
    )


@rule("MaxRoiPool")
def _max_roi_pool(o: Operator) -> Rule:
    """Regions name their image in their first column."""
    return sharded(
        o,
        "b c * *, r * -> r c * *",
        kind="gather",
        differentiable=(0,),
        saved=(0, 1),
        flops=float(math.prod(o.shape(0)[2:]) * math.prod(o.result()[:2])),
        aware=("b",),
    )


@rule("DeformConv")
def _deform_conv(o: Operator) -> Rule:
    """X, W, offsets, bias, mask.  Groups of offsets are split where they are those of the channels, or all of these."""
    weight, groups, offsets = o.shape(1), int(o.attribute("group", 1)), int(o.attribute("offset_group", 1))
    sizes = {"g": groups, "i": weight[1]}
    counts = {"group": ("g",)}
    x, w, kernel = "(g i)", "i", "*"
    if offsets == groups > 1:
        kernel, counts = "(g k!)", {"group": ("g",), "offset_group": ("g",)}
    elif offsets > 1 and groups == 1:
        x, w, kernel, counts = "(f i)", "(f i)", "(f k!)", {"offset_group": ("f",)}
        sizes = {"f": offsets, "g": 1, "i": weight[1] // offsets}
    elif offsets > 1:
        x, w, kernel = "(g! i!)", "i!", "*"
    mask = kernel.replace("k", "m")
    return sharded(
        o,
        f"n {x} *..., (g o) {w} *..., n {kernel} *..., +(g o), n {mask} *... -> n (g o) *...",
        kind="conv",
        sizes=sizes,
        linear=[(0, 3), (1, 3), *([(3, 4)] if o.has(4) else [])],
        differentiable=(0, 1, 2, 3, 4),
        saved=(0, 1, 2, 4),
        flops=10.0 * math.prod(o.result()) * math.prod(weight[1:]),
        counts=counts,
    )
