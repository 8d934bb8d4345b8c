"""Vector-Jacobian products of ONNX operators in numpy, one file per family; importing registers them all."""

import planner.verify.vjp.attention
import planner.verify.vjp.conv
import planner.verify.vjp.elementwise
import planner.verify.vjp.index
import planner.verify.vjp.linear
import planner.verify.vjp.loss
import planner.verify.vjp.norm
import planner.verify.vjp.pool
import planner.verify.vjp.reduce
import planner.verify.vjp.shape  # noqa: F401  all imported for what they register
from planner.verify.vjp.registry import NoVjpError, differentiable_types, unbroadcast, vjp

__all__ = ["NoVjpError", "differentiable_types", "unbroadcast", "vjp"]
