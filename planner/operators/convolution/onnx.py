"""Convolutions and pools while space is split: the operator itself, on elements with their halo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.emit.onnx.ranks.local import Local, refusal
from planner.emit.onnx.ranks.registry import Operands, lowers, needed
from planner.emit.onnx.ranks.transport import collect
from planner.emit.onnx.ranks.writer import Value, Writer
from planner.frontends.file.nodes import node_of
from planner.ir import Op
from planner.kernels.window import FIRST, Reach, explicit, local_space
from planner.rules.window import Range, Side, Window

__all__: list[str] = []

_WEIGHT = {"QLinearConv": 3}  # operand with the weights, where it is not 1


@lowers("Conv", "ConvInteger", "QLinearConv")
def _convolution(w: Writer, here: Local, operands: Operands) -> list[Value]:
    weight = needed(operands[_WEIGHT.get(here.op.type, 1)])
    space = local_space(here.op, weight.dims[FIRST:], here.place)
    grown = _fetched(w, needed(operands[0]), space, "elements", here)
    return _written(w, explicit(here.op, space), [grown, *operands[1:]], here)


@lowers("AveragePool", "LpPool", "MaxPool")
def _pool(w: Writer, here: Local, operands: Operands) -> list[Value]:
    if len(here.op.outputs) > 1 and here.op.outputs[1]:
        raise refusal(here.op, here.place, "it gives indices, which count in the whole tensor")
    space = local_space(here.op, here.op.attributes["kernel_shape"], here.place)
    grown = _fetched(w, needed(operands[0]), space, "elements", here)
    return _written(w, explicit(here.op, space), [grown], here)


@lowers("ConvTranspose")
def _transposed(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """All windows that write this rank's elements, unpadded; what they write beyond these elements is dropped."""
    x, weight = needed(operands[0]), needed(operands[1])
    bias = operands[2] if len(operands) > 2 else None
    space = local_space(here.op, weight.dims[FIRST:], here.place, transposed=True)
    grown = _fetched(w, x, space, "positions", here)
    dropped = ("auto_pad", "pads", "output_padding", "output_shape")
    attributes = {k: v for k, v in here.op.attributes.items() if k not in dropped}
    plain = replace(here.op, attributes=attributes, inputs=here.op.inputs[:2])
    channels = weight.dims[1] * int(here.op.attributes.get("group", 1))
    covered = [r.window.read_by(r.needed("positions")) for r in space]
    shape = (x.dims[0], channels, *(stop - first for first, stop in covered))
    (y,) = _written(w, plain, [grown, weight], here, shape)
    for r, have in zip(space, covered, strict=True):
        y = _fitted(w, y, r.dim, have, r.own("elements"))
    if bias is None:
        return [y]
    return [w.join("Add", y, w.reshape(bias, (channels, *(1,) * len(space))))]


def _fetched(w: Writer, x: Value, space: Sequence[Reach[Window]], side: Side, here: Local) -> Value:
    """The shard grown to all that this rank needs, one dimension after the other, so that corners come along."""
    for reach in space:
        wanted = reach.wanted(side)
        if wanted:
            x = collect(w, x, reach.dim, wanted, reach.factor, here)
        else:
            (first, stop), (start, _) = reach.needed(side), reach.own(side)
            x = w.slice(x, reach.dim, first - start, stop - start)
    return x


def _fitted(w: Writer, x: Value, dim: int, have: Range, want: Range) -> Value:
    """The range `want` of a tensor that is zero outside the range `have`, which `x` holds."""

    def zeros(width: int) -> list[Value]:
        return [w.filled((*x.dims[:dim], width, *x.dims[dim + 1 :]), x.dtype)] if width else []

    first, stop = max(have[0], want[0]), min(have[1], want[1])
    if stop <= first:
        return zeros(want[1] - want[0])[0]
    part = w.slice(x, dim, first - have[0], stop - have[0])
    return w.concat([*zeros(first - want[0]), part, *zeros(want[1] - stop)], dim)


def _written(w: Writer, op: Op, operands: Operands, here: Local, shape: tuple[int, ...] | None = None) -> list[Value]:
    """The operator as a node, with one result."""
    known = here.shapes[0] if shape is None else shape
    first = needed(operands[0])
    dtype = {"ConvInteger": "int32"}.get(op.type, first.dtype)
    if op.type == "QLinearConv":
        dtype = needed(operands[7]).dtype
    y = w.declare(w.fresh(f"{op.name}/local"), dtype, known)
    names = tuple(x.name if x is not None else "" for x in operands)
    w.raw(node_of(replace(op, inputs=names, outputs=(y.name,))))
    return [y]
