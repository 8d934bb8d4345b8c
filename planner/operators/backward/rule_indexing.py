"""Look-ups, concatenations and splits as ONNX Runtime's training graphs spell them (`com.microsoft`)."""

from __future__ import annotations

import math
from dataclasses import replace

from planner.operators.indexing.rule import paired
from planner.rules.movement import moving
from planner.rules.moves import data_operands, moves_of
from planner.rules.notation import labels
from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Rule

__all__: list[str] = []


@rule("com.microsoft::GatherElementsGrad")
def _gather_elements(o: Operator) -> Rule:
    """dY, shape of the table, indices: the transpose of a look-up, so that split indices leave a pending sum."""
    data, indices = paired(o.result(), o.shape(2), o.axis(0, len(o.result())))
    return sharded(
        o,
        f"{' '.join(indices)}, -, {' '.join(indices)} -> {' '.join(data)}",
        kind="gather",
        linear=[(0,)],
        flops=float(math.prod(o.shape(0))),
        shape_operand=1,
        aware=[f for f in data if not f.startswith("d")],
    )


@rule("com.microsoft::GatherNDGrad")
def _gather_nd(o: Operator) -> Rule:
    """Shape of the table, indices, dY."""
    batch, depth = int(o.attribute("batch_dims", 0)), o.shape(1)[-1]
    own = [f"v{k}" for k in range(depth)]
    b, indices = labels("b", batch), labels("i", o.rank(1) - 1 - batch)
    rest = labels("r", len(o.result()) - batch - depth)
    return sharded(
        o,
        f"-, {b} {indices} *, {b} {indices} {rest} -> {b} {' '.join(own)} {rest}",
        kind="gather",
        linear=[(2,)],
        flops=float(math.prod(o.shape(2))),
        shape_operand=0,
        aware=own,
    )


@rule("com.microsoft::ConcatTraining")
def _concat(o: Operator) -> Rule:
    """Its second result states the lengths of the whole operands."""
    data = data_operands(o)
    rule = moving(o, moves_of(o), data, results=1, differentiable=False, aware=[o.axis(1)])
    return replace(rule, linear=(frozenset(data),)) if o.is_float(0) else rule


@rule("com.microsoft::SplitTraining")
def _split(o: Operator) -> Rule:
    return moving(o, moves_of(o), differentiable=False, aware=[o.axis(0)])
