"""Short-time transforms while their frames are split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.local import run_local
from planner.kernels.split import kernel
from planner.kernels.spmd import Coroutine, ShardContext

__all__: list[str] = []


def _stft(op: Op, inputs: Sequence[Array | None], place: ShardContext) -> Coroutine:
    """Only the stretch of the signal that this rank's frames cover."""
    signal, step, window, length = (*inputs, None, None)[:4]
    rule = place.rule
    assert rule is not None
    assert signal is not None
    assert step is not None
    stride = int(step.reshape(()))
    frame = int(np.reshape(length, ())) if length is not None else len(np.asarray(window))
    first = place.offset["t"] * stride
    last = first + (rule.factors["t"] // place.shards["t"] - 1) * stride + frame
    return run_local(op, [signal[:, first:last], *inputs[1:]])
    yield  # never communicates


kernel(["STFT"], _stft)
