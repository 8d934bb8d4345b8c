"""Counts of one trace, by unit of the model: kernels, transfers and bytes as they are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

from cost_models.kernels import Kernel
from planner.trace.placed import Placed
from planner.trace.workload import Transfer

__all__ = ["PHASES", "ExchangeKey", "Phase", "Tally"]

ExchangeKey = tuple[str, tuple[str, ...], float, float]
Phase = Literal["forward", "backward", "core", "again"]
PHASES: Final[tuple[Phase, ...]] = ("forward", "backward", "core", "again")


class Tally:
    """Every list has one entry per unit; `workload.Unit` says what they count.

    `saved` and `core_saved` map tensors to the bytes kept of them, `widest` activations to the elements of the
    weights that multiply them; `gathers` and `sums` count exchanges: kind, axes, elements of the
    group, and the share of the unit that these are.
    """

    def __init__(self, units: int) -> None:
        self.forward: list[Counter[Kernel]] = [Counter() for _ in range(units)]
        self.backward: list[Counter[Kernel]] = [Counter() for _ in range(units)]
        self.core: list[Counter[Kernel]] = [Counter() for _ in range(units)]
        self.again: list[Counter[Kernel]] = [Counter() for _ in range(units)]
        self.of_weights: list[Counter[Kernel]] = [Counter() for _ in range(units)]
        self.sent: dict[Phase, list[Counter[Transfer]]] = {p: [Counter() for _ in range(units)] for p in PHASES}
        self.gathers: list[Counter[ExchangeKey]] = [Counter() for _ in range(units)]
        self.sums: list[Counter[ExchangeKey]] = [Counter() for _ in range(units)]
        self.saved: list[dict[str, float]] = [{} for _ in range(units)]
        self.core_saved: list[dict[str, float]] = [{} for _ in range(units)]
        self.widest: list[Counter[str]] = [Counter() for _ in range(units)]
        self.transient = [0.0] * units
        self.results = [0.0] * units
        self.scores = [0.0] * units

    def add(self, unit: int, core: bool, forward: Sequence[Kernel], backward: Sequence[Kernel] = ()) -> None:
        self.forward[unit].update(forward)
        if core:
            self.core[unit].update(forward)
        self.backward[unit].update(backward)
        self.of_weights[unit].update(k for k in backward if k.of_weights)

    def pass_through(self, unit: int, size: float) -> None:
        """`size` bytes are alive at once while an operator of the unit runs."""
        self.transient[unit] = max(self.transient[unit], size)

    def send(self, phase: Phase, unit: int, transfer: Transfer, times: int = 1) -> None:
        if transfer.bytes > 0:
            self.sent[phase][unit][transfer] += times

    def exchange(self, unit: int, key: ExchangeKey, *, gradient: bool) -> None:
        """A parameter, or its gradient, takes part in a collective of the unit's."""
        (self.sums if gradient else self.gathers)[unit][key] += 1

    def save(self, at: Placed, unit: int, tensor: str, core: bool, size: float | None = None) -> None:
        """Keeps a tensor for the backward pass, as it rests; of what is read of it, `size` bytes at most."""
        root = at.root(tensor)
        if root in at.facts.weights or at.is_fixed(root) or at.is_constant(root):
            return
        resting = at.resting(root)
        held = resting if size is None else min(size, resting or size)
        target = self.core_saved[unit] if core else self.saved[unit]
        target[root] = max(target.get(root, 0.0), held)
