"""Operators that only move elements: all of them are linear, so that pending sums pass through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from planner.rules.movement import moving
from planner.rules.moves import channel_exchange, data_operands, moves_of
from planner.rules.notation import labels
from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import rule
from planner.rules.reshape import reshape_text
from planner.rules.rule import InnerCollective, Rule

__all__: list[str] = []


def _move(
    o: Operator,
    text: str,
    *,
    kind: str = "layout",
    sizes: Mapping[str, int] | None = None,
    shape_operand: int | None = None,
    inner: Iterable[InnerCollective] = (),
    aware: Iterable[str] = (),
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
        inner=inner,
        aware=aware,
    )


def _reshape(o: Operator, shape_operand: int | None, *, states_shape: bool = False) -> Rule:
    """`states_shape`: what the operator itself says of the result's shape holds for the whole alone."""
    source, target, sizes = reshape_text(o.shape(0), o.result())
    rest = ", -" * (len(o.inputs) - 1)
    if states_shape and 0 in o.shape(0):
        raise KeepWholeError("it has no elements and states the shape of the whole")
    aware = sizes if states_shape else ()
    return _move(o, f"{source}{rest} -> {target}", kind="free", sizes=sizes, shape_operand=shape_operand, aware=aware)


@rule("Reshape")
def _reshape_rule(o: Operator) -> Rule:
    return _reshape(o, 1) if o.has(1) else _reshape(o, None, states_shape=True)


@rule("Flatten")
def _flatten(o: Operator) -> Rule:
    return _reshape(o, None)


@rule("Unsqueeze")
def _unsqueeze(o: Operator) -> Rule:
    return _reshape(o, None)


@rule("Squeeze")
def _squeeze(o: Operator) -> Rule:
    """Without axes it must know which dimensions have one element in the whole, and which only in a shard."""
    return _reshape(o, None, states_shape=not o.has(1) and "axes" not in o.op.attributes)


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
    return moving(o, moves_of(o), data_operands(o))


@rule("Slice")
def _slice(o: Operator) -> Rule:
    return moving(o, moves_of(o))


@rule("Split")
def _split(o: Operator) -> Rule:
    """Lengths are those of the whole, even of a single part.  Equal parts that are each split by themselves stay where
    they are: `q` counts them."""
    axis, count = o.axis(0), len(o.outputs)
    if o.parts and o.parts[0] and o.parts[0][axis] == count:
        names = [f"d{d}" for d in range(o.rank(0))]
        whole = [*names[:axis], f"(q! d{axis})", *names[axis + 1 :]]
        rest = ", -" * (len(o.inputs) - 1)
        text = f"{' '.join(whole)}{rest} -> {', '.join([' '.join(names)] * count)}"
        return _move(o, text, sizes={"q": count}, aware=[f"d{axis}"])
    return moving(o, moves_of(o), aware=[o.axis(0)])


@rule("CenterCropPad")
def _center_crop_pad(o: Operator) -> Rule:
    """Sizes are those of the whole, even where a dimension keeps its own."""
    rank = o.rank(0)
    return moving(o, moves_of(o), aware=[int(a) % rank for a in o.attribute("axes", range(rank))])


@rule("Pad")
def _pad(o: Operator) -> Rule:
    """Linear in the operand, and in the constant that it pads with unless that is zero."""
    moves, value = moves_of(o), o.value(2)
    constant = bool(moves) and o.attribute("mode", "constant") == "constant"
    filled = constant and o.has(2) and (value is None or bool(np.any(value)))
    linear = not constant or o.attribute("value", 0.0) == 0.0
    return moving(o, moves, linear=linear, added=[2] if filled else [])


@rule("Tile")
def _tile(o: Operator) -> Rule:
    """Copies are split among ranks that all hold the operand; elements only where there is one copy per rank.

    To split the elements among fewer ranks would mean to gather nearly all of them.
    """
    if len(o.shape(0)) != len(o.result()):
        raise KeepWholeError("its result is said to have another number of dimensions than its operand")
    copies = {f"k{i}": b // a if a else 1 for i, (a, b) in enumerate(zip(o.shape(0), o.result(), strict=True))}
    operand = [f"d{i}" if a else "*" for i, a in enumerate(o.shape(0))]
    result = [f"(k{i} d{i})" if a else "*" for i, a in enumerate(o.shape(0))]
    return _move(o, f"{' '.join(operand)}, - -> {' '.join(result)}", sizes=copies, aware=copies)


@rule("Trilu")
def _trilu(o: Operator) -> Rule:
    """Rows and columns are compared with each other by their places in the whole."""
    return _move(o, "d... r c, - -> d... r c", aware=["r", "c"])


@rule("DepthToSpace", "SpaceToDepth")
def _blocks(o: Operator) -> Rule:
    """Blocks of p × q come from, or become, channels: their minor part in mode CRD, so that channels split like any
    other dimension; their major part in mode DCR, where split channels are brought into the other order."""
    block = int(o.attribute("blocksize", 1))
    deep, wide = "n (c p! q!) h w", "n c (h p!) (w q!)"
    source, target = (deep, wide) if o.type == "DepthToSpace" else (wide, deep)
    sizes = {"c": (o.result() if o.type == "DepthToSpace" else o.shape(0))[1], "p": block, "q": block}
    if o.attribute("mode", "DCR") == "CRD":
        return _move(o, f"{source} -> {target}", sizes=sizes)
    inner = channel_exchange(o, sizes["c"], block, ("n", "h", "w"))
    return _move(o, f"{source} -> {target}", sizes=sizes, inner=inner, aware=["c"])


@rule("ReverseSequence")
def _reverse_sequence(o: Operator) -> Rule:
    """Each element of the batch reverses its own first steps.

    Time stays whole: which step a shard needs is known at run time alone, so that all of them would be gathered.
    """
    batch, time = int(o.attribute("batch_axis", 1)), int(o.attribute("time_axis", 0))
    names = [f"d{i}" for i in range(o.rank(0))]
    names[batch], names[time] = "b", "t!"
    return _move(o, f"{' '.join(names)}, b -> {' '.join(names)}")
