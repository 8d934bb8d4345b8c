"""Counts of one trace, by unit of the model: kernels, transfers and bytes as they are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

from cost_models.kernels import Kernel
from planner.evaluate.local import Local
from planner.evaluate.workload import Axis, Transfer, TransferKind

__all__ = ["PHASES", "Phase", "Tally"]

Phase = Literal["forward", "backward", "core"]
PHASES: Final[tuple[Phase, ...]] = ("forward", "backward", "core")


class Tally:
    """Every list has one entry per unit; what they count is told by `workload.Unit`.

    `saved` and `core_saved` map tensors to the bytes kept of them, `widest` activations to the elements of the
    weights that multiply them.
    """

    def __init__(self, units: int) -> None:
        self.forward: list[Counter[Kernel]] = [Counter() for _ in range(units)]
        self.backward: list[Counter[Kernel]] = [Counter() for _ in range(units)]
        self.core: list[Counter[Kernel]] = [Counter() for _ in range(units)]
        self.of_weights: list[Counter[Kernel]] = [Counter() for _ in range(units)]
        self.sent: dict[Phase, list[Counter[Transfer]]] = {p: [Counter() for _ in range(units)] for p in PHASES}
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

    def send(
        self,
        phase: Phase,
        unit: int,
        kind: TransferKind,
        axis: Axis,
        size: float,
        *,
        hidden: bool = False,
        times: int = 1,
    ) -> None:
        if size > 0:
            self.sent[phase][unit][Transfer(kind, axis, size, hidden)] += times

    def save(self, at: Local, unit: int, tensor: str, core: bool, size: float | None = None) -> None:
        """Keeps a tensor for the backward pass, as it rests; of what is read of it, `size` bytes at most."""
        root = at.root(tensor)
        if root in at.model.weights or at.is_fixed(root) or at.is_constant(root):
            return
        resting = at.resting(root)
        held = resting if size is None else min(size, resting or size)
        target = self.core_saved[unit] if core else self.saved[unit]
        target[root] = max(target.get(root, 0.0), held)
