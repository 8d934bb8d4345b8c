"""The redistributions of a plan, for a part of the model from which blocks were taken out.

Tensors that are still read by those that read them move as the plan says.  Where a kept block's result is read in place
of a removed one's, the removed one's redistributions follow.  Where the two were produced in different layouts, or a
gradient ends in another than is wanted, a *seam* is sewn: the cheapest conversion by bytes, which is no part of the
plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.ir import DeviceMesh, Graph, Layout
from planner.pricing import Assignment, Redistribution, RedistributionPlan
from planner.redistribute import Redistributions, parts_of_both

__all__ = ["sewn"]


class _ByBytes:
    """Prices of collectives where there is no machine: their bytes."""

    def collective(
        self, kind: str, axes: tuple[str, ...], group_bytes: NDArray[np.float64], share: object = 1.0
    ) -> NDArray[np.int64]:
        return (group_bytes + 1).astype(np.int64)


def sewn(
    part: Graph, whole: Graph, mesh: DeviceMesh, assignment: Assignment, active: frozenset[str]
) -> tuple[Assignment, int]:
    """The assignment for `part`, and the number of seams; `assignment` is the plan's for the whole model."""
    redistributions: dict[str, RedistributionPlan] = {}
    seams = 0
    for name in part.tensors:
        if name in assignment.redistributions:
            redistribution, added = _redistribution(name, part, whole, mesh, assignment, name in active)
            redistributions[name] = redistribution
            seams += added
    names = {op.name for op in part.ops}
    blocks = {name: k for name, k in assignment.blocks.items() if name in names}
    stored = {n: x for n, x in assignment.stored.items() if n in part.tensors}
    return replace(assignment, redistributions=redistributions, blocks=blocks, stored=stored), seams


def _redistribution(
    name: str, part: Graph, whole: Graph, mesh: DeviceMesh, assignment: Assignment, active: bool
) -> tuple[RedistributionPlan, int]:
    own = assignment.redistributions[name]
    readers = part.consumers.get(name, ())
    if [(op.name, i) for op, i in readers] == [(op.name, i) for op, i in whole.consumers.get(name, ())]:
        return own, 0
    sources = dict.fromkeys([name, *(whole.op(op.name).inputs[i] for op, i in readers)])
    others = [assignment.redistributions[s] for s in sources if s != name and s in assignment.redistributions]
    sew = _Seams(part.tensors[name].shape or (), mesh)
    forward = sew.forward(own, others)
    # A gradient that a tensor needs beside its producer's: of a removed block, but read here.
    given = [assignment.strategies[op.name].operand_gradients[i] for op, i in readers] if active else []
    gradient = sew.gradient(own, others, {op.name for op, _ in readers}, given) if active else []
    wanted = own.wanted if active else None
    return replace(own, wanted=wanted, moves=(*forward, *gradient)), sew.count


class _Seams:
    """Moves of one tensor; `count` of them are sewn in."""

    def __init__(self, shape: tuple[int, ...], mesh: DeviceMesh) -> None:
        self.shape, self.mesh = shape, mesh
        self.count = 0

    def forward(self, own: RedistributionPlan, others: Iterable[RedistributionPlan]) -> list[Redistribution]:
        moves = [m for m in own.moves if not m.gradient]
        there = {own.produced, *(m.target for m in moves if not m.reader)}
        for redistribution in others:
            if redistribution.produced not in there:
                moves.append(self._seam(False, own.produced, redistribution.produced))
                there.add(redistribution.produced)
            further = [m for m in redistribution.moves if not m.gradient and (m.reader or m.target not in there)]
            there.update(m.target for m in further if not m.reader)
            moves += further
        return moves

    def gradient(
        self,
        own: RedistributionPlan,
        others: Iterable[RedistributionPlan],
        readers: set[str],
        given: Iterable[Layout | None],
    ) -> list[Redistribution]:
        rank = len(own.produced.dims)
        here = {g or Layout.replicated(rank) for g in given}
        listed = [m for redistribution in (own, *others) for m in redistribution.moves if m.gradient]
        moves: list[Redistribution] = []
        for m in (m for m in listed if m.reader in readers):
            moves.append(m)
            here.add(m.target)
            if m.source not in {x.source for x in listed if not x.reader}:
                here.discard(m.source)
        for m in (m for m in listed if not m.reader):
            if m.source in here and m.source != own.wanted:
                moves.append(m)
                here.discard(m.source)
                here.add(m.target)
        wanted = own.wanted
        if wanted is not None:
            moves += [self._seam(True, left, wanted) for left in sorted(here - {wanted}, key=str)]
        return moves

    def _seam(self, gradient: bool, source: Layout, target: Layout) -> Redistribution:
        self.count += 1
        elements = int(np.prod(self.shape, dtype=np.int64))
        table = Redistributions(self.shape, elements, self.mesh, _ByBytes(), parts=parts_of_both(source, target))
        steps = table.path(source, target)
        return Redistribution(gradient, source, target, steps)
