"""What gradient operators ask of the values of their operands."""

from __future__ import annotations

from planner.verify.uses import Reading, Use, Uses, reads

__all__: list[str] = []


@reads("com.microsoft::GatherGrad")
def _look_up(r: Reading) -> Uses:
    shape = r.value(0)
    return {} if shape is None else {1: Use(below=(int(shape[r.attr("axis", 0)]),))}


@reads("com.microsoft::SoftmaxCrossEntropyLossGrad")
def _loss(r: Reading) -> Uses:
    return {2: Use(below=r.shape(1)[1:2])}
