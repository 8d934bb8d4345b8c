"""Integer products of several zero points, and those by blocks with a bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.local import in_place_of_runtime
from planner.kernels.session import run_node

__all__: list[str] = []

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]


def _matmul_integer(op: Op, inputs: Operands) -> Results | None:
    """ONNX Runtime takes one zero point for all rows of A."""
    a, b, a_zero, b_zero = (*inputs, None, None)[:4]
    if a is None or b is None or a_zero is None or a_zero.size == 1:
        return None
    rows = a.astype(np.int32) - (a_zero.reshape(-1, 1) if a_zero.ndim == 1 else a_zero)
    return [rows @ (b.astype(np.int32) - (0 if b_zero is None else b_zero))]


def _matmul_nbits(op: Op, inputs: Operands) -> Results | None:
    """ONNX Runtime takes a bias only where its length is declared, which a session for every shape cannot."""
    bias = inputs[5] if len(inputs) > 5 else None
    if bias is None:
        return None
    (y,) = run_node(replace(op, inputs=op.inputs[:5]), inputs[:5])
    return [None if y is None else y + bias]


in_place_of_runtime(
    {
        "MatMulInteger": _matmul_integer,
        "com.microsoft::MatMulNBits": _matmul_nbits,
    }
)
