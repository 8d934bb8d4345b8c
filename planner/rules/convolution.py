"""Convolutions and pooling: batch, channels and groups are split; space stays whole (it would need a halo)."""

from __future__ import annotations

import math

from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, Rule

__all__: list[str] = []


def _space(o: Operator, kernel: tuple[int, ...], small: tuple[int, ...], large: tuple[int, ...]) -> tuple[str, str]:
    """Notation of the spatial dimensions on the side of the windows and on the side of the elements.

    Where windows tile a dimension (stride equals kernel, nothing padded or left over), each window owns its
    elements: element dimension = (window, place in the window).
    """
    rank = len(kernel)
    tiled = str(o.attribute("auto_pad", "NOTSET")) in ("NOTSET", "VALID", "") and not o.attribute("output_padding", ())
    strides = tuple(o.attribute("strides", (1,) * rank))
    dilations = tuple(o.attribute("dilations", (1,) * rank))
    pads = tuple(o.attribute("pads", (0,) * 2 * rank))
    windows, elements = [], []
    for d in range(rank):
        solid = kernel[d] == 1 or dilations[d] == 1
        padded = pads[d] or pads[d + rank]
        if tiled and solid and not padded and kernel[d] == strides[d] and small[d] * kernel[d] == large[d]:
            windows.append(f"y{d}")
            elements.append(f"(y{d} w{d}!)" if kernel[d] > 1 else f"y{d}")
        else:
            windows.append("*")
            elements.append("*")
    return " ".join(windows), " ".join(elements)


@rule("Conv")
def _conv(o: Operator) -> Rule:
    """Input channels are contracted within each group; the kernel's dimensions stay whole."""
    weight, out = o.shape(1), o.result()
    y, x = _space(o, weight[2:], out[2:], o.shape(0)[2:])
    return sharded(
        o,
        f"n (g i) {x}, (g o) i *..., +(g o) -> n (g o) {y}",
        kind="conv",
        sizes={"g": int(o.attribute("group", 1)), "i": weight[1]},
        linear=[(0, 2), (1, 2)],
        differentiable=(0, 1, 2),
        saved=(0, 1),
        flops=2.0 * math.prod(out) * math.prod(weight[1:]),
        counts={"group": ("g",)},
    )


@rule("ConvTranspose")
def _conv_transpose(o: Operator) -> Rule:
    """The gradient of a convolution: every input element meets every kernel element of its group."""
    weight, data = o.shape(1), o.shape(0)
    stated = o.attribute("output_shape", ())
    y, x = ("*...", "*...") if stated else _space(o, weight[2:], data[2:], o.result()[2:])
    return sharded(
        o,
        f"n (g i) {y}, (g i) o *..., +(g o) -> n (g o) {x}",
        kind="conv",
        sizes={"g": int(o.attribute("group", 1)), "o": weight[1]},
        linear=[(0, 2), (1, 2)],
        differentiable=(0, 1, 2),
        saved=(0, 1),
        flops=2.0 * math.prod(data) * math.prod(weight[1:]),
        counts={"group": ("g",)},
    )


@rule("AveragePool", "LpPool", "MaxPool")
def _pool(o: Operator) -> Rule:
    """MaxPool's second result numbers elements of the whole tensor, so that nothing may be split for it."""
    kernel = tuple(int(k) for k in o.attribute("kernel_shape", ()))
    y, x = _space(o, kernel, o.result()[2:], o.shape(0)[2:])
    average = o.type == "AveragePool"
    text = "*... -> *..., *..." if o.yields(1) else f"n c {x} -> n c {y}"
    return sharded(
        o,
        text,
        kind="reduction",
        linear=[(0,)] if average else [],
        differentiable=(0,),
        saved=() if average else (0,),
        saved_results=() if average else (0, 1),
        flops=float(math.prod(kernel) * math.prod(o.result())),
    )


def _global_pool(o: Operator, combine: Combine, *, linear: bool) -> Rule:
    space = [f"x{i}" for i in range(o.rank(0) - 2)]
    return sharded(
        o,
        f"n c {' '.join(space)} -> n c {' '.join('1' for _ in space)}",
        kind="reduction",
        combine=dict.fromkeys(space, combine),
        linear=[(0,)] if linear else [],
        differentiable=(0,),
        saved=() if linear else (0,),
        saved_results=() if linear else (0,),
        flops=float(math.prod(o.shape(0))),
    )


@rule("GlobalAveragePool")
def _global_average_pool(o: Operator) -> Rule:
    return _global_pool(o, Combine.MEAN, linear=True)


@rule("GlobalMaxPool")
def _global_max_pool(o: Operator) -> Rule:
    return _global_pool(o, Combine.MAX, linear=False)


@rule("GlobalLpPool")
def _global_lp_pool(o: Operator) -> Rule:
    """A root is taken of the sum over space, which therefore stays whole."""
    space = "*..." if o.rank(0) > 2 else ""
    return sharded(
        o,
        f"n c {space} -> n c {space}",
        kind="reduction",
        differentiable=(0,),
        saved=(0,),
        saved_results=(0,),
        flops=2.0 * math.prod(o.shape(0)),
    )


@rule("LRN")
def _lrn(o: Operator) -> Rule:
    """Each element is scaled by a window over channels, which stay whole."""
    return sharded(
        o,
        "n c! x... -> n c! x...",
        kind="normalization",
        differentiable=(0,),
        saved=(0,),
        saved_results=(0,),
        flops=float(2 * int(o.attribute("size", 1)) + 8) * math.prod(o.shape(0)),
    )
