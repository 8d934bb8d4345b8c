"""Pools and local responses with whole space."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from planner.kernels.attributes import Window, window
from planner.operators.pooling.rule import response_reach
from planner.operators.pooling.split_response import grown_channels
from planner.runtime.arrays import driven
from planner.runtime.registry import Call, operator

__all__: list[str] = []

_AVERAGES: tuple[Callable[..., Tensor], ...] = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)
_MAXIMA: tuple[Callable[..., Tensor], ...] = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)


def _window(c: Call) -> Window:
    """The window over the operand's space; its end is padded as far as its last position reaches."""
    kernel = tuple(int(k) for k in c.attr("kernel_shape"))
    rank = len(kernel)
    space = tuple(c.x.shape[2:])
    strides = tuple(c.attr("strides") or (1,) * rank)
    dilations = tuple(c.attr("dilations") or (1,) * rank)
    pads = tuple(c.attr("pads") or (0,) * 2 * rank)
    mode = c.attr("auto_pad", "NOTSET")
    pads = (0,) * 2 * rank if mode == "VALID" else pads
    if c.shapes and c.shapes[0] is not None:
        positions = tuple(c.shapes[0][2:])
    elif mode.startswith("SAME"):
        positions = tuple(-(-n // s) for n, s in zip(space, strides, strict=True))
    else:
        positions = tuple(
            _positions(n, k, s, d, b, e, up=bool(c.attr("ceil_mode", 0)))
            for n, k, s, d, b, e in zip(space, kernel, strides, dilations, pads[:rank], pads[rank:], strict=True)
        )
    return window(c.op, space, kernel, positions)


def _positions(n: int, k: int, s: int, d: int, begin: int, end: int, *, up: bool) -> int:
    """How many positions a window has; rounded up, none begins in the padding at the end."""
    room = n + begin + end - d * (k - 1) - 1
    count = -(-room // s) + 1 if up else room // s + 1
    return count - 1 if up and (count - 1) * s >= n + begin else count


def _reach(w: Window, space: Sequence[int]) -> tuple[int, ...]:
    """What is to be padded at the ends, for the last position to lie inside, or cut off where it is negative."""
    return tuple(
        (o - 1) * s + d * (k - 1) + 1 - n - b
        for o, s, d, k, n, b in zip(w.outputs, w.strides, w.dilations, w.kernel, space, w.begin, strict=True)
    )


def _flat(begin: Sequence[int], end: Sequence[int]) -> list[int]:
    """As `functional.pad` has widths."""
    return [width for d in reversed(range(len(begin))) for width in (begin[d], end[d])]


def _plain(w: Window, space: Sequence[int]) -> bool:
    """Whether torch can say the padding: alike on both sides, at most half of the window, positions rounded down."""
    floor = (
        (n + 2 * b - d * (k - 1) - 1) // s + 1
        for n, b, d, k, s in zip(space, w.begin, w.dilations, w.kernel, w.strides, strict=True)
    )
    small = all(2 * b <= k for b, k in zip(w.begin, w.kernel, strict=True))
    return w.begin == w.end and small and tuple(floor) == w.outputs


@operator("MaxPool")
def _max_pool(c: Call) -> Sequence[Tensor] | None:
    """Indices number the elements of the whole operand."""
    whole = c.x if c.x.is_floating_point() else c.x.float()  # bytes, which a float holds exactly
    if c.x.ndim not in (3, 4, 5) or (whole is not c.x and c.x.element_size() > 1):
        return None
    w, space = _window(c), tuple(c.x.shape[2:])
    function = _MAXIMA[len(space) - 1]
    if _plain(w, space):
        x, begin, padding = whole, (0,) * len(space), w.begin
    else:
        x = functional.pad(whole, _flat(w.begin, _reach(w, space)), value=-math.inf)
        begin, padding = w.begin, (0,) * len(space)
    if not c.yields(1):
        return [function(x, w.kernel, w.strides, padding, w.dilations).to(c.x.dtype)]
    y, places = function(x, w.kernel, w.strides, padding, w.dilations, return_indices=True)
    at: list[Tensor] = []
    for n, b in zip(reversed(x.shape[2:]), reversed(begin), strict=True):
        at.insert(0, places % n - b)
        places = places // n
    order = list(range(len(space)))[:: -1 if c.attr("storage_order", 0) else 1]
    images = torch.arange(math.prod(x.shape[:2]), device=x.device)
    flat = images.reshape(*x.shape[:2], *(1,) * len(space))
    for d in order:
        flat = flat * space[d] + at[d]
    return [y.to(c.x.dtype), flat]


def _sums(x: Tensor, w: Window) -> Tensor:
    """Of every window of what is padded already."""
    rank = len(w.kernel)
    if all(d == 1 for d in w.dilations):
        return _AVERAGES[rank - 1](x, w.kernel, w.strides) * math.prod(w.kernel)
    total: Tensor | None = None
    for place in itertools.product(*map(range, w.kernel)):
        starts = [p * d for p, d in zip(place, w.dilations, strict=True)]
        region = tuple(slice(b, b + (o - 1) * s + 1, s) for b, o, s in zip(starts, w.outputs, w.strides, strict=True))
        part = x[(slice(None), slice(None), *region)]
        total = part if total is None else total + part
    assert total is not None
    return total


@operator("AveragePool")
def _average_pool(c: Call) -> Tensor | None:
    """Padding counts on request; what lies beyond it never does."""
    w, space = _window(c), tuple(c.x.shape[2:])
    if len(space) not in (1, 2, 3):
        return None
    counts = bool(c.attr("count_include_pad", 0))
    if _plain(w, space) and all(d == 1 for d in w.dilations):
        return _AVERAGES[len(space) - 1](c.x, w.kernel, w.strides, w.begin, False, counts)
    reach = _reach(w, space)
    end = tuple(min(e, r) for e, r in zip(w.end, reach, strict=True))
    ones = torch.ones((1, 1, *space), dtype=c.x.dtype, device=c.x.device)
    ones = functional.pad(ones, _flat(w.begin, end), value=1.0 if counts else 0.0)
    ones = functional.pad(ones, _flat((0,) * len(space), [r - e for r, e in zip(reach, end, strict=True)]))
    return _sums(functional.pad(c.x, _flat(w.begin, reach)), w) / _sums(ones, w)


@operator("LpPool")
def _lp_pool(c: Call) -> Tensor | None:
    w, p, space = _window(c), int(c.attr("p", 2)), tuple(c.x.shape[2:])
    if len(space) not in (1, 2, 3):
        return None
    return _sums(functional.pad(c.x.abs() ** p, _flat(w.begin, _reach(w, space))), w) ** (1 / p)


@operator("GlobalAveragePool")
def _global_average_pool(c: Call) -> Tensor:
    return c.x.mean(tuple(range(2, c.x.ndim)), keepdim=True)


@operator("GlobalMaxPool")
def _global_max_pool(c: Call) -> Tensor:
    """Elements that tie share the gradient."""
    return torch.amax(c.x, tuple(range(2, c.x.ndim)), keepdim=True)


@operator("LRN", aware=True)
def _lrn(c: Call) -> Tensor:
    """Each element over a power of the squares of its channel's neighbours, of which other ranks may hold some."""
    size, own = int(c.attr("size")), c.x.shape[1]
    before, after = response_reach(size)
    x, first = c.x, 0
    if c.place.splits("c"):
        x = driven(grown_channels(c.x, before, after, c.place), c)
        first = min(before, c.place.index["c"] * own)
    channels = x.shape[1]
    squares = functional.pad(torch.square(x), [*(0, 0) * (x.ndim - 2), before, after])
    total = squares.narrow(1, 0, channels)
    for i in range(1, size):
        total = total + squares.narrow(1, i, channels)
    scale = float(c.attr("bias", 1.0)) + float(c.attr("alpha", 1e-4)) / size * total
    return (x * scale ** -float(c.attr("beta", 0.75))).narrow(1, first, own)
