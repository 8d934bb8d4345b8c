"""Gradients of large products, checked without computing them a second time.

Whether G is dY·Bᵀ shows on a random vector u: G·u must be dY·(Bᵀ·u), which takes a matrix-vector product in place of a
matrix product (Freivalds 1977).  An element of G that is wrong by δ moves its row's projection by about δ, while
rounding moves it by some 10⁻¹⁵ of the row's length, so an error the size of `planner.verify.compare.TOLERANCE` is
seen; that none shows by chance has probability zero in exact arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from planner.ir import Op
from planner.kernels.gradients import unbroadcast
from planner.kernels.shards import Array

__all__ = ["are_product_gradients", "is_product"]

_ROUNDING: Final = 1e-12  # of the projection's terms; double precision rounds sums of a million of them to less


def is_product(op: Op) -> bool:
    """Operators whose gradients `are_product_gradients` knows."""
    return op.type == "MatMul" or (op.type == "Gemm" and "broadcast" not in op.attributes)


def are_product_gradients(
    op: Op,
    operands: Sequence[Array | None],
    result_gradient: Array,
    candidates: Sequence[Array | None],
    rng: np.random.Generator,
) -> bool:
    """Whether the candidates that are there are the gradients of the operands of a product y = op(operands)."""
    a, b = operands[0], operands[1]
    if a is None or b is None or a.ndim < 2 or b.ndim < 2:
        return False
    flip_a, flip_b = bool(op.attributes.get("transA", 0)), bool(op.attributes.get("transB", 0))
    alpha, beta = float(op.attributes.get("alpha", 1.0)), float(op.attributes.get("beta", 1.0))
    left, right = (a.T if flip_a else a), (b.T if flip_b else b)
    for i, candidate in enumerate(candidates):
        if candidate is None:
            continue
        if i == 2:
            bias = operands[2]
            exact = None if bias is None else unbroadcast(beta * result_gradient, bias.shape)
            if exact is None or np.any(np.abs(exact - candidate) > _ROUNDING * (np.abs(exact) + np.abs(exact).mean())):
                return False
            continue
        given = candidate.T if (flip_a, flip_b)[i] else candidate
        u = rng.uniform(0.5, 1.5, given.shape[-1]) * rng.choice((-1.0, 1.0), given.shape[-1])
        if i == 0:  # dA = dY Bᵀ, summed over the batches that A lacks
            through = np.matmul(right.swapaxes(-1, -2), u)
            expected = unbroadcast(np.matmul(result_gradient, through[..., None])[..., 0], given.shape[:-1])
        else:  # dB = Aᵀ dY
            through = np.matmul(result_gradient, u)
            turned = left.swapaxes(-1, -2)
            expected = unbroadcast(np.matmul(turned, through[..., None])[..., 0], given.shape[:-1])
        found = np.matmul(given, u)
        size = np.sqrt(np.square(given).sum(axis=-1)) + np.abs(expected)
        if not np.all(np.abs(found - alpha * expected) <= _ROUNDING * (size + float(size.mean()))):
            return False
    return True
