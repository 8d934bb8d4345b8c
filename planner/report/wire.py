"""What a device sends in a step, by kind of collective: the bytes that leave it where rings do the work.

Each of n ranks sends (n-1)/n of the whole tensor in an all-gather, a reduce-scatter or a broadcast, twice that in an
all-reduce, (n-1)/n of its own part in an all-to-all, and all of its part in a permutation.  Of a pipeline the mean over
its stages, and under `send` what stages hand to each other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction

from planner.cost_models.pipeline import stage_numbers
from planner.planning.document import InnerDocument, OperatorDocument, PlanDocument
from planner.redistribute.steps import FREE
from planner.report.figures import figures

__all__ = ["exchanges", "sent_bytes"]


def exchanges(plan: PlanDocument) -> tuple[int, int]:
    """How often in a step weights are gathered and gradients summed: once, or for every micro-batch, and weights in
    both of its passes (ZeRO 3)."""
    s = plan.schedule
    zero, count = s.run.get("zero", 0), s.passes
    gathers = count * (2 if s.mode == "training" else 1) if zero == 3 else 1
    return gathers, count if zero == 3 or (zero == 2 and count > 1) else 1


def sent_bytes(plan: PlanDocument, of: frozenset[str] | None = None) -> dict[str, int]:
    """Kind of collective → bytes that a device sends in a step; `of`: on the account of these operators alone, as the
    cost of redistributions is (without what stages hand on)."""
    owner = figures(plan).owner if of is not None else ()
    sizes, count = plan.mesh.sizes, plan.schedule.micro_batches
    gathers, sums = exchanges(plan)
    wide = Fraction(_gradient_bytes(plan), _width(plan))
    found: dict[str, Fraction] = defaultdict(Fraction)
    for i, r in enumerate(plan.redistributions):
        if of is not None and owner[i] not in of:
            continue
        times = Fraction(count)
        if r.tensor in plan.parameters:
            times = sums * wide if r.direction == "gradient" else Fraction(gathers)
        for s in r.steps:
            if s.kind not in FREE:
                ranks = math.prod(sizes.get(a, 1) for a in s.axes)
                found[s.kind] += times * _of_whole(s.kind, s.bytes, ranks)
    again = {n for block in plan.schedule.recompute for n in block}
    for name, op in plan.operators.items():
        for c in op.inner if of is None or name in of else ():
            found[c.kind] += count * _times(op, c, name in again) * _of_part(c, sizes)
    stages = len(plan.stages)
    if stages > 1 and of is None:
        found["send"] = Fraction(sum(_handed(plan)) * count)
    return {k: round(n / (stages if of is None else 1)) for k, n in sorted(found.items()) if n}


def _width(plan: PlanDocument) -> int:
    return 4 if plan.schedule.precision == "fp32" else 2


def _gradient_bytes(plan: PlanDocument) -> int:
    """The width in which gradients of weights are summed; that of activations where the plan does not say."""
    width = plan.schedule.run.get("gradient_bytes")
    return width if width in (2, 4) and isinstance(width, int) else _width(plan)


def _times(op: OperatorDocument, c: InnerDocument, again: bool) -> int:
    phases = [r.phase == "backward" for r in op.runs]
    return c.count * (phases.count(c.backward) if phases else 1 + (again and not c.backward))


def _of_whole(kind: str, size: int, ranks: int) -> Fraction:
    """`size`: of the whole tensor of the group; of a permutation of one rank's part."""
    if ranks < 2:
        return Fraction()
    if kind == "permute":
        return Fraction(size)
    each = Fraction(size * (ranks - 1), ranks)
    return 2 * each if kind == "all_reduce" else each / ranks if kind == "all_to_all" else each


def _of_part(c: InnerDocument, sizes: dict[str, int]) -> Fraction:
    """A rank's payload: what it adds, contributes, distributes or sends on."""
    ranks = math.prod(sizes.get(a, 1) for a in c.axes)
    whole = c.bytes * ranks if c.kind in ("all_gather", "all_to_all") else c.bytes
    return _of_whole(c.kind, whole, ranks)


def _handed(plan: PlanDocument) -> Iterator[int]:
    """Bytes of every tensor that goes on to another stage, forward and, where it has a gradient, backward."""
    numbers = stage_numbers(plan.schedule.pass_order, len(plan.stages), plan.schedule.chunks)
    holder = {int(k): s for s, row in enumerate(numbers) for k in row}
    width = _width(plan)
    made = {t: plan.chunk(n) for n, o in plan.operators.items() for t in o.outputs if t}
    last: dict[str, int] = {}
    for name, o in plan.operators.items():
        for t in o.inputs:
            if t in made:
                last[t] = max(last.get(t, 0), plan.chunk(name))
    for t, until in last.items():
        hops = sum(holder[k] != holder[k + 1] for k in range(made[t], until))
        tensor = plan.tensors.get(t)
        if hops and tensor is not None and tensor.shape and tensor.dtype.startswith(("float", "bfloat")):
            part = math.prod(tensor.shape) // max(1, tensor.layout.layout().shards(plan.mesh))
            yield hops * part * width * (1 if tensor.gradient is None else 2)
