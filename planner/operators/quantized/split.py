"""Products of dynamically quantised matrices while the quantised one is split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.local import run_local
from planner.kernels.split import kernel
from planner.kernels.spmd import Coroutine, ShardContext, all_reduce

__all__: list[str] = []


def _dynamic_matmul(op: Op, inputs: Sequence[Array | None], place: ShardContext) -> Coroutine:
    """The local operator sees two further rows, which hold the extrema of all ranks."""
    x, rule = inputs[0], place.rule
    assert x is not None
    assert rule is not None
    extrema = np.array([-x.min(), x.max()], dtype=x.dtype)
    for factor in (f for f in place.shards if rule.aware([f])):
        extrema = yield from all_reduce(extrema, "max", factor)
    rows = np.concatenate([x.reshape(-1, x.shape[-1]), np.full((1, x.shape[-1]), -extrema[0], dtype=x.dtype)])
    rows = np.concatenate([rows, np.full((1, x.shape[-1]), extrema[1], dtype=x.dtype)])
    (y,) = run_local(op, [rows, *inputs[1:]])
    assert y is not None
    return [y[:-2].reshape(*x.shape[:-1], y.shape[-1])]


kernel(["com.microsoft::DynamicQuantizeMatMul"], _dynamic_matmul)
