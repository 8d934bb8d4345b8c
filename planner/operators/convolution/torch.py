"""Convolutions with whole space."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.nn import functional

from planner.runtime.registry import Call, operator

__all__ = ["padding_of"]

_FORWARD: tuple[Callable[..., Tensor], ...] = (functional.conv1d, functional.conv2d, functional.conv3d)
_TRANSPOSED: tuple[Callable[..., Tensor], ...] = (
    functional.conv_transpose1d,
    functional.conv_transpose2d,
    functional.conv_transpose3d,
)

Ints = tuple[int, ...]


def padding_of(c: Call, space: Sequence[int], kernel: Sequence[int]) -> tuple[Ints, Ints]:
    """Padding before and behind each dimension of space."""
    rank, mode = len(space), c.attr("auto_pad", "NOTSET")
    if mode == "VALID":
        return (0,) * rank, (0,) * rank
    if mode.startswith("SAME"):
        strides, dilations = _steps(c, rank)
        total = [
            max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
            for n, k, s, d in zip(space, kernel, strides, dilations, strict=True)
        ]
        less, more = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        return (less, more) if mode == "SAME_UPPER" else (more, less)
    pads = tuple(c.attr("pads") or (0,) * 2 * rank)
    return pads[:rank], pads[rank:]


def _steps(c: Call, rank: int) -> tuple[Ints, Ints]:
    """Strides and dilations."""
    return tuple(c.attr("strides") or (1,) * rank), tuple(c.attr("dilations") or (1,) * rank)


@operator("Conv")
def _convolution(c: Call) -> Tensor | None:
    """torch's own padding is alike on both sides."""
    rank, weight = c.x.ndim - 2, c.operand(1)
    if rank not in (1, 2, 3):
        return None
    begin, end = padding_of(c, c.x.shape[2:], weight.shape[2:])
    x, padding = c.x, begin
    if begin != end:
        x = functional.pad(c.x, [w for d in reversed(range(rank)) for w in (begin[d], end[d])])
        padding = (0,) * rank
    strides, dilations = _steps(c, rank)
    return _FORWARD[rank - 1](x, weight, c.maybe(2), strides, padding, dilations, int(c.attr("group", 1)))


@operator("ConvTranspose")
def _transposed(c: Call) -> Tensor | None:
    """All that the windows write, less the padding on both sides, and zeros behind it on request."""
    rank, weight, bias = c.x.ndim - 2, c.operand(1), c.maybe(2)
    if rank not in (1, 2, 3):
        return None
    strides, dilations = _steps(c, rank)
    behind = tuple(c.attr("output_padding") or (0,) * rank)
    written = [
        (n - 1) * s + d * (k - 1) + 1
        for n, s, d, k in zip(c.x.shape[2:], strides, dilations, weight.shape[2:], strict=True)
    ]
    begin, end = _written_padding(c, written, behind, strides)
    groups = int(c.attr("group", 1))
    function = _TRANSPOSED[rank - 1]
    if begin == end and all(o < max(s, d) for o, s, d in zip(behind, strides, dilations, strict=True)):
        return function(c.x, weight, bias, strides, begin, behind, groups, dilations)
    y = function(c.x, weight, None, strides, 0, 0, groups, dilations)
    y = functional.pad(y, [w for d in reversed(range(rank)) for w in (-begin[d], behind[d] - end[d])])
    return y if bias is None else y + bias.reshape(-1, *(1,) * rank)


def _written_padding(c: Call, written: Sequence[int], behind: Ints, strides: Ints) -> tuple[Ints, Ints]:
    rank, mode = len(written), c.attr("auto_pad", "NOTSET")
    sizes = tuple(c.attr("output_shape") or ())[-rank:]
    if not sizes and mode.startswith("SAME"):
        sizes = tuple(n * s for n, s in zip(c.x.shape[2:], strides, strict=True))
    if sizes:
        total = [w + o - n for w, o, n in zip(written, behind, sizes, strict=True)]
        less, more = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        return (less, more) if mode == "SAME_UPPER" else (more, less)
    pads = (0,) * 2 * rank if mode == "VALID" else tuple(c.attr("pads") or (0,) * 2 * rank)
    return pads[:rank], pads[rank:]
