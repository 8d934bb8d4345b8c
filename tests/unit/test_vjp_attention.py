"""Vector-Jacobian products of ONNX Runtime's attention family, against those of ONNX's own types."""

from __future__ import annotations

import numpy as np
import pytest

from planner.ir import Op
from planner.kernels import run_local
from planner.kernels.gradients import vjp

RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("shape", [(2, 3, 5, 8), (2, 5, 24)])
def test_contributed_rotary_positions_equal_the_standard_ones(
    shape: tuple[int, ...], interleaved: int, *, stated: bool
) -> None:
    x, cos, sin, dy = normal(*shape), normal(9, 4), normal(9, 4), normal(*shape)
    every = np.arange(2, 7) + np.array([[0], [0 if not stated else 2]])
    given = every if stated else np.array([2])
    plain = Op("y", "RotaryEmbedding", ("x", "c", "s", "p"), ("y",), {"interleaved": interleaved, "num_heads": 3}, 23)
    if len(shape) == 4:
        plain = Op("y", "RotaryEmbedding", ("x", "c", "s", "p"), ("y",), {"interleaved": interleaved}, 23)
    fused = Op("y", "com.microsoft::RotaryEmbedding", ("x", "p", "c", "s"), ("y",), {"interleaved": interleaved}, 1)
    expected, found = run_local(plain, [x, cos, sin, every]), run_local(fused, [x, given, cos, sin])
    np.testing.assert_allclose(np.asarray(found[0]), np.asarray(expected[0]), rtol=1e-5, atol=1e-6)
    dx = vjp(plain, [x, cos, sin, every], expected, [dy], [True, False, False, False])[0]
    df = vjp(fused, [x, given, cos, sin], found, [dy], [True, False, False, False])[0]
    np.testing.assert_allclose(np.asarray(df), np.asarray(dx), rtol=1e-5, atol=1e-6)


def test_multi_head_attention_computed_here_equals_the_runtime() -> None:
    """Doubles run here, single precision in ONNX Runtime."""
    operands = [normal(2, 6, 8), normal(2, 4, 8), normal(2, 4, 4), normal(20), np.array([3, 4]), normal(1, 2, 6, 4)]
    names = tuple(f"x{i}" for i in range(6))
    op = Op("y", "com.microsoft::MultiHeadAttention", names, ("y",), {"num_heads": 2, "unidirectional": 1}, 1)
    single = run_local(op, [x.astype(np.int32) if x.dtype == np.int64 else x for x in operands])
    double = run_local(op, [x.astype(np.float64) if x.dtype == np.float32 else x.astype(np.int32) for x in operands])
    np.testing.assert_allclose(np.asarray(double[0]), np.asarray(single[0]), rtol=1e-4, atol=1e-5)
