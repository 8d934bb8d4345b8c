"""Chains of elementwise operators, normalisations and reductions that run as one kernel."""

from __future__ import annotations

from planner.evaluate.axis import LOSSES
from planner.evaluate.fusion import VIEWS, Regions
from planner.evaluate.local import Local
from planner.evaluate.tally import Tally
from planner.evaluate.workload import Kernel
from planner.ir import Op
from planner.pricing.activity import saved_slots

__all__ = ["count_region", "views"]


def views(at: Local, regions: Regions) -> dict[str, str]:
    """Tensor → what it rearranges: regions that only rearrange are strided reads of what they rearrange."""
    alias: dict[str, str] = {}
    for members in regions.members:
        only_views = _only_views(at, members)
        for op in members:
            if at.rule(op).kind == "free" or only_views:
                source = op.inputs[0] if op.inputs else ""
                for t in op.outputs:
                    if t and source:
                        alias[t] = alias.get(source, source)
    return alias


def _only_views(at: Local, members: tuple[Op, ...]) -> bool:
    return all(at.rule(op).kind in VIEWS for op in members)


def count_region(tally: Tally, at: Local, regions: Regions, number: int, core: bool) -> None:
    """The kernel reads what enters and writes what leaves; its backward reads the gradients of the latter and what was
    kept, and writes those of the former.  `core` says that the region belongs to an attention written out."""
    members = regions.members[number]
    if all(t in at.model.weights or at.is_constant(t) for op in members for t in op.inputs if t):
        return
    if _only_views(at, members):
        _saved(tally, at, members, core, frozenset())
        return
    unit = at.unit(members[0])
    made = {t for op in members for t in op.outputs if t}
    read: dict[str, float] = {}
    written: dict[str, float] = {}
    gradients: dict[str, float] = {}
    flops = 0.0
    for op in members:
        flops += at.flops(op)
        for i, t in enumerate(op.inputs):
            if t and t not in made:
                root = at.root(t)
                read[root] = max(read.get(root, 0.0), at.read(op, i))
                if t in at.model.active:
                    gradients[root] = read[root]
        for j, t in enumerate(op.outputs):
            if t and _leaves(at, t, regions, number):
                written[at.root(t)] = at.written(op, j)
        if op.type in LOSSES:
            tally.scores[unit] += at.read(op, 0)
    kept = _saved(tally, at, members, core, frozenset(written))
    back: list[Kernel] = []
    if any(t in at.model.active for t in made):
        moved = sum(written.values()) + sum(kept.values()) + sum(gradients.values())
        back = [Kernel("vector", 2 * flops, moved)]
    tally.add(unit, core, Kernel("vector", flops, sum(read.values()) + sum(written.values())), back)
    tally.pass_through(unit, sum(written.values()))


def _leaves(at: Local, tensor: str, regions: Regions, number: int) -> bool:
    readers = at.graph.consumers.get(tensor, ())
    return not readers or any(regions.of.get(op.name, -1) != number for op, _ in readers)


def _saved(
    tally: Tally, at: Local, members: tuple[Op, ...], core: bool, materialised: frozenset[str]
) -> dict[str, float]:
    """Tensors the region's backward reads → bytes: those that exist in memory, from which the rest follows."""
    made = {t: op for op in members for t in op.outputs if t}
    kept: dict[str, float] = {}
    pending: list[tuple[Op, int]] = []
    for op in members:
        rule = at.rule(op)
        if not at.trained(op):
            continue
        pending += [(op, i) for i in saved_slots(op, rule, at.model.active) if i < len(op.inputs)]
        for j in rule.saved_results:
            t = op.outputs[j] if j < len(op.outputs) else ""
            if t and at.root(t) in materialised and rule.kind == "normalization":
                kept[at.root(t)] = at.written(op, j)
            elif t:
                pending += [(op, i) for i in range(len(op.inputs))]
    seen: set[tuple[str, int]] = set()
    while pending:
        op, i = pending.pop()
        t = op.inputs[i]
        if not t or (op.name, i) in seen or t in at.model.weights:
            continue
        seen.add((op.name, i))
        root = at.root(t)
        if at.is_constant(t) or at.is_fixed(t) or root in kept:
            continue
        if t in made and root not in materialised:
            pending += [(made[t], k) for k in range(len(made[t].inputs))]
        else:
            kept[root] = at.read(op, i)
    unit = at.unit(members[0])
    for t, size in kept.items():
        tally.save(at, unit, t, core and t in made, size)
    return kept
