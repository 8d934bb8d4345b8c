"""Which function writes an operator while a factor is split of which it must be aware (`Cut.aware`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from planner.emit.onnx.ranks.arrays import write_shared
from planner.emit.onnx.ranks.local import Local, refusal
from planner.emit.onnx.ranks.writer import Value, Writer
from planner.frontends.facts.chance import is_drawn
from planner.kernels.shared import shared_kernel, shared_types
from planner.plugins import load_operators

__all__ = ["Lowering", "Operands", "lowered_types", "lowering", "lowers", "needed"]

Operands = Sequence["Value | None"]
Lowering = Callable[[Writer, Local, Operands], Sequence["Value | None"]]

_LOWERINGS: dict[str, Lowering] = {}


def lowers(*types: str) -> Callable[[Lowering], Lowering]:
    """Register for operator types, with their domain where it is not ONNX's own."""

    def register(function: Lowering) -> Lowering:
        for t in types:
            if t in _LOWERINGS:
                raise ValueError(f"operator {t} is written twice; keep one")
            _LOWERINGS[t] = function
        return function

    return register


def lowered_types() -> frozenset[str]:
    """Operator types that are written."""
    load_operators("onnx")
    return frozenset(_LOWERINGS) | shared_types()


def lowering(here: Local) -> Lowering | None:
    """The function that must write the operator instead of the local node, if any.  InputError where there is none."""
    op = here.op
    if is_drawn(op.type) or (op.type == "Dropout" and _drops(here)):
        raise refusal(op, here.place, "it draws random numbers, and ranks would draw other ones than the whole model")
    if not here.rule.aware(here.place.shards):
        return None
    load_operators("onnx")
    written = shared_kernel(op.type)
    if written is not None:
        return partial(write_shared, written.function)
    if op.type not in _LOWERINGS:
        raise refusal(op, here.place, "what its ranks exchange is not among what is written so far")
    return _LOWERINGS[op.type]


def _drops(here: Local) -> bool:
    """Dropout in training mode, or where that is only known at run time."""
    op = here.op
    if op.opset < 7:
        return not op.attributes.get("is_test", 0)
    if op.opset < 12 or len(op.inputs) < 3 or not op.inputs[2]:
        return False
    training = here.known[2]
    return training is None or bool(np.any(training))


def needed(x: Value | None) -> Value:
    """An operand that the operator cannot do without."""
    assert x is not None, "the model has been checked"
    return x
