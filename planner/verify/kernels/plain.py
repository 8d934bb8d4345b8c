"""Operators whose ONNX meaning is exactly one numpy expression: faster than a session per call.

A kernel returns None where the operands or the opset fall outside what it covers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import helper

from planner.ir import Op
from planner.verify.vjp.attributes import Array, align, axes_of, integers, normalise_axis, slices_of
from planner.verify.vjp.experts import expert_product, token_rows

__all__ = ["PLAIN_KERNELS"]

Kernel = Callable[[Op, Sequence[Array | None]], "Array | None"]

_FAST = (np.float32, np.float64)
_WIDE = {"bfloat16", "float16", "float32", "float64"}


def _binary(function: Callable[[Array, Array], Array]) -> Kernel:
    def kernel(op: Op, inputs: Sequence[Array | None]) -> Array | None:
        a, b = inputs
        if a is None or b is None or a.dtype != b.dtype or a.dtype not in _FAST:
            return None
        return function(a, align(op, a, b))

    return kernel


def _matmul(op: Op, inputs: Sequence[Array | None]) -> Array | None:
    a, b = inputs
    if a is None or b is None or a.dtype not in _FAST:
        return None
    if b.ndim == 2 and a.ndim > 2:  # one product instead of many
        return (a.reshape(-1, a.shape[-1]) @ b).reshape(*a.shape[:-1], b.shape[-1])
    return np.asarray(np.matmul(a, b))


def _gemm(op: Op, inputs: Sequence[Array | None]) -> Array | None:
    a, b, c = (*inputs, None)[:3]
    if a is None or b is None or a.dtype not in _FAST or "broadcast" in op.attributes:
        return None
    y: Array = (a.T if op.attributes.get("transA") else a) @ (b.T if op.attributes.get("transB") else b)
    alpha, beta = op.attributes.get("alpha", 1.0), op.attributes.get("beta", 1.0)
    if alpha != 1:
        y = y * a.dtype.type(alpha)
    if c is not None:
        y = y + (c if beta == 1 else c * a.dtype.type(beta))
    return y


def _identity(op: Op, inputs: Sequence[Array | None]) -> Array | None:
    return inputs[0]


def _cast(op: Op, inputs: Sequence[Array | None]) -> Array | None:
    """Between floating-point types of two bytes and more; the runtime cannot hand bfloat16 over."""
    x, like = (*inputs, None)[:2]
    if x is None:
        return None
    to = helper.tensor_dtype_to_np_dtype(int(op.attributes["to"])) if like is None else like.dtype
    return x.astype(to) if {x.dtype.name, to.name} <= _WIDE else None


def _neg(op: Op, inputs: Sequence[Array | None]) -> Array | None:
    (x,) = inputs
    return None if x is None or x.dtype not in _FAST else -x


def _reshape(op: Op, inputs: Sequence[Array | None]) -> Array | None:
    x, shape = inputs[0], integers(op, inputs, 1, "shape")
    if x is None or shape is None:
        return None
    keep = not op.attributes.get("allowzero")
    return x.reshape([x.shape[i] if s == 0 and keep else s for i, s in enumerate(shape)])


def _flatten(op: Op, inputs: Sequence[Array | None]) -> Array | None:
    (x,) = inputs
    if x is None:
        return None
    axis = normalise_axis(op.attributes.get("axis", 1), x.ndim)
    return x.reshape(int(np.prod(x.shape[:axis], dtype=np.int64)), int(np.prod(x.shape[axis:], dtype=np.int64)))


def _transpose(op: Op, inputs: Sequence[Array | None]) -> Array | None:
    (x,) = inputs
    return None if x is None else x.transpose(op.attributes.get("perm") or tuple(reversed(range(x.ndim))))


def _unsqueeze(op: Op, inputs: Sequence[Array | None]) -> Array | None:
    x, axes = inputs[0], integers(op, inputs, 1, "axes")
    return None if x is None or axes is None else np.expand_dims(x, axes)


def _squeeze(op: Op, inputs: Sequence[Array | None]) -> Array | None:
    x = inputs[0]
    if x is None:
        return None
    return np.asarray(np.squeeze(x, axes_of(op, inputs, 1, x.ndim)))


def _concat(op: Op, inputs: Sequence[Array | None]) -> Array | None:
    parts = [x for x in inputs if x is not None]
    return np.concatenate(parts, axis=op.attributes.get("axis", 1))


def _expand(op: Op, inputs: Sequence[Array | None]) -> Array | None:
    x, shape = inputs[0], integers(op, inputs, 1, "shape")
    if x is None or shape is None:
        return None
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, shape))


def _slice(op: Op, inputs: Sequence[Array | None]) -> Array | None:
    x = inputs[0]
    return None if x is None else x[slices_of(op, inputs, x.shape)]


def _gather(op: Op, inputs: Sequence[Array | None]) -> Array | None:
    x, at = inputs
    if x is None or at is None:
        return None
    return np.asarray(np.take(x, at, axis=op.attributes.get("axis", 0)))


def _expert_matmul(op: Op, inputs: Sequence[Array | None]) -> Array | None:
    x, weights, indices, bias = (*inputs, None)[:4]
    if x is None or weights is None or indices is None:
        return None
    tokens = np.broadcast_shapes(x.shape[:-1], indices.shape[: x.ndim - 1])
    flat = indices.reshape(-1)
    experts = np.where(flat < 0, flat + len(weights), flat)
    y = expert_product(token_rows(x, tokens), experts, weights, bias, trans_b=bool(op.attributes.get("transB", 0)))
    return y.reshape(*tokens, y.shape[-1])


PLAIN_KERNELS: Mapping[str, Kernel] = {
    "Add": _binary(np.add),
    "Cast": _cast,
    "CastLike": _cast,
    "Concat": _concat,
    "Div": _binary(np.divide),
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Gemm": _gemm,
    "Identity": _identity,
    "MatMul": _matmul,
    "Mul": _binary(np.multiply),
    "Neg": _neg,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _binary(np.subtract),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "planner::ExpertMatMul": _expert_matmul,
}
