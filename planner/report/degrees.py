"""How an operator is divided, in words of the field: `DP 2 x TP 8`."""

from __future__ import annotations

from typing import Final

from planner.planning.document import OperatorDocument, PlanDocument
from planner.report.colours import Splits

__all__ = ["Degrees"]

_PARALLEL: Final = {"b": "DP", "s": "sequence", "c": "TP", "k": "TP rows", "e": "EP", "p": "pending"}


class Degrees:
    """Of the operators of one plan: ranks in each role; `TP` divides columns, `TP rows` what a product sums over."""

    def __init__(self, plan: PlanDocument) -> None:
        self.mesh, self.splits = plan.mesh, Splits.of(plan)

    def text(self, op: OperatorDocument) -> str:
        sizes = self.mesh.sizes
        ranks: dict[str, int] = {}
        for axis in self.mesh.names:
            if sizes[axis] > 1:
                letter = self.splits.letter(op, axis)
                ranks[letter] = ranks.get(letter, 1) * sizes[axis]
        return " x ".join(f"{name} {ranks[k]}" for k, name in _PARALLEL.items() if k in ranks) or "replicated"
