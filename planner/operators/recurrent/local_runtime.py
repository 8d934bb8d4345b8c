"""Recurrent layers of doubles, and those that put the batch first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.local import in_place_of_runtime
from planner.operators.recurrent.gradient import recurrent_forward

__all__: list[str] = []

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]


def _recurrent(op: Op, inputs: Operands) -> Results | None:
    """ONNX Runtime has no recurrent layers of doubles, and none that put the batch first."""
    x = np.asarray(inputs[0])
    known = not op.attributes.get("clip")
    return recurrent_forward(op, inputs) if known and (x.dtype == np.float64 or op.attributes.get("layout")) else None


in_place_of_runtime(
    {
        "GRU": _recurrent,
        "LSTM": _recurrent,
        "RNN": _recurrent,
    }
)
