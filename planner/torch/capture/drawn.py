"""Numbers that a step draws, as far as they only decide what is dropped.

Stochastic depth is often written as `(keep + torch.rand(shape)).floor()`, and masks as `torch.rand(shape) < share`:
each element is one with a probability.  That is what a dropout of ones says, which draws the same under every plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from planner.torch.capture.operators.elementwise import binary, chosen_with
from planner.torch.capture.writer import Value, Writer

__all__ = ["Drawn", "made_of"]


@dataclass(frozen=True, slots=True)
class Drawn:
    """Numbers drawn evenly between `low` and `low + 1`, which no operator has read yet."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    low: float = 0.0


def made_of(w: Writer, operator: str, arguments: Sequence[Any]) -> Drawn | Value | None:
    """What an operator makes of drawn numbers; None where that is more than ones with a probability."""
    first, *others = arguments
    if operator == "add.Tensor" and len(others) == 1:
        drawn, number = (first, others[0]) if isinstance(first, Drawn) else (others[0], first)
        return replace(drawn, low=drawn.low + number) if isinstance(number, int | float) else None
    if not isinstance(first, Drawn):
        return None
    if operator == "_to_copy.default":
        dtype = w.results[0].dtype
        return replace(first, dtype=dtype) if dtype.is_floating_point else None
    if operator == "floor.default" and 0 <= first.low <= 1:
        return chosen_with(w, first.shape, first.dtype, first.low)
    kind, _, form = operator.partition(".")
    if form == "Scalar" and kind in ("lt", "le", "gt", "ge"):
        below = min(max(others[0] - first.low, 0.0), 1.0)
        ones = chosen_with(w, first.shape, first.dtype, below if kind in ("lt", "le") else 1.0 - below)
        return binary(w, "Greater", ones, 0.5, dtype=torch.bool)
    return None
