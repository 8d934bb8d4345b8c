"""Gradients of activations with a bias and of dropout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.local import in_place_of_runtime
from planner.operators.elementwise.gradient import gelu_gradient

__all__: list[str] = []

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]


def _biased_gelu_gradient(op: Op, inputs: Operands) -> Results | None:
    """dY, X and the bias added to it."""
    dy, x, bias = (np.asarray(v) for v in inputs)
    return [dy * gelu_gradient(x + bias, tanh=op.type.endswith("FastGeluGrad_dX")).astype(dy.dtype)]


def _dropout_gradient(op: Op, inputs: Operands) -> Results | None:
    """dY, the mask of what was kept, ratio and mode."""
    dy, mask, ratio, training = (*inputs, None, None)[:4]
    assert dy is not None
    if training is not None and not np.any(training):
        return [dy]
    keeping = 1 - (0.5 if ratio is None else float(ratio.reshape(())))
    return [np.where(np.asarray(mask), dy / dy.dtype.type(keeping), dy.dtype.type(0))]


in_place_of_runtime(
    {
        "com.microsoft::BiasFastGeluGrad_dX": _biased_gelu_gradient,
        "com.microsoft::BiasGeluGrad_dX": _biased_gelu_gradient,
        "com.microsoft::DropoutGrad": _dropout_gradient,
    }
)
