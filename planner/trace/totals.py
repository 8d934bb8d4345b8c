"""Totals of one trace, by unit of the model: kernels, transfers and bytes as they are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

from planner.cost_models.kernels import Kernel
from planner.ir import DeviceMesh
from planner.trace.exchanges import ExchangeCounts
from planner.trace.workload import TracedCollective

__all__ = ["PHASES", "Phase", "WorkloadTotals"]

Phase = Literal["forward", "backward", "core", "again"]
PHASES: Final[tuple[Phase, ...]] = ("forward", "backward", "core", "again")


class WorkloadTotals:
    """Every list has one entry per unit; `workload.Unit` says what they count.

    `widest` maps activations to the elements of the weights that multiply them.
    """

    def __init__(self, mesh: DeviceMesh, units: int) -> None:
        self.forward: list[Counter[Kernel]] = [Counter() for _ in range(units)]
        self.backward: list[Counter[Kernel]] = [Counter() for _ in range(units)]
        self.core: list[Counter[Kernel]] = [Counter() for _ in range(units)]
        self.again: list[Counter[Kernel]] = [Counter() for _ in range(units)]
        self.of_weights: list[Counter[Kernel]] = [Counter() for _ in range(units)]
        self.sent: dict[Phase, list[Counter[TracedCollective]]] = {p: [Counter() for _ in range(units)] for p in PHASES}
        self.exchanges = ExchangeCounts(mesh, units)
        self.widest: list[Counter[str]] = [Counter() for _ in range(units)]
        self.results = [0.0] * units
        self.scores = [0.0] * units

    def add(self, unit: int, core: bool, forward: Sequence[Kernel], backward: Sequence[Kernel] = ()) -> None:
        self.forward[unit].update(forward)
        if core:
            self.core[unit].update(forward)
        self.backward[unit].update(backward)
        self.of_weights[unit].update(k for k in backward if k.of_weights)

    def send(self, phase: Phase, unit: int, transfer: TracedCollective, times: int = 1) -> None:
        if transfer.bytes > 0:
            self.sent[phase][unit][transfer] += times
