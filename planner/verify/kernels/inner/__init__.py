"""Kernels of operators that communicate, or must know their place, while a factor is split: one file per family.

Factor names are those of the rules.  Importing the package registers them all.
"""

from planner.verify.kernels.inner import indexing, loss  # noqa: F401  imported for what they register
from planner.verify.kernels.inner.registry import Kernel, kernel, spmd_backward, spmd_forward

__all__ = ["Kernel", "kernel", "spmd_backward", "spmd_forward"]
