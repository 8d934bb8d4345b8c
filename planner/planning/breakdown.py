"""The additive objective, taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from planner.clock import redistribution_cost, run_cost
from planner.lowering import Program, Run
from planner.pricing import PricedProblem

__all__ = ["CostBreakdown", "breakdown"]


@dataclass(frozen=True, slots=True)
class CostBreakdown:
    """Parts of the objective, in units of the profile's price resolution; they add up to it exactly."""

    compute_forward: int = 0
    compute_backward: int = 0
    inside_operators: int = 0  # collectives within operators
    activations: int = 0  # redistributions of activations
    activation_gradients: int = 0
    parameters: int = 0  # from stored to computed layouts
    parameter_gradients: int = 0  # reduced and brought to the stored layout
    optimizer: int = 0

    @property
    def total(self) -> int:
        return sum(asdict(self).values())

    def __add__(self, other: CostBreakdown) -> CostBreakdown:
        mine, theirs = asdict(self), asdict(other)
        return CostBreakdown(**{k: mine[k] + theirs[k] for k in mine})

    def seconds(self, unit_s: float) -> dict[str, float]:
        """Parts by name, in seconds."""
        return {k: v * unit_s for k, v in asdict(self).items()}


def breakdown(priced: PricedProblem, choice: Sequence[int], program: Program) -> CostBreakdown:
    """Prices the program instruction by instruction; the total equals the objective of `choice`."""
    runs = [i for i in program.instructions if isinstance(i, Run) and i.op in priced.op_nodes]
    work = [(r.backward, *run_cost(priced, choice, r)) for r in runs]
    moved = {(p, g): 0 for p in (False, True) for g in (False, True)}
    for redistribution in program.redistributions():
        moved[redistribution.tensor in priced.parameter_nodes, redistribution.gradient] += redistribution_cost(
            priced, redistribution
        )
    return CostBreakdown(
        compute_forward=sum(own for back, own, _ in work if not back),
        compute_backward=sum(own for back, own, _ in work if back),
        inside_operators=sum(inside for *_, inside in work),
        activations=moved[False, False],
        activation_gradients=moved[False, True],
        parameters=moved[True, False],
        parameter_gradients=moved[True, True],
        optimizer=sum(int(priced.problem.nodes[n].costs[choice[n]]) for n in priced.parameter_nodes.values()),
    )
