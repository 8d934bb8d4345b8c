"""Tables of both plans: totals, collectives, memory, places."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from planner.planning import PlanDocument
from planner.redistribute.steps import FREE
from planner.report.diff.groups import Places
from planner.report.diff.ledger import Bill, total
from planner.report.diff.model import Diff

__all__ = ["Place", "Traffic", "collectives", "memory", "places", "totals"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Collectives of one kind in a step: how many, and the bytes they move, as `planner search` counts them."""

    count: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """Operators of a run of `blocks` blocks of `size` operators; of those outside all runs where `blocks` is 0."""

    blocks: int
    size: int
    a: Bill
    b: Bill


def totals(plan: PlanDocument) -> dict[str, float | int]:
    """The very figures of the file."""
    c = plan.cost
    return {
        "objective_s": c.objective_s,
        "objective_lower_bound_s": c.objective_lower_bound_s,
        "gap": c.gap,
        "step_time_s": c.step_time_s,
        "peak_memory_bytes": c.peak_memory_bytes,
    }


def memory(plan: PlanDocument) -> dict[str, int]:
    """Bytes per device at the peak by what they are for; empty where the file does not say."""
    return plan.cost.memory_bytes


def collectives(d: Diff) -> dict[str, tuple[Traffic, Traffic]]:
    first, second = _traffic(d.a), _traffic(d.b)
    nothing = Traffic()
    return {k: (first.get(k, nothing), second.get(k, nothing)) for k in sorted({**first, **second})}


def _traffic(plan: PlanDocument) -> dict[str, Traffic]:
    count: dict[str, int] = defaultdict(int)
    moved: dict[str, int] = defaultdict(int)
    for r in plan.redistributions:
        for s in r.steps:
            if s.kind not in FREE:
                count[s.kind] += 1
                moved[s.kind] += s.bytes
    again = {n for block in plan.schedule.recompute for n in block}
    sizes = plan.mesh.sizes
    for name, op in plan.operators.items():
        for c in op.inner:
            phases = [r.phase == "backward" for r in op.runs]
            times = phases.count(c.backward) if phases else 1 + (name in again and not c.backward)
            ranks = 1 if c.kind in ("all_reduce", "permute") else math.prod(sizes.get(x, 1) for x in c.axes)
            count[c.kind] += c.count * times
            moved[c.kind] += c.count * c.bytes * ranks * times
    return {k: Traffic(n, moved[k]) for k, n in count.items()}


def places(d: Diff) -> list[Place]:
    """Runs of repeated blocks in A's order, then what stands outside; of operators that correspond."""
    where = Places(d.a)
    found: dict[int, list[tuple[Bill, Bill]]] = defaultdict(list)
    for here, there in d.matching.pairs:
        run = where.run(here)
        found[len(where.repeated) if run is None else run].append((d.ledgers[0].bills[here], d.ledgers[1].bills[there]))
    out = []
    for run, rows in sorted(found.items()):
        inside = run < len(where.repeated)
        blocks, size = (len(where.repeated[run]), len(where.repeated[run][0])) if inside else (0, len(rows))
        out.append(Place(blocks, size, total(a for a, _ in rows), total(b for _, b in rows)))
    return out
