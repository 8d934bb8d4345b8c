"""What lies on a rank while a step runs, by micro-batch, and what the step leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from planner.errors import VerificationError
from planner.ir import Layout
from planner.lowering.touched import Key
from planner.runtime.chain import Chain
from planner.runtime.fallback import NumpyCall

__all__ = ["Cell", "Taken", "Value", "missing"]


@dataclass
class Taken:
    """What a step leaves: outputs by name and micro-batch, in the layout in which they are held, and gradients of the
    parameters of the stage where they are stored."""

    outputs: dict[str, dict[int, tuple[Layout, Tensor]]] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Cell:
    """What lies on the rank for a micro-batch in a chunk; for the chunk itself what there is once a step.  `sums`: the
    least type in which gradients are added up, if it is not their own."""

    micro_batch: int
    sums: torch.dtype | None = None
    values: dict[Key, Tensor] = field(default_factory=dict)
    gradients: dict[Key, Tensor] = field(default_factory=dict)
    records: dict[str, Chain | NumpyCall] = field(default_factory=dict)
    chain: Chain | None = None  # the one that the next operator may join
    waiting: dict[str, dict[Key, Tensor | None]] = field(default_factory=dict)  # of results, for gradients of weights

    def add(self, key: Key, gradient: Tensor) -> None:
        """Adds a gradient to what there is of it."""
        held = self.gradients.get(key)
        if held is not None:
            self.gradients[key] = held + gradient
        else:
            wide = None if self.sums is None else torch.promote_types(gradient.dtype, self.sums)
            self.gradients[key] = gradient if wide is None else gradient.to(wide)


# Finds what lies under a key: for a micro-batch in its cell, once a step in that of the chunk, or for ever.
Value = Callable[[Key, Cell, Cell], Tensor | None]


def missing(what: str, layout: Layout) -> VerificationError:
    """The error of a value that an instruction reads and that no instruction has made."""
    return VerificationError(f"{what} is read as {layout}, where the program never put it")
