"""Operators that communicate, or must know their place, while a factor is split, in ONNX nodes: one file per family.

They say what `planner.verify.kernels.inner` does; factor names are those of the rules.  Importing the package
registers them all.
"""

from planner.emit.onnx.ranks.inner import (  # noqa: F401  imported for what they register
    attention,
    experts,
    lookup,
    loss,
    movement,
    norm,
    place,
    pooling,
    reduction,
    softmax,
    top_k,
    window,
)
from planner.emit.onnx.ranks.inner.registry import lowering

__all__ = ["lowering"]
