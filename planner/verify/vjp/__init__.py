"""Vector-Jacobian products of ONNX operators in numpy, one file per family; importing registers them all."""

import planner.verify.vjp.attention
import planner.verify.vjp.attention_microsoft
import planner.verify.vjp.conv
import planner.verify.vjp.elementwise
import planner.verify.vjp.experts
import planner.verify.vjp.gated
import planner.verify.vjp.index
import planner.verify.vjp.linear
import planner.verify.vjp.linear_attention
import planner.verify.vjp.loss
import planner.verify.vjp.norm
import planner.verify.vjp.pool
import planner.verify.vjp.recurrent
import planner.verify.vjp.reduce
import planner.verify.vjp.resize
import planner.verify.vjp.rotary
import planner.verify.vjp.sampling
import planner.verify.vjp.shape  # noqa: F401  all imported for what they register
from planner.verify.vjp.registry import Call, NoVjpError, differentiable_types, register, unbroadcast, vjp

__all__ = ["Call", "NoVjpError", "differentiable_types", "register", "unbroadcast", "vjp"]
