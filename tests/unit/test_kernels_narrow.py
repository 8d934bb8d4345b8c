"""Operators of ONNX Runtime on types that its own kernels do not take."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from planner.ir import Op
from planner.kernels import run_local


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)])
def test_quick_gelu_runs_in_narrow_types(dtype: np.dtype) -> None:
    """As SiLU is captured from PyTorch."""
    x = np.linspace(-3, 3, 25).astype(dtype)
    (found,) = run_local(Op("y", "com.microsoft::QuickGelu", ("x",), ("y",), {"alpha": 1.0}, 1), (x,))
    wide = x.astype(np.float64)
    assert found is not None
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype(np.float64), wide / (1 + np.exp(-wide)), rtol=2**-7, atol=1e-3)
