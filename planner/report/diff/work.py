"""What a step does of that for which operators answer: how often, and on how many stages at once."""

from __future__ import annotations

from fractions import Fraction

from planner.planning.document import PlanDocument
from planner.report.diff.ledger import PARTS, Bill
from planner.report.wire import exchanges

__all__ = ["Work"]


class Work:
    """Picoseconds of a step that bills of a plan stand for."""

    def __init__(self, plan: PlanDocument, unit_s: Fraction) -> None:
        stages = len(plan.stages)
        gathers, sums = exchanges(plan)
        each = Fraction(plan.schedule.micro_batches, stages)
        once = {
            "parameters": Fraction(gathers, stages),
            "parameter_gradients": Fraction(sums, stages),
            "optimizer": Fraction(1, stages),
        }
        self._times = {p: once.get(p, each) * unit_s * 10**12 for p in PARTS}

    def unlike(self, other: Work) -> list[str]:
        """Parts of the objective that a step has another number of times."""
        return [p for p in PARTS if self._times[p] != other._times[p]]

    def of(self, bill: Bill) -> Fraction:
        return sum((getattr(bill, p) * t for p, t in self._times.items()), Fraction())
