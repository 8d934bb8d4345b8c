"""Vector-Jacobian products of ONNX operators in numpy, one file per family; importing registers them all."""

from planner.verify.vjp import attention, conv, elementwise, index, linear, loss, norm, pool, reduce, shape
from planner.verify.vjp.registry import NoVjpError, differentiable_types, unbroadcast, vjp

__all__ = [
    "NoVjpError",
    "attention",
    "conv",
    "differentiable_types",
    "elementwise",
    "index",
    "linear",
    "loss",
    "norm",
    "pool",
    "reduce",
    "shape",
    "unbroadcast",
    "vjp",
]
