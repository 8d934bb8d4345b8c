"""Kernels of operators that communicate, or must know their place, while a factor is split: one file per family.

Factor names are those of the rules.  Importing the package registers them all.
"""

from planner.verify.kernels.inner import (  # noqa: F401  imported for what they register
    attention,
    attention_microsoft,
    blocks,
    convolution,
    embedding,
    experts,
    indexing,
    linear_attention,
    loss,
    movement,
    place,
    pooling,
    quantized,
    random,
    recurrent,
    reduction,
    resize,
    response,
    sampling,
    signal,
    softmax,
    statistics,
    top_k,
)
from planner.verify.kernels.inner.registry import Kernel, kernel, spmd_backward, spmd_forward

__all__ = ["Kernel", "kernel", "spmd_backward", "spmd_forward"]
