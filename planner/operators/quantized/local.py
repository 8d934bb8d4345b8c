"""Quantised operators: integers as the operator says, scales in double precision.

Every one of them is the operator on dequantised numbers, rounded to the steps of its result; products of integers of
eight bits are exact in float64, where BLAS has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from onnx.reference.ops.op_cast import cast_to

from planner.ir import Op
from planner.kernels.attributes import Array, normalise_axis
from planner.kernels.local import in_double
from planner.operators.convolution.local import average_pool, convolve
from planner.operators.elementwise.local import logistic

__all__ = ["dequantised", "dynamically_quantised", "integer_product", "unpacked_weights"]

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]
Kernel = Callable[[Op, Operands], "Results | None"]

_FEW_BITS: Mapping[str, tuple[int, int]] = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}


def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    if dtype.name in _FEW_BITS:
        return _FEW_BITS[dtype.name]
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _rounded(steps: Array, zero: Array | None, dtype: np.dtype[Any]) -> Array:
    """To the nearest step, ties to even, within the range of the type."""
    y = np.rint(steps)
    if zero is not None:
        y = y + _number(zero)
    return np.asarray(np.clip(y, *_range(dtype)).astype(dtype))


def _number(x: Array) -> Array:
    return x.astype(np.float64)


def dequantised(x: Array, scale: Array, zero: Array | None) -> Array:
    y = _number(x)
    if zero is not None:
        y = y - _number(zero)
    return np.asarray(y * _number(scale))


def _requantised(y: Array, scale: Array, zero: Array | None, dtype: np.dtype[Any]) -> Array:
    return _rounded(y / _number(scale), zero, dtype if zero is None else zero.dtype)


def _along(parameter: Array | None, x: Array, axis: int, block: int) -> Array | None:
    """A scale or zero point as it broadcasts to x: one, one per index of `axis`, or one per block of it."""
    if parameter is None or (parameter.size == 1 and not block):
        return None if parameter is None else parameter.reshape(())
    axis = normalise_axis(axis, x.ndim)
    if block:
        return np.repeat(parameter, block, axis=axis).take(range(x.shape[axis]), axis=axis)
    return parameter.reshape(-1, *(1,) * (x.ndim - 1 - axis))


def _quantize(op: Op, inputs: Operands) -> Results | None:
    x, scale, zero = (*inputs, None)[:3]
    if x is None or scale is None:
        return None
    stated = int(op.attributes.get("output_dtype", 0)) or int(TensorProto.UINT8)
    to = zero.dtype if zero is not None else helper.tensor_dtype_to_np_dtype(stated)
    axis, block = op.attributes.get("axis", 1), int(op.attributes.get("block_size", 0))
    scaled = x / np.asarray(_along(scale, x, axis, block))
    if to.kind not in "iu" and to.name not in _FEW_BITS:
        number = helper.np_dtype_to_tensor_dtype(to)
        return [cast_to(scaled, number, bool(op.attributes.get("saturate", 1)))]
    return [_rounded(scaled, _along(zero, x, axis, block), to)]


def _dequantize(op: Op, inputs: Operands) -> Results | None:
    x, scale, zero = (*inputs, None)[:3]
    if x is None or scale is None:
        return None
    axis, block = op.attributes.get("axis", 1), int(op.attributes.get("block_size", 0))
    return [dequantised(x, np.asarray(_along(scale, x, axis, block)), _along(zero, x, axis, block))]


def dynamically_quantised(x: Array) -> tuple[Array, Array, Array]:
    """(integers, scale, zero point) over the range of x, zero included."""
    low, high = min(0.0, float(x.min(initial=0.0))), max(0.0, float(x.max(initial=0.0)))
    scale = np.asarray((high - low) / 255 if high > low else 1.0)
    zero = _rounded(np.asarray(-low / scale), None, np.dtype(np.uint8))
    return _rounded(x / scale, zero, np.dtype(np.uint8)), scale, zero


def _dynamic_quantize(op: Op, inputs: Operands) -> Results | None:
    x = inputs[0]
    return None if x is None else list(dynamically_quantised(x))


def integer_product(a: Array, b: Array, a_zero: Array | None, b_zero: Array | None) -> Array:
    """(A − zero)(B − zero), in float64, where the sums of products of eight bits are exact."""
    left, right = _number(a), _number(b)
    if a_zero is not None and np.any(a_zero):
        left = left - _rows(_number(a_zero))
    if b_zero is not None and np.any(b_zero):
        right = right - _columns(_number(b_zero))
    return np.asarray(left @ right)


def _rows(parameter: Array) -> Array:
    """One number, or one per row."""
    return parameter.reshape(-1, 1) if parameter.ndim == 1 and parameter.size > 1 else parameter


def _columns(parameter: Array) -> Array:
    return parameter[..., None, :] if parameter.ndim > 1 and parameter.shape[-2] != 1 else parameter


def _product_to_float(op: Op, inputs: Operands) -> Results | None:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (*inputs, *[None] * 7)[:7]
    if a is None or b is None or a_scale is None or b_scale is None:
        return None
    y = integer_product(a, b, a_zero, b_zero) * (_rows(_number(a_scale)) * _number(b_scale))
    return [y if bias is None else y + bias]


def _dynamic_product(op: Op, inputs: Operands) -> Results | None:
    a, b, b_scale, b_zero, bias = (*inputs, None, None)[:5]
    if a is None or b is None or b_scale is None:
        return None
    integers, scale, zero = dynamically_quantised(a)
    y = integer_product(integers, b, zero, b_zero) * (scale * b_scale)
    return [y if bias is None else y + bias]


def _quantised_product(op: Op, inputs: Operands) -> Results | None:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (*inputs, *[None] * 8)[:8]
    if a is None or a_scale is None or b is None or b_scale is None or y_scale is None:
        return None
    y = integer_product(a, b, a_zero, b_zero) * (_rows(_number(a_scale)) * _number(b_scale))
    return [_requantised(y, _rows(_number(y_scale)), None if y_zero is None else _rows(y_zero), a.dtype)]


def _quantised_gemm(op: Op, inputs: Operands) -> Results | None:
    """The bias is in steps of the product of both scales; without a scale of its own the result is a float."""
    a, a_scale, a_zero, b, b_scale, b_zero, bias, y_scale, y_zero = (*inputs, *[None] * 9)[:9]
    if a is None or a_scale is None or b is None or b_scale is None:
        return None
    left = a.T if op.attributes.get("transA", 0) else a
    if op.attributes.get("transB", 0):
        b = b.T
    total = integer_product(left, b, a_zero, b_zero)
    if bias is not None:
        total = total + bias
    y = total * (op.attributes.get("alpha", 1.0) * a_scale * b_scale)
    return [y if y_scale is None else _requantised(y, y_scale, y_zero, a.dtype)]


def _quantised_conv(op: Op, inputs: Operands) -> Results | None:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (*inputs, None)[:9]
    if x is None or x_scale is None or w is None or w_scale is None or y_scale is None:
        return None
    of_weights = (-1, *(1,) * (w.ndim - 1))
    weight = _number(w) if w_zero is None else _number(w) - _number(w_zero).reshape(of_weights)
    total = convolve(op, _number(x) if x_zero is None else _number(x) - _number(x_zero), weight)
    column = (-1, *(1,) * (x.ndim - 2))
    if bias is not None:
        total += bias.reshape(column)
    return [_requantised(total * (x_scale * w_scale).reshape(column), y_scale, y_zero, x.dtype)]


def _two(function: Callable[[Array, Array], Array]) -> Kernel:
    def kernel(op: Op, inputs: Operands) -> Results | None:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (*inputs, None)[:8]
        if a is None or a_scale is None or b is None or b_scale is None or y_scale is None:
            return None
        y = function(dequantised(a, a_scale, a_zero), dequantised(b, b_scale, b_zero))
        return [_requantised(y, y_scale, y_zero, a.dtype)]

    return kernel


def _one(function: Callable[[Op, Array], Array]) -> Kernel:
    def kernel(op: Op, inputs: Operands) -> Results | None:
        x, x_scale, x_zero, y_scale, y_zero = (*inputs, None)[:5]
        if x is None or x_scale is None or y_scale is None:
            return None
        return [_requantised(function(op, dequantised(x, x_scale, x_zero)), y_scale, y_zero, x.dtype)]

    return kernel


def _channels_first(function: Callable[[Op, Array], Array]) -> Callable[[Op, Array], Array]:
    def moved(op: Op, x: Array) -> Array:
        if not op.attributes.get("channels_last", 0):
            return function(op, x)
        return np.moveaxis(function(op, np.moveaxis(x, -1, 1)), 1, -1)

    return moved


def _global_mean(op: Op, x: Array) -> Array:
    return np.asarray(x.mean(axis=tuple(range(2, x.ndim)), keepdims=True))


def _softmax(op: Op, x: Array) -> Array:
    """The opset whose Softmax is meant is an attribute."""
    axis = normalise_axis(op.attributes.get("axis", -1), x.ndim)
    axes = (axis,) if int(op.attributes["opset"]) >= 13 else tuple(range(axis, x.ndim))
    y = np.exp(x - x.max(axis=axes, keepdims=True))
    y /= y.sum(axis=axes, keepdims=True)
    return y


def _where(op: Op, inputs: Operands) -> Results | None:
    condition, a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (*inputs, None)[:9]
    if condition is None or a is None or a_scale is None or b is None or b_scale is None or y_scale is None:
        return None
    y = np.where(condition, dequantised(a, a_scale, a_zero), dequantised(b, b_scale, b_zero))
    return [_requantised(y, y_scale, y_zero, a.dtype)]


def _concat(op: Op, inputs: Operands) -> Results | None:
    y_scale, y_zero = inputs[:2]
    parts = []
    for x, scale, zero in zip(inputs[2::3], inputs[3::3], inputs[4::3], strict=True):
        if x is None or scale is None:
            return None
        parts.append(dequantised(x, scale, zero))
    if y_scale is None or y_zero is None:
        return None
    return [_requantised(np.concatenate(parts, axis=op.attributes["axis"]), y_scale, y_zero, y_zero.dtype)]


def _bits(packed: Array, bits: int) -> Array:
    """Numbers of a few bits from bytes, low bits first, along the last dimension."""
    if bits == 8:
        return packed
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return np.asarray(apart.reshape(*packed.shape[:-1], -1))


def unpacked_weights(
    packed: Array, scales: Array, zeros: Array | None, bits: int, columns: int, depth: int, block: int
) -> Array:
    """Weights [columns, depth] in float64 from blocks of `block` numbers of `bits` bits along the depth."""
    blocks = -(-depth // block)
    numbers = _number(_bits(packed.reshape(columns, blocks, -1), bits))
    middle: Array | float = float(2 ** (bits - 1))
    if zeros is not None and zeros.dtype == np.uint8:
        middle = _number(_bits(zeros.reshape(columns, -1), bits)[:, :blocks, None])
    elif zeros is not None:
        middle = _number(zeros).reshape(columns, blocks, 1)
    numbers -= middle
    numbers *= _number(scales).reshape(columns, blocks, 1)
    return numbers.reshape(columns, -1)[:, :depth]


def _product_by_blocks(op: Op, inputs: Operands) -> Results | None:
    """A Wᵀ with weights of a few bits; `g_idx` names the block that each element of the depth belongs to."""
    a, packed, scales, zeros, order, bias = (*inputs, *[None] * 6)[:6]
    if a is None or packed is None or scales is None or order is not None:
        return None
    bits, block = int(op.attributes.get("bits", 4)), int(op.attributes["block_size"])
    columns, depth = int(op.attributes["N"]), int(op.attributes["K"])
    y = a @ unpacked_weights(packed, scales, zeros, bits, columns, depth, block).T
    if bias is not None:
        y += bias
    return [y]


in_double(
    {
        "DequantizeLinear": _dequantize,
        "DynamicQuantizeLinear": _dynamic_quantize,
        "QLinearConv": _quantised_conv,
        "QLinearMatMul": _quantised_product,
        "QuantizeLinear": _quantize,
        "com.microsoft::DequantizeLinear": _dequantize,
        "com.microsoft::DynamicQuantizeMatMul": _dynamic_product,
        "com.microsoft::MatMulIntegerToFloat": _product_to_float,
        "com.microsoft::MatMulNBits": _product_by_blocks,
        "com.microsoft::QGemm": _quantised_gemm,
        "com.microsoft::QLinearAdd": _two(np.add),
        "com.microsoft::QLinearAveragePool": _one(_channels_first(average_pool)),
        "com.microsoft::QLinearConcat": _concat,
        "com.microsoft::QLinearGlobalAveragePool": _one(_channels_first(_global_mean)),
        "com.microsoft::QLinearLeakyRelu": _one(lambda op, x: np.where(x < 0, op.attributes.get("alpha", 0.01) * x, x)),
        "com.microsoft::QLinearMul": _two(np.multiply),
        "com.microsoft::QLinearSigmoid": _one(lambda op, x: logistic(x)),
        "com.microsoft::QLinearSoftmax": _one(_softmax),
        "com.microsoft::QLinearWhere": _where,
        "com.microsoft::QuantizeLinear": _quantize,
    }
)
