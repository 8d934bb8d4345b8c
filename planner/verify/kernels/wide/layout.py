"""Operators that move, resample, reduce or count elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from planner.ir import Op
from planner.verify.vjp.attributes import Array, axes_of, integers, normalise_axis, string
from planner.verify.vjp.linear import einsum_labels
from planner.verify.vjp.resize import resample, resampled

__all__ = ["LAYOUTS"]

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]
Kernel = Callable[[Op, Operands], "Results | None"]


def _split(op: Op, inputs: Operands) -> Results | None:
    x, lengths = inputs[0], integers(op, inputs, 1, "split")
    if x is None:
        return None
    axis = normalise_axis(op.attributes.get("axis", 0), x.ndim)
    if lengths is None:
        each = -(-x.shape[axis] // len(op.outputs))
        cuts = [each * i for i in range(1, len(op.outputs))]
    else:
        cuts = np.cumsum(lengths)[:-1].tolist()
    return np.split(x, cuts, axis=axis)


def _depth_to_space(op: Op, inputs: Operands) -> Results | None:
    x, block = inputs[0], int(op.attributes["blocksize"])
    if x is None:
        return None
    n, c, h, w = x.shape
    if string(op.attributes.get("mode"), "DCR") == "DCR":
        moved = x.reshape(n, block, block, -1, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        moved = x.reshape(n, -1, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    return [moved.reshape(n, c // block**2, h * block, w * block)]


def _space_to_depth(op: Op, inputs: Operands) -> Results | None:
    x, block = inputs[0], int(op.attributes["blocksize"])
    if x is None:
        return None
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // block, block, w // block, block)
    columns_first = string(op.attributes.get("mode"), "DCR") == "CRD"
    moved = blocks.transpose((0, 1, 3, 5, 2, 4) if columns_first else (0, 3, 5, 1, 2, 4))
    return [moved.reshape(n, c * block**2, h // block, w // block)]


def _resize(op: Op, inputs: Operands) -> Results | None:
    """Neither regions of interest nor kept aspect ratios."""
    x = inputs[0]
    crop = string(op.attributes.get("coordinate_transformation_mode")) == "tf_crop_and_resize"
    if x is None or crop or string(op.attributes.get("keep_aspect_ratio_policy"), "stretch") != "stretch":
        return None
    axes = [normalise_axis(int(a), x.ndim) for a in op.attributes.get("axes") or range(x.ndim)]
    shape = list(x.shape)
    sizes = inputs[3] if len(inputs) > 3 else None
    if sizes is not None and sizes.size:
        for axis, size in zip(axes, sizes, strict=True):
            shape[axis] = int(size)
    else:
        operand = 1 if op.type == "Upsample" or op.opset < 11 else 2
        scales = op.attributes.get("scales") if len(inputs) <= operand else inputs[operand]
        if scales is None:
            return None
        for axis, scale in zip(axes, scales, strict=True):
            # The scales of the file are float32: 0.6 of 10 elements are 6.
            shape[axis] = math.floor(np.float32(shape[axis]) * np.float32(scale))
    y = x
    for dim, r in resampled(op, inputs, x.shape, shape).items():
        y = resample(y, dim, r, (0, r.positions), (0, r.elements))
    return [y]


def _one_hot(op: Op, inputs: Operands) -> Results | None:
    indices, depth, values = inputs
    if indices is None or depth is None or values is None:
        return None
    count = int(np.reshape(depth, ()))
    indices = indices.astype(np.int64)
    wrapped = np.where(indices < 0, indices + count, indices)
    hot = np.expand_dims(wrapped, -1) == np.arange(count)
    return [np.moveaxis(np.where(hot, values[1], values[0]), -1, op.attributes.get("axis", -1))]


def _reduce(function: Callable[..., Array]) -> Kernel:
    def kernel(op: Op, inputs: Operands) -> Results | None:
        x = inputs[0]
        if x is None:
            return None
        axes = axes_of(op, inputs, 1, x.ndim)
        if not axes:
            if op.attributes.get("noop_with_empty_axes", 0):
                return None
            axes = tuple(range(x.ndim))
        return [np.asarray(function(x, axis=axes, keepdims=bool(op.attributes.get("keepdims", 1))))]

    return kernel


def _log_sum_exp(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    highest = x.max(axis=axis, keepdims=True, initial=-math.inf)
    base = np.where(np.isfinite(highest), highest, 0.0)
    with np.errstate(divide="ignore"):
        y = np.log(np.exp(x - base).sum(axis=axis, keepdims=True)) + base
    return y if keepdims else np.squeeze(y, axis)


def _einsum(op: Op, inputs: Operands) -> Results | None:
    operands = [x for x in inputs if x is not None]
    terms, result = einsum_labels(string(op.attributes["equation"]), [x.ndim for x in operands])
    return [np.einsum(",".join(terms) + "->" + result, *operands, optimize=len(operands) > 1)]


def _fused_matmul(op: Op, inputs: Operands) -> Results | None:
    """`transBatch` moves the first dimension before the last one, `trans` then swaps the last two."""
    sides = []
    for x, s in zip(inputs, "AB", strict=False):
        if x is None:
            return None
        if x.ndim > 1:
            x = np.moveaxis(x, 0, -2) if op.attributes.get(f"transBatch{s}", 0) else x
            x = np.swapaxes(x, -1, -2) if op.attributes.get(f"trans{s}", 0) else x
        sides.append(x)
    alpha = op.attributes.get("alpha", 1.0)
    y = np.matmul(*sides)
    return [y if alpha == 1 else y * alpha]


LAYOUTS: Mapping[str, Kernel] = {
    "DepthToSpace": _depth_to_space,
    "Einsum": _einsum,
    "OneHot": _one_hot,
    "ReduceL1": _reduce(lambda x, axis, keepdims: np.abs(x).sum(axis=axis, keepdims=keepdims)),
    "ReduceL2": _reduce(lambda x, axis, keepdims: np.sqrt(np.square(x).sum(axis=axis, keepdims=keepdims))),
    "ReduceLogSum": _reduce(lambda x, axis, keepdims: np.log(x.sum(axis=axis, keepdims=keepdims))),
    "ReduceLogSumExp": _reduce(_log_sum_exp),
    "ReduceMax": _reduce(lambda x, axis, keepdims: x.max(axis=axis, keepdims=keepdims, initial=-math.inf)),
    "ReduceMean": _reduce(np.mean),
    "ReduceMin": _reduce(lambda x, axis, keepdims: x.min(axis=axis, keepdims=keepdims, initial=math.inf)),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "ReduceSumSquare": _reduce(lambda x, axis, keepdims: np.square(x).sum(axis=axis, keepdims=keepdims)),
    "Resize": _resize,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Upsample": _resize,
    "com.microsoft::FusedMatMul": _fused_matmul,
    "com.microsoft::TransposeMatMul": _fused_matmul,
}
