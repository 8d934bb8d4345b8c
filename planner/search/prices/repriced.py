"""The dual of the memory rows where elimination under a limit is too wide.

A limit keeps states in the problem that hold less and cost more, and elimination then meets tables that it cannot
hold.  With prices on memory instead, costs and bytes are one number by which presolve compares states as if there were
no limit, so that a value of the dual costs as much as the problem without memory.  Every value bounds the cost of what
fits from below; the choices met on the way differ in a few states of some nodes, and the problem restricted to these
states is small.

Where there are many pairs of states, or elimination is too wide even so, message passing gives the value (a little
lower, and as valid) and elimination among promising states the choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.search.elimination.tables import TableStore, TooLarge
from planner.search.evaluate import evaluate
from planner.search.goal import Goal
from planner.search.messages.restricted import Rounds
from planner.search.prices.lagrangian import Lagrangian
from planner.search.prices.master import Cut, Master
from planner.search.prices.memory import branch_and_bound
from planner.search.problem import FORBIDDEN, Edge, IntArray, Node, Problem, alive_intervals
from planner.search.reduction.presolve import presolve
from planner.search.reduction.reduced import Infeasible
from planner.search.rows import clique_instants, covered_rows

__all__ = ["Repriced", "best_among", "restricted"]

ENTRIES: Final = 1 << 26  # of all tables of one evaluation
LIGHT: Final = 60_000  # distinct pairs of states up to which presolve and elimination are quicker than messages
STEP: Final = 16  # the box of prices starts where one excess costs as much as everything else
CLOSE: Final = 5e-4  # relative distance to the best bound at which it is close enough
HIGHEST: Final = 10**16  # of prices times bytes, well below what stands for forbidden
EXACT: Final = 1 - 2.0**-50  # below every rounding of a product
BRANCH_WORK: Final = 10**7  # table entries of the search among choices met: below a second


class Repriced:
    """The choices met (`cuts`) and the values of the dual at the prices met.  `starts` are valid choices, the limit
    aside, than which no choice met is worse at its prices; `meet` is told of every choice met.  Where elimination is
    too wide, choices whose sum is `cutoff` or more are not looked for (`TooLarge`)."""

    def __init__(
        self,
        problem: Problem,
        stop: Callable[[], bool] = lambda: False,
        *,
        starts: Sequence[Sequence[int]] = (),
        meet: Callable[[tuple[int, ...]], object] = lambda _: None,
        cutoff: float = math.inf,
    ) -> None:
        self.problem, self.stop, self.meet, self.cutoff = problem, stop, meet, cutoff
        self.free = replace(problem, limit=None)
        self.instants = clique_instants(alive_intervals(problem))
        self.cuts: list[Cut] = []
        self.values: list[tuple[dict[int, float], float]] = []
        self._priced: dict[tuple[int, int, float], IntArray] = {}
        items: tuple[Node | Edge, ...] = (*problem.nodes, *problem.edges)
        self._spans = [self._span(item) for item in items]
        self.light = sum({id(e.costs): e.costs.size for e in problem.edges}.values()) <= LIGHT
        self.starts = [self._cut(s) for s in starts]

    def _span(self, item: Node | Edge) -> tuple[int, int]:
        held = item.usage is not None and item.interval is not None and item.interval[0] < item.interval[1]
        return covered_rows(self.instants, item.interval) if held and item.interval else (0, 0)

    def evaluate(self, prices: Mapping[int, float]) -> Cut:
        """The choice of the least sum of cost and priced bytes; `prices` are per byte, by row."""
        cut, value = self._solved(prices, None)
        self.cuts.append(cut)
        self.values.append((dict(prices), value))
        self.meet(cut.choice)
        return cut

    def tilted(self, prices: Mapping[int, float], factors: NDArray[np.float64]) -> Cut:
        """As `evaluate`, with the price of what each node holds multiplied by its factor: that bounds nothing, but
        tells choices apart that cost the same at one price, such as those that treat some of many equal layers
        differently."""
        return self._solved(prices, factors)[0]

    def _solved(self, prices: Mapping[int, float], factors: NDArray[np.float64] | None) -> tuple[Cut, float]:
        """The choice, and a value below which no choice's sum lies."""
        running = np.concatenate(([0.0], np.cumsum([prices.get(r, 0.0) for r in range(len(self.instants))])))
        each = np.array([running[b] - running[a] for a, b in self._spans])
        if factors is not None:
            each = each * np.concatenate((factors, factors[[e.u for e in self.problem.edges]]))
        count = len(self.problem.nodes)
        nodes = [
            Node(self._costs(n, float(price)), name=n.name)
            for n, price in zip(self.problem.nodes, each[:count], strict=True)
        ]
        edges = [
            Edge(e.u, e.v, self._costs(e, float(price)))
            for e, price in zip(self.problem.edges, each[count:], strict=True)
        ]
        choice, value = self._least(Problem(nodes, edges, None), prices)
        return self._cut(choice), value

    def _least(self, problem: Problem, prices: Mapping[int, float]) -> tuple[tuple[int, ...], float]:
        if self.light:
            try:
                reduced = presolve(problem)
                store = TableStore(total_cap=ENTRIES, stop=self.stop)
                value, found = Lagrangian(reduced, store=store).evaluate({}, {})
                return reduced.restore(found.choice), value * reduced.scale
            except TooLarge:
                self.light = False
        known = min((*self.starts, *self.cuts), key=lambda c: self._sum(c, prices), default=None)
        reduced = presolve(problem, prune=False)  # sweeps take less time than what makes them shorter
        goal = Goal(self.stop, cutoff=self.cutoff / reduced.scale)
        rounds = Rounds(reduced, goal, None if known is None else known.choice)
        rounds.glance(choose=True)
        if rounds.choice is None:
            raise TooLarge("no choice was found among promising states")
        return reduced.restore(rounds.choice), rounds.bound * reduced.scale

    @staticmethod
    def _sum(cut: Cut, prices: Mapping[int, float]) -> float:
        return cut.cost + math.fsum(p * float(cut.usage[r]) for r, p in prices.items())

    def _cut(self, choice: Sequence[int]) -> Cut:
        cost = evaluate(self.free, choice)
        assert cost is not None, "choices offered are allowed"
        return Cut(tuple(choice), float(cost), self.usage(choice))

    def usage(self, choice: Sequence[int]) -> NDArray[np.float64]:
        """Bytes held at every row."""
        change = np.zeros(len(self.instants) + 1)
        p = self.problem
        held = [0 if n.usage is None else int(n.usage[x]) for n, x in zip(p.nodes, choice, strict=True)]
        held += [0 if e.usage is None else int(e.usage[choice[e.u], choice[e.v]]) for e in p.edges]
        for (a, b), size in zip(self._spans, held, strict=True):
            change[a] += size
            change[b] -= size
        return np.cumsum(change)[:-1]

    def _costs(self, item: Node | Edge, price: float) -> IntArray:
        """Costs with priced bytes, rounded down; equal arrays stay shared."""
        if price <= 0 or item.usage is None:
            return item.costs
        key = id(item.costs), id(item.usage), price
        if key not in self._priced:
            priced = np.floor(item.usage * (price * EXACT)).astype(np.int64)
            self._priced[key] = np.where(item.costs >= FORBIDDEN, FORBIDDEN, item.costs + priced)
        return self._priced[key]

    def best(self, limit: int) -> tuple[float, dict[int, float]]:
        """The best bound met on the cost of every choice whose rows hold at most `limit` bytes, and its prices."""

        def bound(prices: dict[int, float], least: float) -> float:
            allowance = math.fsum(prices.values()) * limit
            return least - allowance - 2.0**-40 * (abs(least) + allowance if allowance else 0.0)

        return max(((bound(p, v), p) for p, v in self.values), key=lambda b: b[0], default=(-math.inf, {}))

    def maximise(self, limit: int, *, rounds: int, enough: float = math.inf) -> None:
        """Meets choices until the bound for `limit` is as good as it gets, or `enough`, in at most so many rounds; what
        was met so far counts.  Raises `TooLarge` where elimination is too wide, `Infeasible` where nothing is allowed.
        """
        limits = np.full(len(self.instants), float(limit))
        if not self.cuts:
            self.evaluate({})
        master = Master(self.cuts[0].cost / STEP)
        for number, cut in enumerate(self.cuts, 1):
            self._meet(master, cut, limits, self.cuts[:number])
        for _ in range(rounds):
            known = self.best(limit)[0]
            solved = master.solve()
            while solved and solved[1] - known <= CLOSE * abs(known) and master.at_box(solved[0]):
                if sum(solved[0].values()) * limit > HIGHEST:
                    return
                master.widen()
                solved = master.solve()
            if solved is None or self.stop() or known >= enough or solved[1] - known <= CLOSE * abs(known):
                return
            prices = {r: m for r, m in solved[0].items() if m > 0}
            if sum(prices.values()) * limit > HIGHEST or any(prices == p for p, _ in self.values):
                return
            self._meet(master, self.evaluate(prices), limits, self.cuts)

    def _meet(self, master: Master, cut: Cut, limits: NDArray[np.float64], cuts: list[Cut]) -> None:
        excess = cut.usage - limits
        worst = int(np.argmax(excess)) if len(excess) else 0
        if len(excess) and excess[worst] > 0:
            master.row(worst, float(limits[worst]), float(excess[worst]), cuts)
        master.cut(cut, limits)


