"""How MindSpore divides parameters and their optimizer state of a plan, and what of that is not as planned.

Optimizer parallel (`hsdp`) cuts dimension 0 of what a rank computes with among `shard_size` ranks, the innermost of
those that compute with equal parts, or among all of them (-1).  One size holds for all parameters; a parameter that it
does not divide stays whole.  Plans may divide along another dimension, or among other ranks: the files then have what
MindSpore makes of them, and `Emission.lost` what differs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from planner.cost_models import parameter_bytes
from planner.emit.mindspore.arrangement import Arrangement
from planner.emit.wording import some
from planner.ir import DeviceMesh, Layout
from planner.planning.document import PlanDocument

__all__ = ["Wanted", "differences", "shard_size"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parameter as the plan has it, and as the network holds it: how it is computed with, its shape, and among how
    many ranks each such part is divided, 1: it is not.  `alike`: as optimizer parallel divides it; `parts`: the plan
    keeps whole what operators read in parts."""

    arrangement: Arrangement
    shape: tuple[int, ...]
    ways: int
    alike: bool = True
    parts: bool = False

    @classmethod
    def of(
        cls, arrangement: Arrangement, shape: tuple[int, ...], compute: Layout, stored: Layout, mesh: DeviceMesh
    ) -> Wanted:
        sizes = {a.name: a.size for a in mesh.axes if a.size > 1}
        dims, kept = ([tuple(a for a in d if a in sizes) for d in x.dims] for x in (compute, stored))
        used = {a for d in dims for a in d}
        further = [a for a in sizes if any(a in d for d in kept) and a not in used]
        idle = [a for a in sizes if a not in used]
        innermost = idle[len(idle) - len(further) :]
        alike = not dims or kept == [(*dims[0], *innermost), *dims[1:]]
        parts = any(a not in d for d, own in zip(kept, dims, strict=True) for a in own)
        return cls(arrangement, shape, math.prod(sizes[a] for a in further), alike, parts)

    def takes(self, ways: int) -> bool:
        return ways > 1 and self.arrangement.takes(ways, self.shape[0] if self.shape else 0)

    def divided(self, size: int) -> Arrangement:
        """As MindSpore divides it where `hsdp` has this size, 0: none."""
        ways = self.arrangement.replicas if size < 0 else size
        return self.arrangement.divided(ways if 1 < self.ways <= ways and self.takes(ways) else 1)


def shard_size(wanted: Collection[Wanted]) -> int:
    """The size of `hsdp` for all these: that of the plan where it has one, else -1, all ranks with equal parts; 0 where
    the plan divides nothing that MindSpore can divide."""
    divided = [w for w in wanted if w.takes(w.ways)]
    if not divided:
        return 0
    sizes = {w.ways for w in divided}
    return sizes.pop() if len(sizes) == 1 and any(w.ways < w.arrangement.replicas for w in divided) else -1


def differences(plan: PlanDocument, wanted: Mapping[str, Wanted], size: int) -> list[str]:
    """What the plan has otherwise than MindSpore, whose `hsdp` has this size, in words."""
    out = []
    made = {n: w.divided(size).optimizer_shards or 1 for n, w in wanted.items()}
    whole = {n: w for n, w in wanted.items() if made[n] < w.ways}
    finer = [n for n, w in wanted.items() if made[n] > w.ways]
    other = [n for n, w in wanted.items() if made[n] == w.ways and not w.alike and not w.parts]
    parts = [n for n, w in wanted.items() if w.parts]
    if other:
        out.append(
            f"which part of {len(other)} parameters ({some(other)}) a rank keeps: MindSpore's optimizer parallel cuts "
            "dimension 0 behind the axes that operators cut it by, among the innermost ranks that compute with equal "
            "parts; there are as many parts as in the plan"
        )
    if finer:
        out.append(
            f"among how many ranks {len(finer)} parameters ({some(finer)}) are divided: optimizer parallel has one "
            "size for all, so that all ranks that compute with equal parts divide these"
        )
    if whole:
        s = plan.schedule
        each = parameter_bytes(s.precision, s.optimizer, training=s.mode == "training").total
        more = sum(_elements(w) * each * (w.ways - 1) // w.ways for w in whole.values())
        out.append(
            f"the shards of {len(whole)} parameters ({some(list(whole))}), which stay whole: optimizer parallel cuts "
            f"dimension 0 alone, evenly; a device holds up to {more:,} bytes more than planned"
        )
    if parts:
        out.append(
            f"that {len(parts)} parameters ({some(parts)}) are kept whole: MindSpore keeps the part that operators read"
        )
    return out


def _elements(w: Wanted) -> int:
    """On one rank, as computed with."""
    return math.prod(w.shape) * w.arrangement.replicas // w.arrangement.ranks
