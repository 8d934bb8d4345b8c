"""What no plan on a mesh can take less than, by the clock."""

from __future__ import annotations

from collections.abc import Sequence

from planner.pricing import PricedProblem
from planner.search.problem import FORBIDDEN
from planner.work.units import units_of

__all__ = ["compute_bound", "least_of_choice", "overhead", "step_bound"]


def compute_bound(priced: PricedProblem, *, pinned: bool = True) -> tuple[int, int]:
    """Least units of computing, and of updating parameters, whatever the layouts.

    Every operator runs in its cheapest strategy, by its own work: collectives inside some may hide beside it.  A pass
    through a unit takes no less than the host needs to start its kernels, whose number no strategy changes.  Prices are
    rounded, the clock's seconds are not: a unit per operator and pass is left for that.  `pinned`: of the strategies
    that pins allow, else of all.
    """
    nodes = priced.problem.nodes
    machine, unit = priced.machine, units_of(priced.graph).of
    interval = machine.profile.host.dispatch_interval_s / machine.unit_s
    passes: dict[tuple[int, bool], tuple[int, int]] = {}
    sums: dict[tuple[int, int], tuple[int, int]] = {}
    for name, node in priced.op_nodes.items():
        table, costs = priced.tables[name], nodes[node].costs
        key = id(table), id(costs)
        if not pinned:
            sums[key] = max(0, table.least[0] - 1), max(0, table.least[1] - 1)
        elif key not in sums:
            allowed = costs < FORBIDDEN
            ways = table.work.forward, table.work.backward
            forward, backward = (max(0, int(w[allowed].min()) - 1) if allowed.any() else 0 for w in ways)
            sums[key] = forward, backward
        for back in (False, True):
            busy, launches = passes.get((unit[name], back), (0, 0))
            passes[unit[name], back] = busy + sums[key][back], launches + table.launches[back]
    started = sum(max(busy, int(launches * interval)) for busy, launches in passes.values())
    least = [int(nodes[n].costs.min()) for n in priced.parameter_nodes.values()]
    return started, max(0, sum(least) - len(least))


def least_of_choice(priced: PricedProblem, choice: Sequence[int]) -> int:
    """Units that the step of a choice takes at least: what its operators compute, and the update."""
    own = 0
    for name, node in priced.op_nodes.items():
        work = priced.tables[name].work
        own += max(0, int(work.forward[choice[node]] + work.backward[choice[node]]) - 2)
    return own + sum(max(0, int(priced.problem.nodes[n].costs[choice[n]]) - 1) for n in priced.parameter_nodes.values())


def step_bound(priced: PricedProblem, objective_bound: int = 0) -> int:
    """Units that a step on this mesh takes at least, where the additive objective is at least `objective_bound`.

    With the update U, what computes and what is redistributed of activations run one after the other, and so do the
    gathers and sums of parameters, beside them at best: each is no longer than the step without U, so that the
    objective O <= 2 (step - U) + U.  Where collectives inside operators may hide beside products, they are a third
    part.
    """
    computing, updating = compute_bound(priced)
    hidden = any(c.kind == "permute" for t in priced.tables.values() for c in t.rule.inner)
    parts = 3 if hidden else 2
    slack = 2 * len(priced.problem.edges) + 4 * len(priced.op_nodes)  # of rounding, a unit or so for each price
    shared = (objective_bound + (parts - 1) * updating - slack) // parts
    return max(computing + updating, shared) + overhead(priced)


def overhead(priced: PricedProblem) -> int:
    """Units that pass once a step of training outside the model."""
    machine = priced.machine
    return round(machine.profile.host.step_overhead_s / machine.unit_s) if machine.settings.training else 0
