"""Products with the weights of chosen experts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.local import in_numpy
from planner.operators.experts.gradient import expert_product, token_rows

__all__: list[str] = []

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]


def _expert_matmul(op: Op, inputs: Operands) -> Array | None:
    x, weights, indices, bias = (*inputs, None)[:4]
    if x is None or weights is None or indices is None:
        return None
    tokens = np.broadcast_shapes(x.shape[:-1], indices.shape[: x.ndim - 1])
    flat = indices.reshape(-1)
    experts = np.where(flat < 0, flat + len(weights), flat)
    y = expert_product(token_rows(x, tokens), experts, weights, bias, trans_b=bool(op.attributes.get("transB", 0)))
    return y.reshape(*tokens, y.shape[-1])


in_numpy(
    {
        "planner::ExpertMatMul": _expert_matmul,
    }
)
