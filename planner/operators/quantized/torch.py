"""Quantised operators: integers as the operator says, scaled in the precision of the scales.

Products of integers of eight bits are added up in double precision, which holds them exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from planner.operators.convolution.torch import padding_of
from planner.operators.elementwise.torch import element_type
from planner.runtime.registry import Call, operator

__all__: list[str] = []

_BYTES = (torch.int8, torch.uint8)


def _along(parameter: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """A scale or zero point as it broadcasts to x: one, one per index of `axis`, or one per block of it."""
    axis %= max(x.ndim, 1)
    if block:
        return parameter.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    return parameter.reshape(()) if parameter.numel() == 1 else parameter.reshape(-1, *(1,) * (x.ndim - 1 - axis))


def _steps(c: Call, parameter: Tensor, x: Tensor) -> Tensor:
    return _along(parameter, x, int(c.attr("axis", 1)), int(c.attr("block_size", 0)))


def _rounded(y: Tensor, to: torch.dtype) -> Tensor:
    """To the nearest step, ties to even, within the range of the type."""
    info = torch.iinfo(to)
    return y.clamp(info.min, info.max).to(to)


@operator("QuantizeLinear", "com.microsoft::QuantizeLinear")
def _quantize(c: Call) -> Tensor | None:
    zero, stated = c.maybe(2), int(c.attr("output_dtype", 0))
    to = zero.dtype if zero is not None else element_type(stated) if stated else torch.uint8
    if to not in (*_BYTES, torch.int16) or not c.x.is_floating_point():
        return None
    y = torch.round(c.x / _steps(c, c.operand(1), c.x))
    return _rounded(y if zero is None else y + _steps(c, zero, c.x).to(y.dtype), to)


@operator("DequantizeLinear", "com.microsoft::DequantizeLinear")
def _dequantize(c: Call) -> Tensor | None:
    scale, zero = c.operand(1), c.maybe(2)
    if c.x.dtype not in (*_BYTES, torch.int16, torch.int32):
        return None
    y = c.x.to(torch.int32)
    y = y if zero is None else y - _steps(c, zero, c.x).to(torch.int32)
    return y.to(scale.dtype) * _steps(c, scale, c.x)


@operator("DynamicQuantizeLinear", aware=True)
def _dynamically(c: Call) -> Sequence[Tensor]:
    """Over the range of all elements, zero included."""
    edges = torch.stack([-c.x.amin(), c.x.amax()]).clamp(min=0)
    for factor in c.place.inside():
        edges = c.inside.reduced(edges, factor, "max")
    scale = edges.sum() / 255
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    zero = _rounded(torch.round(edges[0] / scale), torch.uint8)
    return [_rounded(torch.round(c.x / scale) + zero.to(c.x.dtype), torch.uint8), scale.to(c.x.dtype), zero]


def _numbers(x: Tensor, zero: Tensor | None, *, rows: bool) -> Tensor:
    """Less the zero point: one number, one for each row of the left operand, or for each column of the right one."""
    y = x.double()
    if zero is None:
        return y
    z = zero.double()
    if rows:
        z = z.reshape(-1, 1) if z.ndim == 1 and z.numel() > 1 else z
    elif z.ndim > 1 and z.shape[-2] != 1:
        z = z.unsqueeze(-2)
    return y - z


@operator("MatMulInteger")
def _integer_product(c: Call) -> Tensor:
    left, right = _numbers(c.x, c.maybe(2), rows=True), _numbers(c.operand(1), c.maybe(3), rows=False)
    return torch.matmul(left, right).to(torch.int32)


@operator("ConvInteger")
def _integer_convolution(c: Call) -> Tensor | None:
    rank, weight = c.x.ndim - 2, c.operand(1)
    x_zero, w_zero = c.maybe(2), c.maybe(3)
    if rank not in (1, 2, 3):
        return None
    x = c.x.double() if x_zero is None else c.x.double() - x_zero.double()
    w = weight.double()
    if w_zero is not None:
        w = w - (w_zero.double().reshape(-1, *(1,) * (rank + 1)) if w_zero.numel() > 1 else w_zero.double())
    begin, end = padding_of(c, c.x.shape[2:], weight.shape[2:])
    x = functional.pad(x, [n for d in reversed(range(rank)) for n in (begin[d], end[d])])
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
    ones = (1,) * rank
    strides, dilations = tuple(c.attr("strides") or ones), tuple(c.attr("dilations") or ones)
    return function(x, w, None, strides, 0, dilations, int(c.attr("group", 1))).to(torch.int32)
