"""Convolutions and pools: sliding windows and products of BLAS."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, Window, string, window
from planner.kernels.local import in_double
from planner.operators.convolution.gradient import (
    conv_forward,
    conv_input_gradient,
    pad_to_window,
    padded_sizes,
    positions,
    transposed_window,
)
from planner.operators.elementwise.local import activate, logistic
from planner.operators.pooling.gradient import neighbours

__all__ = ["average_pool", "convolve"]

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]
Kernel = Callable[[Op, Operands], "Results | None"]

_CACHE_BYTES = 1 << 20


def _column(bias: Array, x: Array) -> Array:
    return bias.reshape(-1, *(1,) * (x.ndim - 2))


def _outputs(op: Op, spatial: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
    """Positions of the window, as ONNX counts them; `ceil_mode` adds one that begins within the operand."""
    n = len(spatial)
    strides = op.attributes.get("strides") or (1,) * n
    dilations = op.attributes.get("dilations") or (1,) * n
    pads = op.attributes.get("pads") or (0,) * 2 * n
    mode = string(op.attributes.get("auto_pad"), "NOTSET")
    found = []
    for i, size in enumerate(spatial):
        reach = (kernel[i] - 1) * dilations[i] + 1
        if mode.startswith("SAME"):
            found.append(-(-size // strides[i]))
            continue
        whole = size + (0 if mode == "VALID" else pads[i] + pads[i + n])
        free = whole - reach
        count = free // strides[i] + 1
        if op.attributes.get("ceil_mode", 0):
            count = -(-free // strides[i]) + 1
            begin = 0 if mode == "VALID" else pads[i]
            if (count - 1) * strides[i] >= size + begin:
                count -= 1
        found.append(count)
    return tuple(found)


def convolve(op: Op, x: Array, weight: Array) -> Array:
    """Without bias."""
    groups = int(op.attributes.get("group", 1))
    kernel = weight.shape[2:]
    w = window(op, x.shape[2:], kernel, _outputs(op, x.shape[2:], kernel))
    if groups > 1 and weight.shape[1] == 1 and weight.shape[0] == groups:
        return _depthwise(x, weight, w)
    return conv_forward(x, weight, w, groups)


def _depthwise(x: Array, weight: Array, w: Window) -> Array:
    """One kernel per channel: a sum over its elements, a few channels at a time so that they stay in the cache."""
    padded = pad_to_window(x, w)
    n, channels = x.shape[:2]
    out = np.zeros((n, channels, *w.outputs), dtype=x.dtype)
    columns = weight.reshape(channels, -1)
    step = max(1, _CACHE_BYTES // max(1, math.prod(padded.shape[2:]) * x.itemsize * 3))
    for image in range(n):
        for first in range(0, channels, step):
            part = slice(first, first + step)
            total, source, scratch = out[image, part], padded[image, part], np.empty_like(out[image, part])
            for offset, where in positions(w):
                factor = columns[part, np.ravel_multi_index(offset, w.kernel)]
                np.multiply(source[(slice(None), *where)], factor.reshape(-1, *(1,) * len(where)), out=scratch)
                total += scratch
    return out


def _conv(op: Op, inputs: Operands) -> Results | None:
    x, weight, bias = (*inputs, None)[:3]
    if x is None or weight is None:
        return None
    y = convolve(op, x, weight)
    if bias is not None:
        y += _column(bias, y)
    return [y]


def _fused_conv(op: Op, inputs: Operands) -> Results | None:
    """Activation of the convolution, its bias, and a further term."""
    x, weight, bias, added = (*inputs, None, None)[:4]
    if x is None or weight is None:
        return None
    y = convolve(op, x, weight)
    if bias is not None:
        y += _column(bias, y)
    if added is not None:
        y += added
    name = string(op.attributes.get("activation"))
    given = tuple(op.attributes.get("activation_params") or ())
    names = {"LeakyRelu": ("alpha",), "Clip": ("min", "max"), "HardSigmoid": ("alpha", "beta")}.get(name, ())
    return [activate(name, y, dict(zip(names, given, strict=False))) if name else y]


def _conv_transpose(op: Op, inputs: Operands) -> Results | None:
    """The input gradient of a convolution whose window slides over the results."""
    x, weight, bias = (*inputs, None)[:3]
    if x is None or weight is None:
        return None
    n, kernel, a = x.ndim - 2, weight.shape[2:], op.attributes
    strides, dilations = a.get("strides") or (1,) * n, a.get("dilations") or (1,) * n
    extra, pads = a.get("output_padding") or (0,) * n, a.get("pads") or (0,) * 2 * n
    mode = string(a.get("auto_pad"), "NOTSET")
    stated = a.get("output_shape")
    if stated:
        sizes = tuple(int(s) for s in stated)[-n:]
    elif mode.startswith("SAME"):
        sizes = tuple(s * size for s, size in zip(strides, x.shape[2:], strict=True))
    else:
        cut = (0,) * 2 * n if mode == "VALID" else pads
        sizes = tuple(
            strides[i] * (x.shape[2 + i] - 1) + extra[i] + (kernel[i] - 1) * dilations[i] + 1 - cut[i] - cut[i + n]
            for i in range(n)
        )
    w = transposed_window(op, x.shape[2:], kernel, sizes)
    y = conv_input_gradient(x, weight, w, int(a.get("group", 1)), sizes)
    if bias is not None:
        y += _column(bias, y)
    return [y]


def _causal_conv(op: Op, inputs: Operands) -> Results | None:
    """One kernel per channel over the past and the operand; the state is the end of both."""
    x, weight, bias, past = (*inputs, None, None)[:4]
    if x is None or weight is None:
        return None
    kernel, steps = weight.shape[2], x.shape[2]
    before = np.zeros((*x.shape[:2], kernel - 1)) if past is None else past
    line = np.concatenate([before, x], axis=2)
    y = np.zeros_like(x)
    for k in range(kernel):
        y += weight[:, 0, k, None] * line[:, :, k : k + steps]
    if bias is not None:
        y += bias[:, None]
    if string(op.attributes.get("activation"), "none") in ("silu", "swish"):
        y *= logistic(y)
    return [y, line[:, :, line.shape[2] - (kernel - 1) :]]


def _regions(w: Window) -> list[tuple[slice, ...]]:
    return [(slice(None), slice(None), *where) for _, where in positions(w)]


def average_pool(op: Op, x: Array) -> Array:
    """Sums over the window, divided by how many elements each position counts."""
    spatial = x.shape[2:]
    kernel = op.attributes["kernel_shape"]
    w = window(op, spatial, kernel, _outputs(op, spatial, kernel))
    regions = _regions(w)
    padded = pad_to_window(x, w)
    y = padded[regions[0]].copy()
    for r in regions[1:]:
        y += padded[r]
    counted = np.zeros((1, 1, *padded_sizes(spatial, w)))
    padding = bool(op.attributes.get("count_include_pad", 0))
    counted[
        (
            slice(None),
            slice(None),
            *(
                slice(0, b + s + e) if padding else slice(b, b + s)
                for b, s, e in zip(w.begin, spatial, w.end, strict=True)
            ),
        )
    ] = 1
    y /= sum(counted[r] for r in regions)
    return y


def _average_pool(op: Op, inputs: Operands) -> Results | None:
    x = inputs[0]
    return None if x is None else [average_pool(op, x)]


def _max_pool(op: Op, inputs: Operands) -> Results | None:
    x = inputs[0]
    if x is None or any(op.outputs[1:]):
        return None
    kernel = op.attributes["kernel_shape"]
    w = window(op, x.shape[2:], kernel, _outputs(op, x.shape[2:], kernel))
    padded = pad_to_window(x, w, fill=-math.inf)
    first, *rest = _regions(w)
    y = padded[first].copy()
    for r in rest:
        np.maximum(y, padded[r], out=y)
    return [y]


def _lp_pool(op: Op, inputs: Operands) -> Results | None:
    x, p = inputs[0], op.attributes.get("p", 2)
    if x is None:
        return None
    kernel = op.attributes["kernel_shape"]
    w = window(op, x.shape[2:], kernel, _outputs(op, x.shape[2:], kernel))
    powers = pad_to_window(np.abs(x) ** p, w)
    return [np.asarray(sum(powers[r] for r in _regions(w))) ** (1 / p)]


def _max_unpool(op: Op, inputs: Operands) -> Results | None:
    """Elements at the places that indices name in the whole result; as in ONNX Runtime, whatever its stated shape."""
    x, places, stated = (*inputs, None)[:3]
    if x is None or places is None:
        return None
    if stated is not None:
        shape = tuple(int(n) for n in stated)
    else:
        kernel, n = op.attributes["kernel_shape"], x.ndim - 2
        strides, pads = op.attributes.get("strides") or (1,) * n, op.attributes.get("pads") or (0,) * 2 * n
        space = ((x.shape[2 + i] - 1) * strides[i] - pads[i] - pads[i + n] + kernel[i] for i in range(n))
        shape = (*x.shape[:2], *space)
    y = np.zeros(math.prod(shape))
    y[places.reshape(-1)] = x.reshape(-1)
    return [y.reshape(shape)]


def _over_space(function: Callable[..., Array]) -> Kernel:
    def kernel(op: Op, inputs: Operands) -> Results | None:
        x = inputs[0]
        return None if x is None else [function(x, axis=tuple(range(2, x.ndim)), keepdims=True)]

    return kernel


def _global_lp_pool(op: Op, inputs: Operands) -> Results | None:
    x, p = inputs[0], op.attributes.get("p", 2)
    if x is None:
        return None
    return [(np.abs(x) ** p).sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p)]


def _response(op: Op, inputs: Operands) -> Results | None:
    """x·(k + α/n·Σ x²)^-β over n neighbouring channels."""
    x = inputs[0]
    if x is None:
        return None
    size = int(op.attributes["size"])
    total = neighbours(np.square(x), (size - 1) // 2, size - 1 - (size - 1) // 2)
    total *= op.attributes.get("alpha", 1e-4) / size
    total += op.attributes.get("bias", 1.0)
    return [x * total ** -op.attributes.get("beta", 0.75)]


def _max_roi_pool(op: Op, inputs: Operands) -> Results | None:
    """The largest element of each bin of a region, whose borders are rounded to elements; 0 of an empty bin."""
    x, regions = inputs
    if x is None or regions is None:
        return None
    bins = op.attributes["pooled_shape"]
    y = np.zeros((len(regions), x.shape[1], *bins))
    for r, (image, *corners) in enumerate(regions):
        x0, y0, x1, y1 = (math.floor(c * op.attributes.get("spatial_scale", 1.0) + 0.5) for c in corners)
        starts, extents = (y0, x0), (max(y1 - y0 + 1, 1), max(x1 - x0 + 1, 1))
        for at in np.ndindex(*bins):
            where = tuple(
                slice(
                    min(max(math.floor(i * extent / count) + start, 0), size),
                    min(max(math.ceil((i + 1) * extent / count) + start, 0), size),
                )
                for i, count, start, extent, size in zip(at, bins, starts, extents, x.shape[2:], strict=True)
            )
            piece = x[int(image)][(slice(None), *where)]
            if piece.size:
                y[r][(slice(None), *at)] = piece.max(axis=(1, 2))
    return [y]


in_double(
    {
        "AveragePool": _average_pool,
        "CausalConvWithState": _causal_conv,
        "Conv": _conv,
        "ConvTranspose": _conv_transpose,
        "GlobalAveragePool": _over_space(np.mean),
        "GlobalLpPool": _global_lp_pool,
        "GlobalMaxPool": _over_space(np.max),
        "LRN": _response,
        "LpPool": _lp_pool,
        "MaxPool": _max_pool,
        "MaxRoiPool": _max_roi_pool,
        "MaxUnpool": _max_unpool,
        "com.microsoft::FusedConv": _fused_conv,
    }
)
