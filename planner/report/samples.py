"""Operators as a step has measured them, as `planner calibrate --rows` reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from planner.cost_models.calibrate.samples import ComputeSample
from planner.cost_models.memory import Precision
from planner.lowering import Program
from planner.pricing import Settings
from planner.trace import kernels_alone

__all__ = ["Measured", "compute_samples"]


class Measured(Protocol):
    """A row of a profile: how often a rank did something in a step, and the seconds of all that."""

    @property
    def kind(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def times(self) -> int: ...

    @property
    def measured_s(self) -> float: ...


def compute_samples(
    program: Program, precision: Precision, rows: Iterable[Measured], *, copies: int = 1
) -> tuple[ComputeSample, ...]:
    """What each operator of a program computes and moves on a rank, as plans are priced, with the seconds of a row.

    precision  in which floats were computed
    copies     micro-batches that pass together, each with kernels of its own

    Operators that communicate inside, and those that do nothing, are left out.
    """
    made = kernels_alone(program, Settings(bool(program.active), precision))
    out = []
    for row in rows:
        if row.kind not in ("forward", "backward") or row.name not in made or not row.measured_s or not row.times:
            continue
        kernels = made[row.name][row.kind == "backward"]
        if not kernels or program.strategies[row.name].inner:
            continue
        flops, moved, launches = (sum(getattr(k, n) for k in kernels) for n in ("flops", "bytes", "launches"))
        if flops or moved:
            label, seconds = f"{row.name} {row.kind}", row.measured_s / row.times / copies
            kind = str(program.rules[row.name].cost.kind)
            out.append(ComputeSample(label, kind, float(flops), float(moved), precision, seconds, int(launches)))
    return tuple(out)