def best_among(
    problem: Problem, choices: Sequence[Sequence[int]], stop: Callable[[], bool] = lambda: False
) -> tuple[int, ...] | None:
    """A choice within the limit, of states that occur in `choices` alone, found in limited work; None where none is."""
    small, states = restricted(problem, choices)
    try:
        reduced = presolve(small)
        found = branch_and_bound(reduced, Goal(stop, tolerance=CLOSE), work=BRANCH_WORK, close=0)
    except (Infeasible, TooLarge):
        return None
    if found.choice is None:
        return None
    return tuple(int(s[x]) for s, x in zip(states, reduced.restore(found.choice), strict=True))


def restricted(problem: Problem, choices: Sequence[Sequence[int]]) -> tuple[Problem, list[NDArray[np.int64]]]:
    """The problem with only the states that occur in `choices`, and which these are by node."""
    states = [np.array(sorted(set(column)), dtype=np.int64) for column in zip(*choices, strict=True)]
    known: dict[tuple[int, bytes, bytes], IntArray] = {}

    def part(array: IntArray, u: int, v: int | None) -> IntArray:
        key = id(array), states[u].tobytes(), b"" if v is None else states[v].tobytes()
        if key not in known:
            known[key] = array[states[u]] if v is None else array[np.ix_(states[u], states[v])]
        return known[key]

    def usage(item: Node | Edge, u: int, v: int | None) -> IntArray | None:
        return None if item.usage is None else part(item.usage, u, v)

    nodes = [replace(n, costs=part(n.costs, i, None), usage=usage(n, i, None)) for i, n in enumerate(problem.nodes)]
    edges = [replace(e, costs=part(e.costs, e.u, e.v), usage=usage(e, e.u, e.v)) for e in problem.edges]
    return Problem(nodes, edges, problem.limit), states
