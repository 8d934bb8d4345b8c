"""Who works on a contracted problem: the dual, the search for choices, and the integer program."""

from __future__ import annotations

import math
import threading
import time

import numpy as np
from numpy.typing import NDArray

from planner.native.forest import Forest
from planner.search.elimination.tables import TableStore, TooLarge
from planner.search.goal import Goal
from planner.search.large.core import flatten
from planner.search.large.dual import Dual
from planner.search.large.helper import Helper
from planner.search.large.incumbent import Incumbent
from planner.search.large.primal import Primal
from planner.search.large.program import prepare
from planner.search.prices.lagrangian import Lagrangian
from planner.search.prices.memory import branch_and_bound
from planner.search.reduction.reduced import Infeasible, Reduced

__all__ = ["Team"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
NEWS = 1e-3  # share of the bound by which the dual rises until its prices call for another descent
FIRST_STEPS = 30  # of the dual, before choices are decoded from it,
FIRST_SHARE = 0.1  # or this share of the time, where steps are slow
PROGRAM_STEPS = 120  # of the dual, before its prices name the rows of the integer program
PROGRAM_PAIRS = 60_000  # pairs of classes of states up to which an integer program is worth its time
PROGRAM_ROWS = 60
PROGRAM_SECONDS = 1.0  # at least, which it takes to be set up
ELIMINATION_ENTRIES = 1 << 22  # of all tables of one elimination: tenths of a second
ELIMINATION_WORK = 10**8  # entries in all: some seconds
DESCENTS = 3  # of the dual, after which its thread searches for choices as well
TURNS = 25  # without a time limit
TURN_STEPS = 60  # of the dual in each turn
TELL = 20  # steps of the dual between reports


class Team:
    """Shared by the threads; whatever one finds, the others see."""

    def __init__(self, incumbent: Incumbent, seed: int) -> None:
        self.incumbent, self.seed = incumbent, seed
        reduced = self.reduced = incumbent.reduced
        self._worst = _worst(reduced)  # a bound above this proves that no choice fits
        beyond = 4 * self._worst + 1
        self.graph = flatten(reduced, beyond)
        x = np.zeros(self.graph.nodes, np.int64)
        self.dual = Dual(reduced, Forest(self.graph, x, seed), beyond)
        self.primals = [
            Primal(Forest(self.graph, x, seed + k), seed + k, lambda: self.over, self._offer_choice) for k in (1, 2)
        ]
        self.helper: Helper | None = None
        self.infeasible = False
        self.failure: BaseException | None = None
        self._ended = self._eliminated = False
        left = incumbent.control.left
        self.timed = incumbent.control.time_limit is not None
        self._first = time.monotonic() + FIRST_SHARE * (left or 0.0)
        self._ready = threading.Event()
        self._advice = self.dual.best_bound, self.dual.best_prices, x
        self._turns, self._followed = [0, 0], [-math.inf, -math.inf]

    @property
    def over(self) -> bool:
        """Whether everyone should stop."""
        return self._ended or self.infeasible or self.failure is not None or self.incumbent.over

    def advance_dual(self) -> None:
        """One step of the dual, and now and then a report."""
        dual = self.dual
        dual.step(self.incumbent.cost)
        self._advice = dual.best_bound, dual.best_prices, dual.best_choice
        if dual.steps % TELL == 0:
            self._tell_dual()
        if dual.steps >= FIRST_STEPS or (self.timed and time.monotonic() > self._first):
            self._ready.set()

    def _tell_dual(self) -> None:
        """Hands in its bound and the best choice decoded from it."""
        if self.dual.best_bound > self._worst:
            self.infeasible = True
            return
        self.incumbent.prove(self.dual.best_bound, "dual")
        self._offer(self.dual.forest, "dual")

    def improve(self, who: int) -> None:
        """One descent or annealing by primal `who`.

        As long as the dual makes progress, the next descent ends lower than annealing would from the last one.
        """
        primal = self.primals[who]
        turn = self._turns[who] = self._turns[who] + 1
        bound, prices, decoded = self._advice
        best = self.incumbent.choice
        news = bound - self._followed[who] > NEWS * abs(bound)
        if best is None or news or turn % 3 == 1:
            self._followed[who] = bound
            primal.descend(decoded, prices)
        else:
            primal.anneal(best, prices)

    def _offer_choice(self, forest: Forest) -> None:
        self._offer(forest, "tree moves")

    def _offer(self, forest: Forest, solver: str) -> None:
        if math.isfinite(forest.best_cost):
            self.incumbent.offer(forest.best, forest.best_cost + self.reduced.offset, solver)

    def follow_dual(self) -> None:
        """The first thread's work."""
        self._guarded(self._follow_dual)

    def _follow_dual(self) -> None:
        while not self.over:
            self.advance_dual()
            if self.dual.descents >= 1:
                self.eliminate()
            if self.dual.descents >= DESCENTS:
                self._tell_dual()
                self.improve(1)
        self._tell_dual()

    def eliminate(self) -> None:
        """Elimination with branch and bound, once, where the tables stay small: there its bound is the better one."""
        if self._eliminated:
            return
        self._eliminated = True
        try:
            store = TableStore(total_cap=ELIMINATION_ENTRIES, stop=lambda: self.over)
            Lagrangian(self.reduced, store=store).evaluate({}, {})
            self.incumbent.control.say("elimination is narrow enough: branch and bound")
            goal = Goal(stop=lambda: self.over, cutoff=self.incumbent.cost, offer=self._take)
            prices = {int(r): float(self.dual.best_prices[r]) for r in np.flatnonzero(self.dual.best_prices)}
            found = branch_and_bound(self.reduced, goal, work=ELIMINATION_WORK, prices=prices)
            if found.choice is not None:
                self._take(found.choice, self.reduced.cost(found.choice))
            self.incumbent.prove(min(found.bound, self.incumbent.cost), "elimination")
        except TooLarge:
            return
        except Infeasible:  # no choice below the cutoff
            if math.isfinite(self.incumbent.cost):
                self.incumbent.prove(self.incumbent.cost, "elimination")
            else:
                self.infeasible = True

    def _take(self, choice: tuple[int, ...], cost: float) -> None:
        self.incumbent.offer(np.array(choice, np.int64), cost, "elimination")

    def search_choices(self) -> None:
        """The second thread's work."""
        self._guarded(self._search_choices)

    def _search_choices(self) -> None:
        while not self.over and not self._ready.wait(0.02):
            pass
        while not self.over:
            self.improve(0)

    def _guarded(self, work: object) -> None:
        try:
            assert callable(work)
            work()
        except BaseException as e:
            self.failure = e

    def mind_program(self) -> None:
        """Starts the integer program once the dual can name its rows, where it is small enough and time is left."""
        left = self.incumbent.control.left
        if self.helper is None and self.dual.steps >= PROGRAM_STEPS and (left is None or left > PROGRAM_SECONDS):
            self.start_program()

    def start_program(self) -> None:
        pairs = int((self.dual.messages.layout.rows * self.dual.messages.layout.columns).sum())
        if pairs > PROGRAM_PAIRS or self.helper is not None:
            return
        try:
            lazy = prepare(self.reduced)
        except Infeasible:
            self.infeasible = True
            return
        paid = self.dual.best_prices * self.reduced.limits
        rows = [int(r) for r in np.argsort(-paid, kind="stable")[:PROGRAM_ROWS] if self.dual.best_prices[r] > 0]
        self.helper = Helper(lazy, rows, self.incumbent.control.left, self._hear, self.incumbent.control.say)

    def _hear(self, bound: float | None, choice: list[int] | None) -> None:
        if bound == math.inf:
            self.infeasible = True
            return
        if choice is not None:
            x = np.array(choice, np.int64)
            self.incumbent.offer(x, self.reduced.cost(choice), "integer program")
        if bound is not None:
            self.incumbent.prove(bound, "integer program")

    def tell_prices(self) -> None:
        """Leaves the best prices with the control, for certificates."""
        prices, scale = self.dual.best_prices, self.reduced.scale
        instants = self.reduced.instants
        self.incumbent.control.prices = {instants[r]: float(prices[r]) * scale for r in np.flatnonzero(prices)}

    def take_turns(self) -> None:
        """All work in one thread, a fixed amount each, so that the answer depends on the problem and the seed alone."""
        self._guarded(self._take_turns)

    def _take_turns(self) -> None:
        for turn in range(TURNS):
            for _ in range(TURN_STEPS):
                if self.over:
                    return
                self.advance_dual()
            self.improve(0)
            self.improve(1)
            if turn == PROGRAM_STEPS // TURN_STEPS:
                self.eliminate()
                self.start_program()
                if self.helper is not None:
                    self.helper.wait()

    def end(self) -> None:
        self._ended = True
        for forest in (self.dual.forest, *(p.forest for p in self.primals)):
            forest.stop[0] = 1
        if self.helper is not None:
            self.helper.end()


def _worst(reduced: Reduced) -> float:
    """An integer that no allowed choice costs more than."""
    arrays = reduced.arrays
    factors = [*reduced.nodes, *(f for _, _, f in reduced.edges)]
    return float(math.ceil(abs(reduced.offset) + math.fsum(max(0.0, arrays.high(f.costs)) for f in factors)))
