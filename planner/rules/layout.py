"""Operators that only move elements: all of them are linear, so that pending sums pass through."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from planner.rules.notation import labels
from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import rule
from planner.rules.reshape import reshape_text
from planner.rules.rule import Rule

__all__: list[str] = []


def _move(
    o: Operator,
    text: str,
    *,
    kind: str = "layout",
    sizes: Mapping[str, int] | None = None,
    shape_operand: int | None = None,
) -> Rule:
    """Linear in the first operand, which has a gradient; no arithmetic."""
    return sharded(
        o,
        text,
        kind=kind,
        sizes=sizes,
        linear=[(0,)],
        differentiable=(0,),
        flops=0.0,
        shape_operand=shape_operand,
    )


def _reshape(o: Operator, shape_operand: int | None) -> Rule:
    source, target, sizes = reshape_text(o.shape(0), o.result())
    rest = ", -" * (len(o.inputs) - 1)
    return _move(o, f"{source}{rest} -> {target}", kind="free", sizes=sizes, shape_operand=shape_operand)


@rule("Reshape")
def _reshape_rule(o: Operator) -> Rule:
    if o.opset < 5:
        raise KeepWholeError("before version 5 its target shape is an attribute")
    return _reshape(o, 1)


@rule("Flatten")
def _flatten(o: Operator) -> Rule:
    return _reshape(o, None)


@rule("Unsqueeze")
def _unsqueeze(o: Operator) -> Rule:
    return _reshape(o, None)


@rule("Squeeze")
def _squeeze(o: Operator) -> Rule:
    if not o.has(1) and "axes" not in o.op.attributes:
        raise KeepWholeError("without axes it would also drop dimensions that a split leaves with one element")
    return _reshape(o, None)


@rule("Transpose")
def _transpose(o: Operator) -> Rule:
    rank = o.rank(0)
    order = [int(p) for p in o.attribute("perm", range(rank - 1, -1, -1))]
    return _move(o, f"{labels('d', rank)} -> {' '.join(f'd{p}' for p in order)}")


@rule("Expand")
def _expand(o: Operator) -> Rule:
    return _move(o, "d..., - -> d...", shape_operand=1)


@rule("Concat")
def _concat(o: Operator) -> Rule:
    rank = o.rank(0)
    axis = o.axis(1)
    names = " ".join("*" if i == axis else f"d{i}" for i in range(rank))
    every = range(len(o.inputs))
    text = f"{', '.join([names] * len(o.inputs))} -> {names}"
    return sharded(o, text, kind="layout", linear=[every], differentiable=every, flops=0.0)


@rule("Split")
def _split(o: Operator) -> Rule:
    axis = o.axis(0)
    names = " ".join("*" if i == axis else f"d{i}" for i in range(o.rank(0)))
    return _move(o, f"{names}, - -> {', '.join([names] * len(o.outputs))}")


@rule("Slice")
def _slice(o: Operator) -> Rule:
    """A dimension is untouched when it keeps its size under a positive step."""
    rank = o.rank(0)
    steps = o.ints(4, "steps")
    backwards: set[int] = set()
    if steps and min(steps) < 0:
        axes = o.ints(3, "axes") or tuple(range(len(steps)))
        backwards = {a % rank for a, s in zip(axes, steps, strict=True) if s < 0}
    same = {i for i, (a, b) in enumerate(zip(o.shape(0), o.result(), strict=True)) if a == b} - backwards
    names = " ".join(f"d{i}" if i in same else "*" for i in range(rank))
    return _move(o, f"{names}, -, -, -, - -> {names}")


@rule("Pad")
def _pad(o: Operator) -> Rule:
    """Linear unless it pads with a constant other than zero.  Padded dimensions stay whole."""
    rank = o.rank(0)
    pads = o.ints(1, "pads") or o.ints(1, "paddings") or (0,) * (2 * rank)
    axes = o.ints(3, "axes") or tuple(range(rank))
    touched = {a % rank for a, before, after in zip(axes, pads, pads[len(axes) :], strict=False) if before or after}
    names = " ".join("*" if i in touched else f"d{i}" for i in range(rank))
    value = o.value(2)
    zero = o.attribute("value", 0.0) == 0.0 and (not o.has(2) or (value is not None and not np.any(value)))
    linear = o.attribute("mode", "constant") != "constant" or zero
    text = f"{names}, -, -, - -> {names}"
    return sharded(o, text, kind="layout", linear=[(0,)] if linear else [], differentiable=(0,), flops=0.0)


@rule("Tile")
def _tile(o: Operator) -> Rule:
    same = [a == b for a, b in zip(o.shape(0), o.result(), strict=True)]
    names = " ".join(f"d{i}" if s else "*" for i, s in enumerate(same))
    return _move(o, f"{names}, -, - -> {names}")


@rule("Trilu")
def _trilu(o: Operator) -> Rule:
    return _move(o, "d... r! c!, - -> d... r! c!")


@rule("DepthToSpace")
def _depth_to_space(o: Operator) -> Rule:
    """Blocks of p × q come from the channels: their major part in mode DCR, their minor part in mode CRD."""
    channels = "(c p! q!)" if o.attribute("mode", "DCR") == "CRD" else "(p! q! c)"
    block = int(o.attribute("blocksize", 1))
    sizes = {"c": o.result()[1], "p": block, "q": block}
    return _move(o, f"n {channels} h w -> n c (h p!) (w q!)", sizes=sizes)


@rule("SpaceToDepth")
def _space_to_depth(o: Operator) -> Rule:
    block = int(o.attribute("blocksize", 1))
    sizes = {"c": o.shape(0)[1], "p": block, "q": block}
    return _move(o, "n c (h p!) (w q!) -> n (p! q! c) h w", sizes=sizes)


@rule("Resize", "Upsample")
def _resize(o: Operator) -> Rule:
    """Interpolation is linear; a dimension resized by exactly one is untouched."""
    rank = o.rank(0)
    if o.attribute("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        raise KeepWholeError("its region of interest cuts every dimension")
    operand = 1 if o.type == "Upsample" or o.opset < 11 else 2
    given = None if o.has(3) else o.ints(operand, "scales")
    same = [a == b for a, b in zip(o.shape(0), o.result(), strict=True)]
    if given is not None and not o.has(3):
        value = o.value(operand)
        scales = np.ravel(o.attribute("scales", ()) if value is None else value)
        axes = [int(a) % rank for a in o.attribute("axes", range(rank))]
        unit = {a for a, s in zip(axes, scales, strict=True) if float(s) == 1.0} | (set(range(rank)) - set(axes))
        same = [s and i in unit for i, s in enumerate(same)]
    # Sizes along untouched dimensions are stated in operand 3 for some axes only when `axes` is given.
    elif "axes" in o.op.attributes:
        same = [s and i not in {int(a) % rank for a in o.attribute("axes", ())} for i, s in enumerate(same)]
    names = " ".join(f"d{i}" if s else "*" for i, s in enumerate(same))
    shape_operand = 3 if o.has(3) and "axes" not in o.op.attributes else None
    return sharded(
        o,
        f"{names}, -, -, - -> {names}",
        kind="layout",
        linear=[(0,)],
        differentiable=(0,),
        flops=8.0 * math.prod(o.result()),
        shape_operand=shape_operand,
    )


@rule("ReverseSequence")
def _reverse_sequence(o: Operator) -> Rule:
    """Each element of the batch reverses its own first steps; time stays whole."""
    batch, time = int(o.attribute("batch_axis", 1)), int(o.attribute("time_axis", 0))
    names = [f"d{i}" for i in range(o.rank(0))]
    names[batch], names[time] = "b", "t!"
    return _move(o, f"{' '.join(names)}, b -> {' '.join(names)}")
