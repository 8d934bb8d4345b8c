"""What the instructions of a program cost, one by one."""

from __future__ import annotations

from collections.abc import Sequence

from planner.lowering import Redistribute, Run
from planner.pricing import PricedProblem
from planner.redistribute.steps import FREE

__all__ = ["redistribution_cost", "run_cost"]


def redistribution_cost(priced: PricedProblem, redistribution: Redistribute) -> int:
    """Price of a redistribution: the sum of its steps, and of a tensor inside a kernel its way out and back."""
    size = priced.machine.settings.tensor_bytes(priced.graph.tensors[redistribution.tensor])
    mesh = priced.machine.mesh
    paid = [s for s in redistribution.steps if s.kind not in FREE]
    if not paid:
        return 0
    table = priced.redistributions(priced.graph.tensors[redistribution.tensor])
    cost = sum(priced.machine.one_collective(str(s.kind), s.axes, s.group_bytes(size, mesh), table.share) for s in paid)
    return cost + table.out_and_back(redistribution.source, redistribution.target) if cost else 0


def run_cost(priced: PricedProblem, choice: Sequence[int], run: Run) -> tuple[int, int]:
    """Price of running an operator of the Problem: of its own work, and of the collectives within it."""
    work, state = priced.tables[run.op].work, choice[priced.op_nodes[run.op]]
    own, inside = (work.backward, work.inner_backward) if run.backward else (work.forward, work.inner_forward)
    return int(own[state]), int(inside[state])
