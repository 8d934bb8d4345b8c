"""Deformable convolutions over three spatial dimensions: all that the planner knows of them stands in this one module.

    planner::DeformConv3D(x [N, C, D, H, W], weight [M, C/group, kD, kH, kW],
        offset [N, offset_group·kD·kH·kW·3, oD, oH, oW], bias [M] or absent,
        mask [N, offset_group·kD·kH·kW, oD, oH, oW] or absent) -> [N, M, oD, oH, oW]

Operands and attributes (strides, dilations, pads, group, offset_group) mean what they mean to ONNX's DeformConv, which
is defined over any number of spatial dimensions, and which runtimes have for two: one of three is executed with these
kernels.  Every element of the kernel reads x at its own displaced place, interpolated between the eight corners of the
cell around it (trilinear); corners outside of x count as zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.frontends.facts.flops import Shape, counts
from planner.frontends.facts.shapes import UNKNOWN, Inferred, Operands, infers, shape_of
from planner.frontends.facts.sizes import carries
from planner.frontends.facts.weights import weights_at
from planner.frontends.resized.broadcasting import share
from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.gradients import Call, register
from planner.kernels.local import in_place_of_runtime, local_kernel
from planner.kernels.precision import widen
from planner.kernels.split import kernel
from planner.kernels.spmd import Coroutine, ShardContext
from planner.operators.sampling.gradient import Corner, corners
from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Rule
from planner.runtime import registry as on_torch
from planner.verify.uses import Reading, Use, Uses, reads

if TYPE_CHECKING:
    from torch import Tensor

    from planner.frontends.resized.carry import Carrier

__all__: list[str] = []

TYPE = "planner::DeformConv3D"
SPACE = 3
Given = Sequence["Array | None"]
Start = tuple[int, ...]  # the place of a rank's first result in the whole

weights_at((1, 3), TYPE, data=(0,))


@rule(TYPE)
def _rule(o: Operator) -> Rule:
    """Places depend on data and may lie anywhere: the space of x stays whole.  That of the result is split with its
    offsets and mask, where a rank must know which places it computes.  Groups of offsets are split where they are those
    of the channels, or all of these."""
    weight, groups, offsets = o.shape(1), int(o.attribute("group", 1)), int(o.attribute("offset_group", 1))
    sizes = {"g": groups, "i": weight[1]}
    counts = {"group": ("g",)}
    x, w, taps = "(g i)", "i", "*"
    if offsets == groups > 1:
        taps, counts = "(g k!)", {"group": ("g",), "offset_group": ("g",)}
    elif offsets > 1 and groups == 1:
        x, w, taps, counts = "(f i)", "(f i)", "(f k!)", {"offset_group": ("f",)}
        sizes = {"f": offsets, "g": 1, "i": weight[1] // offsets}
    elif offsets > 1:
        x, w = "(g! i!)", "i!"
    mask = taps.replace("k", "m")
    results, depth = math.prod(o.result()), math.prod(weight[1:])
    products = 2.0 * results * depth
    sampling = 2.0 * 2**SPACE * (results // weight[0] * groups * depth)  # one look at all corners of all columns
    return sharded(
        o,
        f"n {x} * * *, (g o) {w} * * *, n {taps} y..., +(g o), n {mask} y... -> n (g o) y...",
        kind="conv",
        sizes=sizes,
        linear=[(0, 3), (1, 3), *([(3, 4)] if o.has(4) else [])],
        differentiable=(0, 1, 2, 3, 4),
        saved=(0, 1, 2, 4),
        flops=products + sampling,
        backward_flops=2 * products + 3 * sampling,  # columns are made anew; gradients of places read the corners again
        counts=counts,
        aware=[f"y{d}" for d in range(SPACE)],
    )


def _attribute(op: Op, name: str, default: int) -> tuple[int, ...]:
    """Of each spatial dimension."""
    return tuple(int(v) for v in op.attributes.get(name) or (default,) * SPACE)


def _space(op: Op, elements: Sequence[int], taps: Sequence[int]) -> tuple[int, ...]:
    """The spatial sizes of the result."""
    strides, dilations = _attribute(op, "strides", 1), _attribute(op, "dilations", 1)
    pads = tuple(op.attributes.get("pads") or (0,) * 2 * SPACE)
    return tuple(
        (size + pads[d] + pads[d + SPACE] - (taps[d] - 1) * dilations[d] - 1) // strides[d] + 1
        for d, size in enumerate(elements)
    )


@infers(TYPE)
def _shape(op: Op, operands: Operands) -> list[Inferred]:
    x, weight, first = shape_of(operands, 0), shape_of(operands, 1), operands[0]
    if x is None or weight is None or first is None or len(x) != 2 + SPACE or len(weight) != 2 + SPACE:
        return [UNKNOWN]
    return [(first.dtype, (x[0], weight[0], *_space(op, x[2:], weight[2:])))]


@counts(TYPE)
def _work(op: Op, shapes: Sequence[Shape | None], out: Shape | None) -> int:
    """That of the convolution."""
    weight = shapes[1]
    return 0 if weight is None or out is None else 2 * math.prod(out) * math.prod(weight[1:])


@carries(TYPE)
def _sizes(c: Carrier, op: Op) -> None:
    """x, offsets and mask have one batch; the space of x decides on that of offsets and mask."""
    x, weight, offset, _, mask = (*op.inputs, "", "")[:5]
    share(c, op, {0: 0, 2: 0, 4: 0})
    c.pass_up(op, op.outputs[0], 0, x, 0)
    space = _space(op, c.after(x)[2:], c.after(weight)[2:])
    for t in filter(None, (offset, mask)):
        for d, size in enumerate(space):
            c.demand(t, 2 + d, size, op)
    c.factors[op.outputs[0]] = (
        c.parts(x)[0],
        c.parts(weight)[0],
        *(((old, new),) for old, new in zip(c.before(op.outputs[0])[2:], space, strict=True)),
    )


@reads(TYPE)
def _values(r: Reading) -> Uses:
    weight = r.shape(1)
    return {1: Use(fan_in=math.prod(weight[1:]), terms=tuple(range(1, len(weight)))), 3: Use(shift=True)}


@dataclass(frozen=True, slots=True)
class _Sampled:
    """What the kernel's elements read: n samples, q groups of offsets, and of these all taps at all results in a row.

    `at` [n, q, taps·results, 3] are places in x, `columns` [n, q, C/q, taps·results] what stands there, `mask` scales
    it, `taps` is the number of taps.
    """

    at: Array
    columns: Array
    mask: Array
    taps: int

    def by_channel(self, values: Array, groups: int) -> Array:
        """[n, group, channels of one · taps, results], as a convolution contracts them."""
        n, q, channels, reads = values.shape
        return values.reshape(n, groups, q * channels // groups * self.taps, reads // self.taps)


def _operands(inputs: Given) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """x, weight, offset, bias and mask; half precision is computed in single."""
    x, weight, offset, bias, mask = (*(None if v is None else widen(v) for v in inputs), None, None)[:5]
    assert x is not None
    assert weight is not None
    assert offset is not None
    return x, weight, offset, bias, mask


def _sample(op: Op, inputs: Given, start: Start) -> _Sampled:
    x, weight, offset, _, mask = _operands(inputs)
    n, parts, out, kernel_shape = len(x), int(op.attributes.get("offset_group", 1)), offset.shape[2:], weight.shape[2:]
    taps = math.prod(kernel_shape)
    strides, begin = _attribute(op, "strides", 1), _attribute(op, "pads", 0)[:SPACE]
    lines = [(f + np.arange(o)) * s - b for f, o, s, b in zip(start, out, strides, begin, strict=True)]
    reach = [np.arange(k) * d for k, d in zip(kernel_shape, _attribute(op, "dilations", 1), strict=True)]
    places = _grid(reach)[:, None] + _grid(lines)  # [taps, results, 3]
    moved = np.moveaxis(offset.reshape(n, parts, taps, SPACE, -1), 3, -1)
    at = (places + moved).reshape(n, parts, -1, SPACE)
    columns = np.zeros((n, parts, x.shape[1] // parts, at.shape[2]), dtype=x.dtype)
    for corner in corners(at, x.shape[2:]):
        columns += _read(x, corner, parts) * corner.weight[:, :, None]
    scale = np.ones((1, 1, 1, 1), dtype=x.dtype) if mask is None else mask.reshape(n, parts, 1, -1)
    return _Sampled(at, columns, scale, taps)


def _grid(lines: Sequence[Array]) -> Array:
    """All points whose coordinates lie on the lines, the last coordinate the fastest: [points, 3]."""
    return np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1).reshape(-1, SPACE)


def _read(x: Array, corner: Corner, parts: int) -> Array:
    """The corner's elements in every channel: [n, q, C/q, reads]."""
    flat = x.reshape(len(x), parts, x.shape[1] // parts, -1)
    return np.take_along_axis(flat, corner.element[:, :, None], axis=3)


def _convolve(op: Op, inputs: Given, start: Start) -> Array:
    x, weight, offset, bias, _ = _operands(inputs)
    groups, sampled = int(op.attributes.get("group", 1)), _sample(op, inputs, start)
    columns = sampled.by_channel(sampled.columns * sampled.mask, groups)
    y = weight.reshape(groups, len(weight) // groups, -1) @ columns
    y = y.reshape(len(x), len(weight), *offset.shape[2:])
    return y if bias is None else y + bias.reshape(-1, *(1,) * SPACE)


def _gradients(op: Op, inputs: Given, dy: Array, start: Start) -> list[Array | None]:
    """Of x, weight, offset, bias and mask."""
    x, weight, offset, _, mask = _operands(inputs)
    groups, s = int(op.attributes.get("group", 1)), _sample(op, inputs, start)
    matrices = weight.reshape(groups, len(weight) // groups, -1)
    g = dy.reshape(len(x), groups, matrices.shape[1], -1)
    d_weight = np.einsum("ngop,ngkp->gok", g, s.by_channel(s.columns * s.mask, groups))
    d_scaled = (np.swapaxes(matrices, 1, 2) @ g).reshape(s.columns.shape)
    d_mask = None if mask is None else (d_scaled * s.columns).sum(axis=2).reshape(mask.shape)
    d_columns = d_scaled * s.mask
    d_x, d_at = np.zeros(x.size), np.zeros(s.at.shape)
    parts, elements = s.columns.shape[1], math.prod(x.shape[2:])
    channel = np.arange(len(x) * x.shape[1]).reshape(*s.columns.shape[:3], 1) * elements
    for corner in corners(s.at, x.shape[2:]):
        where = (channel + corner.element[:, :, None]).reshape(-1)
        shares = (d_columns * corner.weight[:, :, None]).reshape(-1)
        d_x += np.bincount(where, shares, minlength=x.size)
        met = (d_columns * _read(x, corner, parts)).sum(axis=2)
        for d, slope in enumerate(corner.slopes()):
            d_at[..., d] += met * slope
    d_offset = np.moveaxis(d_at.reshape(len(x), parts, s.taps, -1, SPACE), -1, 3)
    d_bias = dy.sum(axis=(0, *range(2, dy.ndim)))
    return [d_x.reshape(x.shape), d_weight.reshape(weight.shape), d_offset.reshape(offset.shape), d_bias, d_mask]


_WHOLE = (0,) * SPACE


@local_kernel(TYPE)
def _forward(op: Op, inputs: Given) -> Sequence[Array | None]:
    x = inputs[0]
    assert x is not None
    return [_convolve(op, inputs, _WHOLE).astype(x.dtype)]


def _of_onnx(op: Op, inputs: Given) -> Sequence[Array | None] | None:
    """ONNX's own over three dimensions; for two there is a runtime."""
    x = inputs[0]
    return None if x is None or x.ndim != 2 + SPACE else _forward(op, inputs)


in_place_of_runtime({"DeformConv": _of_onnx})


@register(TYPE)
def _gradient(c: Call) -> list[Array | None]:
    return _gradients(c.op, c.inputs, c.dy, _WHOLE)


def _start(place: ShardContext) -> Start:
    return tuple(place.offset.get(f"y{d}", 0) for d in range(SPACE))


def _split_forward(op: Op, inputs: Given, place: ShardContext) -> Coroutine:
    x = inputs[0]
    assert x is not None
    return [_convolve(op, inputs, _start(place)).astype(x.dtype)]
    yield  # a generator that never communicates


def _split_backward(
    op: Op, inputs: Given, outputs: Given, gradients: Given, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    dy = gradients[0]
    assert dy is not None
    found = _gradients(op, inputs, widen(dy), _start(place))
    return [
        None if g is None or x is None or not w else g.astype(x.dtype)
        for g, x, w in zip(found, inputs, wanted, strict=False)
    ]
    yield  # a generator that never communicates


kernel([TYPE], _split_forward, _split_backward)


@on_torch.operator(TYPE, "DeformConv", aware=True)
def _on_torch(c: on_torch.Call) -> Tensor | None:
    """PyTorch has none, and samples volumes at given places: of every group of offsets all taps at once."""
    if c.x.ndim != 2 + SPACE:
        return None
    import torch
    from torch.nn import functional

    x, weight, offset, bias, mask = c.x, c.operand(1), c.operand(2), c.maybe(3), c.maybe(4)
    n, parts, groups, taps = len(x), int(c.attr("offset_group", 1)), int(c.attr("group", 1)), weight[0, 0].numel()
    begin, start = _attribute(c.op, "pads", 0)[:SPACE], _start(c.place)
    steps = zip(start, offset.shape[2:], _attribute(c.op, "strides", 1), begin, strict=True)
    lines = [(f + np.arange(o)) * s - b for f, o, s, b in steps]
    reach = [np.arange(k) * d for k, d in zip(weight.shape[2:], _attribute(c.op, "dilations", 1), strict=True)]
    places = torch.from_numpy(_grid(reach)[:, None] + _grid(lines)).to(offset)
    at = places + offset.reshape(n * parts, taps, SPACE, -1).movedim(2, -1)
    sizes = torch.tensor(x.shape[2:]).to(offset)
    grid = ((2 * at + 1) / sizes - 1).flip(-1).unsqueeze(3)  # −1 and 1 are the borders; the last dimension comes first
    volumes = x.reshape(n * parts, -1, *x.shape[2:])
    columns = functional.grid_sample(volumes, grid, align_corners=False).squeeze(4)
    if mask is not None:
        columns = columns * mask.reshape(n * parts, 1, taps, -1)
    matrices = weight.reshape(groups, len(weight) // groups, -1)
    y = (matrices @ columns.reshape(n, groups, matrices.shape[2], -1)).reshape(n, len(weight), *offset.shape[2:])
    return y if bias is None else y + bias.reshape(-1, *(1,) * SPACE)
