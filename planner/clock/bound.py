"""What no plan on a mesh can take less than, by the clock."""

from __future__ import annotations

from planner.pricing import PricedProblem

__all__ = ["compute_bound", "overhead", "step_bound"]


def compute_bound(priced: PricedProblem) -> tuple[int, int]:
    """Least units of computing, and of updating parameters, whatever the layouts: every operator runs in the stream
    that computes, with the collectives inside it, in its cheapest strategy."""
    known: dict[int, int] = {}

    def least(node: int) -> int:
        costs = priced.problem.nodes[node].costs
        if id(costs) not in known:
            known[id(costs)] = int(costs.min())
        return known[id(costs)]

    return sum(map(least, priced.op_nodes.values())), sum(map(least, priced.parameter_nodes.values()))


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
