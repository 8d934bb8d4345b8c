"""Sharding rules: what a rule says, how it is written, and what follows from it.  The rules themselves stand with their
operators in `planner.operators`."""

from planner.rules.localize import local_op
from planner.rules.registry import opaque_reason, registered_types, replicated, rule_for
from planner.rules.rule import Combine, Cut, Dims, InnerCollective, Rule
from planner.rules.strategy import AxisRole, BoundCollective, Strategy, axis_roles, bind, strategies

__all__ = [
    "AxisRole",
    "BoundCollective",
    "Combine",
    "Cut",
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
