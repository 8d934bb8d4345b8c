"""Kernels in double precision, where ONNX Runtime has none, is slow, or rounds to single precision inside.

They run where an operand is float64; in lower precision ONNX Runtime stays the truth, with which they are compared.
A kernel gets the operator and its operands, and returns its results, or None where it does not cover them.
"""

from planner.verify.kernels.wide.registry import ALWAYS_WIDE, WIDE_KERNELS

__all__ = ["ALWAYS_WIDE", "WIDE_KERNELS"]
