"""Recurrent layers while their directions are split: every rank runs one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.gradients import vjp
from planner.kernels.local import run_local
from planner.kernels.split import kernel
from planner.kernels.spmd import Coroutine, ShardContext
from planner.operators.recurrent.gradient import parameters_read

__all__ = ["one_direction"]

Operands = Sequence["Array | None"]


def one_direction(op: Op, place: ShardContext) -> Op:
    """The layer that this rank runs, with its half of the activations and their parameters."""
    back = bool(place.offset["d"])
    changed = {**op.attributes, "direction": "reverse" if back else "forward"}
    names = op.attributes.get("activations")
    if names:
        half = len(names) // 2
        changed["activations"] = tuple(names[half:] if back else names[:half])
        before = parameters_read(names[:half])
        for attribute, count in zip(("activation_alpha", "activation_beta"), before, strict=True):
            given = tuple(op.attributes.get(attribute) or ())
            if given:
                changed[attribute] = given[count:] if back else given[:count]
    return replace(op, attributes={k: v for k, v in changed.items() if v != ()})


def _forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    return run_local(one_direction(op, place), inputs)
    yield  # never communicates


def _backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """The gradient of X through this direction: a pending sum."""
    return vjp(one_direction(op, place), inputs, outputs, gradients, wanted)
    yield  # never communicates


kernel(["GRU", "LSTM", "RNN"], _forward, _backward)
