"""Signal processing: transforms of every signal on its own, and what is made from sizes alone."""

from __future__ import annotations

import math

from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import opaque, rule
from planner.rules.rule import Rule

__all__: list[str] = []

opaque(
    "its result is a small table made from a size",
    ["BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix"],
)


@rule("DFT")
def _dft(o: Operator) -> Rule:
    """Linear.  Every frequency sees the whole axis: transforming a split one moves the signal twice."""
    rank = o.rank(0)
    if o.has(2) and o.value(2) is None:
        raise KeepWholeError("its axis is computed at run time")
    given = o.value(2)
    axis = int(given.reshape(())) % rank if given is not None else o.axis(1 if o.opset < 20 else -2)
    names = " ".join("*" if i in (axis, rank - 1) else f"d{i}" for i in range(rank))
    length = o.shape(0)[axis]
    return sharded(
        o,
        f"{names}, -, - -> {names}",
        kind="reduction",
        linear=[(0,)],
        differentiable=(0,),
        flops=5.0 * math.prod(o.result()) * max(1.0, math.log2(max(length, 2))),
    )


@rule("STFT")
def _stft(o: Operator) -> Rule:
    """Signal, step, window, frame length.  A rank that makes part of the frames reads them from the whole signal."""
    rank = o.rank(0)
    frames = o.result()[1]
    work = 5.0 * math.prod(o.result()) * max(1.0, math.log2(max(o.result()[2], 2)))
    return sharded(
        o,
        f"b *{' *' if rank == 3 else ''}, -, -, - -> b t * *",
        kind="reduction",
        linear=[(0,)] if frames else [],
        differentiable=(0,),
        flops=work,
        aware=["t"],
    )
