"""What no plan on a mesh can take less than, by the clock."""

from __future__ import annotations

from planner.pricing import PricedProblem
from planner.pricing.machine import IntArray
from planner.work.units import units_of

__all__ = ["compute_bound", "overhead", "step_bound"]


def compute_bound(priced: PricedProblem, *, pinned: bool = True) -> tuple[int, int]:
    """Least units of computing, and of updating parameters, whatever the layouts.

    Every operator runs in the stream that computes, with the collectives inside it, in its cheapest strategy; and a
    pass through a unit takes no less than the host needs to start its kernels, whose number no strategy changes.
    `pinned`: of the strategies that pins allow.
    """
    nodes, known = priced.problem.nodes, dict[int, int]()

    def least(costs: IntArray) -> int:
        if id(costs) not in known:
            known[id(costs)] = int(costs.min())
        return known[id(costs)]

    device, unit = priced.machine.profile.device, units_of(priced.graph).of
    interval = 0.0 if device is None else device.dispatch_interval_s / priced.machine.unit_s
    passes: dict[tuple[int, bool], tuple[int, int]] = {}
    sums: dict[int, tuple[int, int]] = {}
    for name in priced.op_nodes:
        table = priced.tables[name]
        if id(table) not in sums:
            work = table.work
            ways = (work.forward + work.inner_forward, work.backward + work.inner_backward)
            sums[id(table)] = int(ways[0].min()), int(ways[1].min())
        for backward in (False, True):
            busy, launches = passes.get((unit[name], backward), (0, 0))
            passes[unit[name], backward] = busy + sums[id(table)][backward], launches + table.launches[backward]
    started = sum(max(busy, int(launches * interval)) for busy, launches in passes.values())
    computed = sum(
        least(nodes[n].costs if pinned else priced.tables[name].costs) for name, n in priced.op_nodes.items()
    )
    return max(started, computed), sum(least(nodes[n].costs) for n in priced.parameter_nodes.values())


def step_bound(priced: PricedProblem, objective_bound: int = 0) -> int:
    """Units that a step on this mesh takes at least, where the additive objective is at least `objective_bound`.

    What computes (with collectives inside operators), what is redistributed of activations and of parameters are three
    streams: the step is no shorter than the first by itself, nor than the mean of the three, which with the update U
    add up to the objective O: step >= (O - U) / 3 + U.
    """
    computing, updating = compute_bound(priced)
    return max(computing + updating, (objective_bound + 2 * updating) // 3) + overhead(priced)


def overhead(priced: PricedProblem) -> int:
    """Units that pass once a step of training outside the model."""
    device = priced.machine.profile.device
    if device is None or not priced.machine.settings.training:
        return 0
    return round(device.step_overhead_s / priced.machine.unit_s)
