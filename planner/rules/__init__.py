"""Sharding rules, one file per operator family.  Importing the package registers them all."""

from planner.rules import (  # noqa: F401  imported for what they register
    attention,
    attention_microsoft,
    classical,
    contraction,
    convolution,
    creation,
    elementwise,
    embedding,
    experts,
    flex_attention,
    gated,
    gradient,
    gradient_indexing,
    gradient_window,
    indexing,
    layout,
    linear_attention,
    loss,
    normalization,
    opaque,
    optimizer,
    pooling,
    qlinear,
    quantized,
    random,
    recurrent,
    reduction,
    resize,
    rotary,
    sampling,
    scatter,
    signal,
)
from planner.rules.localize import local_op
from planner.rules.registry import opaque_reason, registered_types, replicated, rule_for
from planner.rules.rule import Combine, Dims, InnerCollective, Rule
from planner.rules.strategy import AxisRole, BoundCollective, Strategy, axis_roles, bind, strategies

__all__ = [
    "AxisRole",
    "BoundCollective",
    "Combine",
    "Dims",
    "InnerCollective",
    "Rule",
    "Strategy",
    "axis_roles",
    "bind",
    "local_op",
    "opaque_reason",
    "registered_types",
    "replicated",
    "rule_for",
    "strategies",
]
