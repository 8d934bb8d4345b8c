"""The shards that optimizers keep, for frameworks with one size for all parameters."""

from __future__ import annotations

import math

from planner.errors import InputError
from planner.planning.document import PlanDocument

__all__ = ["elsewhere", "optimizer_shards"]


def elsewhere(plan: PlanDocument) -> list[str]:
    """Parameters that the plan divides among other ranks than the innermost of those that compute with equal parts,
    which MindSpore's optimizer parallel takes, and HyperParallel's."""
    sizes = plan.mesh.sizes
    out = []
    for name, p in plan.parameters.items():
        computed = {a for x in p.compute for d in x.dims for a in d}
        extra = {a for d in p.stored.dims for a in d if a not in computed and sizes[a] > 1}
        idle = [a for a in sizes if a not in computed and sizes[a] > 1]
        if extra and extra != set(idle[len(idle) - len(extra) :]):
            out.append(name)
    return out


def optimizer_shards(plan: PlanDocument, target: str) -> tuple[int, int]:
    """(ranks among which parameters that the plan keeps in shards are divided, 1 where none is; the KiB below which a
    parameter stays whole), where the framework divides by size.

    InputError where the plan divides in groups of several sizes, or no size tells the parameters that it divides from
    those that it leaves whole.
    """
    sizes = plan.mesh.sizes
    counts: dict[int, str] = {}
    least, smallest = math.inf, ""
    whole: list[str] = []
    for name, p in plan.parameters.items():
        computed = {a for x in p.compute for d in x.dims for a in d}
        extra = [a for d in p.stored.dims for a in d if a not in computed and sizes[a] > 1]
        if not extra:
            if not plan.is_frozen(name):
                whole.append(name)
            continue
        counts.setdefault(math.prod(sizes[a] for a in extra), name)
        part = 2 * math.prod(p.shape) // math.prod(sizes[a] for a in computed)  # bytes, as one rank computes with it
        if part < least:
            least, smallest = part, name
    if not counts:
        return 1, 0
    if len(counts) > 1:
        (a, one), (b, other) = list(counts.items())[:2]
        raise InputError(
            f"plan: {one} is stored in shards by {a} ranks and {other} by {b}; {target} has one size for all: pin "
            "`stored` with one number of ranks for all, or rest=zero"
        )
    shards = next(iter(counts))
    whole_bytes = {n: 4 * math.prod(s) for n in whole if (s := plan.parameters[n].shape) and s[0] % shards == 0}
    if not whole_bytes:
        return shards, 0
    largest = max(whole_bytes, key=lambda n: whole_bytes[n])
    threshold = whole_bytes[largest] // 1024 + 1
    if threshold * 1024 > least:
        raise InputError(
            f"plan: {largest} stays whole and {smallest} is kept in {shards} shards; {target} tells them apart by size "
            "alone, the larger being divided: pin `stored` alike, or rest=zero"
        )
    return shards, threshold
