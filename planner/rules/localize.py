"""The operator that one rank executes under a strategy."""

from __future__ import annotations

import dataclasses

from planner.ir import DeviceMesh, Op
from planner.rules.rule import Rule
from planner.rules.strategy import Strategy

__all__ = ["local_op"]


def local_op(op: Op, rule: Rule, strategy: Strategy, mesh: DeviceMesh) -> Op:
    """`op` with attributes that count a split factor divided by its shards (`Rule.counts`).

    The same on every rank.  A `Rule.shape_operand` is a value, not an attribute: the executor gives the
    local shape of the first result in its place.
    """
    split = strategy.split
    changed = {
        name: int(op.attributes[name]) // mesh.size(a for f in factors for a in split.get(f, ()))
        for name, factors in rule.counts.items()
        if name in op.attributes and any(f in split for f in factors)
    }
    return dataclasses.replace(op, attributes={**op.attributes, **changed}) if changed else op
