"""Convolutions and pools."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import Any

import torch

from planner.errors import InputError
from planner.torch.capture.operators.elementwise import binary
from planner.torch.capture.registry import Translator, aten
from planner.torch.capture.writer import Value, Writer

__all__: list[str] = []

Sizes = int | Sequence[int]


def _with_samples(function: Translator) -> Translator:
    """Of an operator whose name ends in how many dimensions space has: also where there are no samples beside."""

    @functools.wraps(function)
    def write(w: Writer, x: Value, *arguments: Any, **named: Any) -> Any:
        found = re.search(r"([123])d", w.operator)
        if found is None or x.rank != int(found[1]) + 1:
            return function(w, x, *arguments, **named)
        results = w.results
        w.results = tuple(r.unsqueeze(0) for r in results)
        made = function(w, w.op("Unsqueeze", x, w.integers([0]), shape=(1, *x.shape)), *arguments, **named)
        w.results = results
        first, *others = made if isinstance(made, tuple) else (made,)
        first = w.op("Squeeze", first, w.integers([0]), shape=first.shape[1:])
        return (first, *others) if isinstance(made, tuple) else first

    return write


def _each(sizes: Sizes, rank: int) -> list[int]:
    given = [sizes] if isinstance(sizes, int) else list(sizes)
    return given * rank if len(given) == 1 else given


@aten("conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding", "conv3d.padding")
@_with_samples
def _convolution(
    w: Writer, x: Value, weight: Value, bias: Value | None = None, stride: Sizes = 1, padding: Sizes | str = 0,
    dilation: Sizes = 1, groups: int = 1,
) -> Value:  # fmt: skip
    rank = weight.rank - 2
    kernel, dilations = list(weight.shape[2:]), _each(dilation, rank)
    if isinstance(padding, str):
        reach = [d * (k - 1) if padding == "same" else 0 for k, d in zip(kernel, dilations, strict=True)]
        pads = [*(r // 2 for r in reach), *(r - r // 2 for r in reach)]
    else:
        pads = _each(padding, rank) * 2
    return w.op(
        "Conv", x, weight, bias, shape=w.result_shape(), kernel_shape=kernel, strides=_each(stride, rank), pads=pads,
        dilations=dilations, group=groups,
    )  # fmt: skip


@aten("convolution.default")
def _any_convolution(
    w: Writer, x: Value, weight: Value, bias: Value | None, stride: Sizes, padding: Sizes, dilation: Sizes,
    transposed: bool, output_padding: Sizes, groups: int,
) -> Value:  # fmt: skip
    if not transposed:
        return _convolution(w, x, weight, bias, stride, padding, dilation, groups)
    rank = weight.rank - 2
    return w.op(
        "ConvTranspose", x, weight, bias, shape=w.result_shape(), kernel_shape=list(weight.shape[2:]),
        strides=_each(stride, rank), pads=_each(padding, rank) * 2, dilations=_each(dilation, rank), group=groups,
        output_padding=_each(output_padding, rank),
    )  # fmt: skip


@aten("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
@_with_samples
def _transposed(
    w: Writer, x: Value, weight: Value, bias: Value | None = None, stride: Sizes = 1, padding: Sizes = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> Value:  # fmt: skip
    return _any_convolution(w, x, weight, bias, stride, padding, dilation, True, output_padding, groups)


@aten("max_pool1d.default", "max_pool2d.default", "max_pool3d.default")
@_with_samples
def _max_pool(
    w: Writer, x: Value, kernel: Sizes, stride: Sizes = (), padding: Sizes = 0, dilation: Sizes = 1, ceil: bool = False
) -> Value:
    rank = x.rank - 2
    size = _each(kernel, rank)
    return w.op(
        "MaxPool", x, shape=w.result_shape(), kernel_shape=size, strides=_each(stride or size, rank),
        pads=_each(padding, rank) * 2, dilations=_each(dilation, rank), ceil_mode=int(ceil),
    )  # fmt: skip


@aten("max_pool2d_with_indices.default")
@_with_samples
def _max_pool_with(w: Writer, x: Value, *arguments: Sizes) -> tuple[Value, None]:
    return _max_pool(w, x, *arguments), None


@aten("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
@_with_samples
def _average_pool(
    w: Writer, x: Value, kernel: Sizes, stride: Sizes = (), padding: Sizes = 0, ceil: bool = False,
    count_include_pad: bool = True, divisor: int | None = None,
) -> Value:  # fmt: skip
    if divisor is not None and ceil:
        raise InputError(
            f"{w.path or 'the module'}: a pool with divisor_override and ceil_mode has no translation; leave one out"
        )
    rank = x.rank - 2
    size = _each(kernel, rank)
    y = w.op(
        "AveragePool", x, shape=w.result_shape(), kernel_shape=size, strides=_each(stride or size, rank),
        pads=_each(padding, rank) * 2, ceil_mode=int(ceil),
        count_include_pad=int(count_include_pad or divisor is not None),
    )  # fmt: skip
    return y if divisor is None else binary(w, "Mul", y, math.prod(size) / divisor)


@aten("adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default", "adaptive_avg_pool3d.default")
@_with_samples
def _adaptive(w: Writer, x: Value, _: object) -> Value:
    given = list(w.result_shape()[2:])
    if all(n == 1 for n in given):
        return w.op("GlobalAveragePool", x, shape=w.result_shape())
    space = x.shape[2:]
    if any(n % m for n, m in zip(space, given, strict=True)):
        return _uneven(w, x, given)
    windows = [n // m for n, m in zip(space, given, strict=True)]
    return _average_pool(w, x, windows, windows)


def _uneven(w: Writer, x: Value, sizes: Sequence[int]) -> Value:
    """Averages over windows of several sizes: along each dimension a product with a matrix of shares."""
    letters = "hwd"[: len(sizes)]
    for d, m in enumerate(sizes):
        n = x.shape[2 + d]
        shares = torch.zeros(m, n, dtype=x.dtype)
        for k in range(m):
            first, last = k * n // m, -(-(k + 1) * n // m)
            shares[k, first:last] = 1 / (last - first)
        matrix = Value(w.constant(shares), (m, n), x.dtype, shares)
        read, made = f"nc{letters}", f"nc{letters.replace(letters[d], 'o')}"
        shape = (*x.shape[: 2 + d], m, *x.shape[3 + d :])
        x = w.op("Einsum", x, matrix, shape=shape, equation=f"{read},o{letters[d]}->{made}")
    return x


@aten("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
@_with_samples
def _adaptive_max(w: Writer, x: Value, size: Sizes) -> tuple[Value, None]:
    space, given = x.shape[2:], _each(size, x.rank - 2)
    if any(n % m for n, m in zip(space, given, strict=True)):
        raise InputError(
            f"{w.path or 'the module'}: an adaptive maximum of {list(space)} in {given} windows has no translation; "
            "expected windows of one size"
        )
    windows = [n // m for n, m in zip(space, given, strict=True)]
    return _max_pool(w, x, windows, windows), None
