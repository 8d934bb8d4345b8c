"""Micro-batches that pass together, as streams: the collectives of one copy beside the computing of another.

Each copy runs the plan's operators and redistributions one after the other; computing and collectives are a stream
each, and whichever copy can begin first has it.  What the clock charges beyond (computing slowed by collectives beside
it, blocks run again, which hide nothing) is not drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from planner.planning.document import PlanDocument
from planner.report.figures import Figures, figures

__all__ = ["CopyEvent", "interleaved"]

_MOST: Final = 20_000  # events of all copies that are worked out for a picture
_COMPUTE, _SENT = "compute", "collectives"


@dataclass(frozen=True, slots=True)
class CopyEvent:
    """What one copy does on a stream, `compute` or `collectives`, in units of the plan's price resolution; `name`: the
    operator, or the tensor that is redistributed."""

    copy: int
    stream: str
    phase: str
    name: str
    begin: int
    units: int


def interleaved(plan: PlanDocument) -> tuple[CopyEvent, ...]:
    """One pass forward and backward of all copies; empty where micro-batches pass alone, or the plan is too large to
    draw or does not say when operators run."""
    copies, costs = plan.schedule.copies, figures(plan)
    chain = list(_chain(plan, costs)) if copies > 1 and costs.timed else []
    if not chain or len(chain) * copies > _MOST:
        return ()
    free = {_COMPUTE: 0, _SENT: 0}
    ready, done = [0] * copies, [0] * copies
    out = []
    while min(done) < len(chain):
        begin, _, copy = min(
            (max(ready[c], free[chain[done[c]][0]]), done[c], c) for c in range(copies) if done[c] < len(chain)
        )
        stream, phase, name, units = chain[done[copy]]
        out.append(CopyEvent(copy, stream, phase, name, begin, units))
        ready[copy] = free[stream] = begin + units
        done[copy] += 1
    return tuple(out)


def _chain(plan: PlanDocument, costs: Figures) -> Iterator[tuple[str, str, str, int]]:
    """Of one micro-batch in its order: stream, phase, name and units; what parameters exchange stands outside."""
    timed: list[tuple[int, str, str, str, int]] = []
    for name, runs in costs.runs.items():
        for r in runs:
            timed.append((r.begin, _COMPUTE, r.phase, name, r.units - r.inside))
            timed.append((r.begin, _SENT, r.phase, name, r.inside))
    for i, move in enumerate(plan.redistributions):
        if move.tensor not in plan.parameters:
            phase = "forward" if move.direction == "forward" else "backward"
            timed.append((costs.begins[i], _SENT, phase, move.tensor, costs.moved[i]))
    for _, stream, phase, name, units in sorted(timed, key=lambda event: event[0]):
        if units:
            yield stream, phase, name, units
