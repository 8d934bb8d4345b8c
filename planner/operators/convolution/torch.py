"""Convolutions and pools with whole space."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from planner.runtime.registry import Call, operator

__all__: list[str] = []


def _padded(c: Call, value: float) -> tuple[Tensor, tuple[int, ...]] | None:
    """The operand padded as far as torch's symmetric padding cannot say it, and what is left to say; None where the
    padding is computed from the shape."""
    if c.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    rank = c.x.ndim - 2
    pads = tuple(c.attr("pads") or (0,) * 2 * rank)
    begin, end = pads[:rank], pads[rank:]
    if begin == end:
        return c.x, begin
    widths = [w for d in reversed(range(rank)) for w in (begin[d], end[d])]
    return functional.pad(c.x, widths, value=value), (0,) * rank


@operator("Conv")
def _convolution(c: Call) -> Tensor | None:
    padded, rank = _padded(c, 0.0), c.x.ndim - 2
    if padded is None or rank not in (1, 2, 3):
        return None
    x, padding = padded
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
    ones = (1,) * rank
    strides, dilations = c.attr("strides") or ones, c.attr("dilations") or ones
    y: Tensor = function(
        x, c.operand(1), c.maybe(2), tuple(strides), padding, tuple(dilations), int(c.attr("group", 1))
    )
    return y


@operator("MaxPool")
def _max_pool(c: Call) -> Tensor | None:
    padded = _padded(c, float("-inf"))
    kernel = tuple(c.attr("kernel_shape"))
    plain = len(kernel) == 2 and not c.attr("ceil_mode", 0) and sum(bool(n) for n in c.op.outputs) == 1
    if padded is None or not plain:
        return None
    x, padding = padded
    strides, dilations = tuple(c.attr("strides") or (1, 1)), tuple(c.attr("dilations") or (1, 1))
    return functional.max_pool2d(x, kernel, strides, padding, dilations)


@operator("GlobalAveragePool")
def _global_average_pool(c: Call) -> Tensor:
    return c.x.mean(tuple(range(2, c.x.ndim)), keepdim=True)
