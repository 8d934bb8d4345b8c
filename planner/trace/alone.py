"""What operators compute where each is a kernel by itself, as the interpreter of `planner.runtime` runs them."""

from __future__ import annotations

from planner.lowering import Program
from planner.pricing import Settings
from planner.trace.count import placed
from planner.trace.kernels import Kernels, kernels_of

__all__ = ["kernels_alone"]


def kernels_alone(program: Program, settings: Settings) -> dict[str, Kernels]:
    """By operator, the kernels of a rank forward and backward; `settings`: precision, and with it bytes of tensors."""
    return kernels_of(placed(program, settings, chains=False, attention=False, copies=True))
