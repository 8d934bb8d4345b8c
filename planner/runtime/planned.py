"""What a plan's program has for a rank to send in a step, counted without running it."""

from __future__ import annotations

import math
from collections import Counter

from planner.lowering import Redistribute
from planner.redistribute.steps import FREE
from planner.runtime.stage import Stage

__all__ = ["planned_traffic"]


def planned_traffic(stage: Stage) -> dict[str, tuple[int, int]]:
    """Collectives between operators that the program has for a step of this rank, by kind: how many, and the bytes
    of the tensors in the stage's precision; what it sends to other stages, too.  What is made of constants alone
    was laid out before."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()

    def add(kind: str, size: int) -> None:
        counts[kind] += 1
        sizes[kind] += size

    for event in stage.staged.passes.stages[stage.number]:
        once = event.phase in ("begin", "end")
        count = 1 if once else stage.staged.copies
        own = stage.staged.chunks[event.chunk]
        together = stage.buckets.get((event.chunk, event.phase), {})
        passed = {n for members in together.values() for n in members[:-1]}
        for n, i in enumerate(own.instructions(event.phase)):
            if not isinstance(i, Redistribute) or (not i.gradient and (i.tensor, i.target) in stage.resident):
                continue
            for step in i.steps:
                if step.kind not in FREE:
                    for _ in range(1 if stage.is_parameter(i.tensor) else count):
                        add(str(step.kind), round(step.group_bytes(stage.bytes_of(i.tensor), stage.mesh)))
                        counts[str(step.kind)] -= n in passed
        for t in own.sent(event.phase):
            if stage.staged.passes.holder[t.target] != stage.number:
                for _ in range(count):
                    add("send", math.prod(stage.local_shape(t.key)) * stage.type_of(t.tensor).itemsize)
    for name, layout in stage.program.final_gradients.items():
        for group in stage.staged.sums.get(name, ()):
            if stage.context.rank in group and any(name in stage.staged.chunks[k].held for k in stage.chunks):
                add("all_reduce", math.prod(stage.local_shape((name, layout))) * stage.type_of(name).itemsize)
    return {kind: (counts[kind], sizes[kind]) for kind in sorted(counts)}
