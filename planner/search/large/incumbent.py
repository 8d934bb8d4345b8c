"""The best choice and bound of a contracted problem, judged by exact evaluation of the original one."""

from __future__ import annotations

import math
import threading

import numpy as np
from numpy.typing import NDArray

from planner.search.control import Control
from planner.search.large.exact import Evaluator
from planner.search.problem import Problem
from planner.search.reduction.contract import Contracted

__all__ = ["Incumbent"]

Integers = NDArray[np.int64]


class Incumbent:
    """`choice` and `cost` (inf: none) in terms of the contracted problem.  Safe to call from several threads."""

    def __init__(self, problem: Problem, control: Control, contracted: Contracted) -> None:
        self.control, self.contracted, self.reduced = control, contracted, contracted.reduced
        self._evaluate = Evaluator(problem)
        self._lock = threading.Lock()
        self.choice: Integers | None = None
        self.cost = math.inf
        self.refused = 0

    def offer(self, choice: Integers, cost: float, solver: str) -> bool:
        """Takes a choice that its finder believes to cost `cost`; whether it is the best so far."""
        with self._lock:
            if cost >= self.cost:
                return False
            full = self.contracted.restore(choice.tolist())
            judged = self._evaluate(full)
            if judged is None:  # sums beyond float64, or forbidden entries that only just seemed dear
                self.refused += 1
                return False
            self.choice, self.cost = choice.copy(), cost
        self.control.offer(full, judged, solver)
        return True

    def prove(self, value: float, solver: str) -> None:
        """Takes a bound of the contracted problem; costs are integers, so it is rounded up."""
        if math.isfinite(value):
            bound = math.ceil(value) * self.reduced.scale
            cost = self.control.cost
            self.control.prove(bound if cost is None else min(bound, cost), solver)

    @property
    def over(self) -> bool:
        """Whether to stop: time is up, or the choice is proven optimal."""
        return self.control.stopped or self.control.closed
