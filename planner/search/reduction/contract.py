"""Contraction on top of presolve: nodes that are functions of a neighbour merge into it, nodes without memory go.

Where the allowed pairs of edge (u, v) leave one state f(i) of v for every state i of u, v is no decision of its own:

    cost_u[i]     += cost_v[f(i)] + cost_uv[i, f(i)]
    usage_u[i]    gains usage_v[f(i)] on v's own interval
    cost_uw[i, k] += cost_vw[f(i), k]                      for every other neighbour w of v

A node v that holds no memory in any row that can bind, with at most two neighbours, is minimised out (one step of
non-serial dynamic programming, Bertele and Brioschi 1972):

    cost_uw[i, k] += min_j ( cost_v[j] + cost_vu[j, i] + cost_vw[j, k] )

Usage that is equal in all states of a node is taken off the limits.  Everything is exact.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.search.problem import Problem
from planner.search.reduction.arrays import Array, Interner
from planner.search.reduction.presolve import _View
from planner.search.reduction.reduced import Factor, Infeasible, Reduced

__all__ = ["Contracted", "Interrupted", "contract", "contract_further"]

GROWTH = 4_000_000  # entries of one matrix that contraction may make
PRODUCT = 50_000_000  # additions of one min-plus product
FURTHER_GROWTH = 1 << 18  # as these, before messages are passed
FURTHER_PRODUCT = 1 << 24


class Interrupted(Exception):
    """There was no time to finish."""


@dataclass(frozen=True, slots=True)
class _Merged:
    """`follows[i]` is the original state of `node` where `leader` takes its original state i."""

    node: int
    leader: int
    follows: NDArray[np.int64]

    def restore(self, choice: NDArray[np.int64]) -> int:
        return int(self.follows[choice[self.leader]])


@dataclass(frozen=True, slots=True)
class _Minimised:
    """`states[best[i, k]]` is the original state of `node` for the states at `places` of its neighbours."""

    node: int
    neighbours: tuple[int, ...]
    places: tuple[NDArray[np.int64], ...]  # from original states to axes of `best`
    best: NDArray[np.integer[Any]]
    states: NDArray[np.int64]

    def restore(self, choice: NDArray[np.int64]) -> int:
        at = tuple(int(p[choice[n]]) for n, p in zip(self.neighbours, self.places, strict=True))
        return int(self.states[self.best[at]])


@dataclass(frozen=True)
class Contracted:
    """The reduced problem and the way back."""

    reduced: Reduced
    steps: tuple[_Merged | _Minimised, ...]

    def restore(self, choice: Sequence[int]) -> tuple[int, ...]:
        """The choice for the original problem."""
        full = np.asarray(self.reduced.restore(choice), np.int64)
        for step in reversed(self.steps):
            full[step.node] = step.restore(full)
        return tuple(full.tolist())

    def left_of(self, choice: Sequence[int]) -> tuple[int, ...] | None:
        """A choice of the original problem as one of what is left; None where one of its states is gone."""
        reduced = self.reduced
        places = [np.flatnonzero(s == choice[v]) for v, s in zip(reduced.origin, reduced.states, strict=True)]
        return tuple(int(p[0]) for p in places) if all(len(p) for p in places) else None


def contract(problem: Problem, stopped: Callable[[], bool] = lambda: False) -> Contracted:
    """Presolve and contraction to a fixed point, or as far as they get until `stopped`: what is done by then is exact.

    `Infeasible` when no choice is left; `Interrupted` where there was no time even to translate the problem.
    """
    view = _Contraction(problem, stopped)
    with contextlib.suppress(Interrupted):  # between two visits, everything is in order
        view.unite()
        view.shrink(True)
        while view.round():
            view.shrink(True)
    return Contracted(view.freeze(), tuple(view.steps))


def contract_further(problem: Reduced, stopped: Callable[[], bool] = lambda: False) -> Contracted:
    """The same of a presolved problem, of which no table grows beyond what message passing goes over quickly; `restore`
    gives choices of that problem, and the `instants` of what is left are its rows."""
    view = _Further(problem, stopped)
    with contextlib.suppress(Interrupted):
        view.unite()
        view.shrink(True)
        while view.round():
            view.shrink(True)
    return Contracted(_moved(view.freeze(), Interner()), tuple(view.steps))


def _moved(problem: Reduced, arrays: Interner) -> Reduced:
    """With its tables among other arrays, without those that led to them."""

    def moved(factor: Factor) -> Factor:
        usage = tuple((span, arrays.add(problem.arrays[n])) for span, n in factor.usage)
        return Factor(arrays.add(problem.arrays[factor.costs]), usage)

    return replace(
        problem,
        arrays=arrays,
        nodes=tuple(moved(f) for f in problem.nodes),
        edges=tuple((u, v, moved(f)) for u, v, f in problem.edges),
    )


class _Contraction(_View):
    growth, product, most = GROWTH, PRODUCT, PRODUCT

    def __init__(self, problem: Problem, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped
        super().__init__(problem, True)
        self.steps: list[_Merged | _Minimised] = []
        self.sizes = [len(n.costs) for n in problem.nodes]

    def _costs(self, costs: Array) -> int:
        if self._stopped():
            raise Interrupted
        return super()._costs(costs)

    def _visit(self, v: int) -> None:
        if self._stopped():
            raise Interrupted
        super()._visit(v)

    def unite(self) -> None:
        """The cheap part of a round: in published problems most nodes are renamed copies of a neighbour, and presolve
        need not look at each of them."""
        self._level()
        self._merge(both=True)
        self._remove_free()

    def round(self) -> bool:
        """One pass over all nodes; whether anything changed."""
        self._level()
        before = len(self.steps)
        self._remove_free()
        self._merge(both=True)
        if len(self.steps) == before:
            self._merge(both=False)
        return len(self.steps) > before

    def _level(self) -> None:
        """Takes usage common to all states of a node off the limits, and usage in rows that cannot bind away."""
        actives = np.concatenate(([0], np.cumsum(self.active)))
        for v, factor in enumerate(self.nodes):
            if not self.alive[v] or not factor.usage:
                continue
            usage = []
            for (a, b), number in factor.usage:
                low, high = self.arrays.low(number), self.arrays.high(number)
                if low != 0:
                    self.limits[a:b] -= low
                    number = self._above_low(number)
                if high > low and actives[a] < actives[b]:
                    usage.append(((a, b), number))
            if tuple(usage) != factor.usage:
                self.nodes[v] = Factor(factor.costs, tuple(usage))
                self.dirty.add(v)

    def _above_low(self, number: int) -> int:
        return self.arrays.derive(("above", number), lambda: self.arrays[number] - self.arrays.low(number))

    def _merge(self, *, both: bool) -> None:
        """Merges along functional edges, those that are functions both ways first."""
        waiting = deque((v, u) for v, around in enumerate(self.adjacent) for u in around)
        while waiting:
            if self._stopped():
                raise Interrupted
            v, u = waiting.popleft()
            factor = self.adjacent[v].get(u)
            if factor is None:  # gone with one of its nodes
                continue
            follows = self._function(self.adjacent[u][v].costs)
            if follows is None:
                continue
            if both:
                back = self._function(factor.costs)
                if back is None:
                    continue
                if self._weight(v) > self._weight(u):  # the one with less to move
                    v, u, follows = u, v, back
            elif self._grown(v, u) > self.growth:
                continue
            moved = [w for w in self.adjacent[v] if w != u]
            self._merge_into(v, u, follows)
            waiting.extend(pair for w in moved for pair in ((w, u), (u, w)))

    def _weight(self, v: int) -> int:
        """How much moves when v merges into another node."""
        return len(self.adjacent[v]) + len(self.nodes[v].usage)

    def _grown(self, v: int, u: int) -> int:
        """Entries of the largest matrix that merging v into u would make."""
        widest = max((len(self.states[w]) for w in self.adjacent[v] if w != u), default=0)
        return len(self.states[u]) * widest

    def _function(self, number: int) -> int | None:
        """The interned f where row i of the matrix is finite at f[i] alone."""

        def compute() -> int | None:
            finite = np.isfinite(self.arrays[number])
            return self.arrays.add(finite.argmax(axis=1)) if (finite.sum(axis=1) == 1).all() else None

        return self.arrays.once(("function", number), compute)

    def _merge_into(self, v: int, u: int, f: int) -> None:
        index = self.arrays[f]
        follows = np.zeros(self.sizes[u], np.int64)
        follows[self.states[u]] = self.states[v][index]
        self.steps.append(_Merged(v, u, follows))
        edge = self.adjacent[u][v]

        def along(number: int) -> int:
            return self.arrays.derive(("along", number, f), lambda: self.arrays[number][np.arange(len(index)), index])

        gained = Factor(along(edge.costs), tuple((span, along(n)) for span, n in edge.usage))
        own = self._map(self.nodes[v], "take", 0, f)
        self.nodes[u] = self._plus(self._plus(self.nodes[u], own), gained)
        moved = [(w, self._map(g, "take", 0, f)) for w, g in self.adjacent[v].items() if w != u]
        self._drop(v)
        for w, factor in moved:
            old = self.adjacent[u].get(w)
            self._connect(u, w, factor if old is None else self._plus(old, factor))
            self.dirty.add(w)
        self.dirty.add(u)

    def _drop(self, v: int) -> None:
        for w in self.adjacent[v]:
            del self.adjacent[w][v]
            self.dirty.add(w)
        self.adjacent[v] = {}
        self.alive[v] = False

    def _remove_free(self) -> None:
        queue = [v for v, alive in enumerate(self.alive) if alive]
        while queue:
            if self._stopped():
                raise Interrupted
            v = queue.pop()
            if not self.alive[v] or self.nodes[v].usage or len(self.adjacent[v]) > 2:
                continue
            if any(f.usage for f in self.adjacent[v].values()):
                continue
            around = sorted(self.adjacent[v])
            work = len(self.states[v]) * int(np.prod([len(self.states[w]) for w in around], dtype=np.int64))
            if work <= self.product and self._table(around) <= self.most:
                self._minimise(v, around)
                queue += around

    def _table(self, around: Sequence[int]) -> int:
        """Entries of the matrix that minimising out a node with these neighbours makes."""
        return int(np.prod([len(self.states[w]) for w in around], dtype=np.int64))

    def _minimise(self, v: int, around: Sequence[int]) -> None:
        numbers = (self.nodes[v].costs, *(self.adjacent[v][w].costs for w in around))
        table, best = self.arrays.once(("minimised", *numbers), lambda: self._product(numbers))
        places = []
        for w in around:
            place = np.zeros(self.sizes[w], np.int64)
            place[self.states[w]] = np.arange(len(self.states[w]))
            places.append(place)
        self.steps.append(_Minimised(v, tuple(around), tuple(places), best, self.states[v]))
        self._drop(v)
        if not around:
            least = self.arrays[table].reshape(-1)[0]
            if least == np.inf:
                raise Infeasible
            self.offset += int(least)
        elif len(around) == 1:
            self.nodes[around[0]] = self._plus(self.nodes[around[0]], Factor(table))
        else:
            u, w = around
            old = self.adjacent[u].get(w)
            self._connect(u, w, Factor(table) if old is None else self._plus(old, Factor(table)))
        self.dirty.update(around)

    def _product(self, numbers: tuple[int, ...]) -> tuple[int, NDArray[np.integer[Any]]]:
        """(min over the node's states, the minimising state), for every pair of states of the neighbours."""
        cost, *sides = (self.arrays[n] for n in numbers)
        if len(sides) < 2:
            total: Array = cost[:, None] + sides[0] if sides else cost
            return self.arrays.add(np.asarray(total.min(axis=0))), np.asarray(total.argmin(axis=0))
        left, right = cost[:, None] + sides[0], sides[1]
        least = left[0][:, None] + right[0][None, :]
        best = np.zeros(least.shape, np.min_scalar_type(len(cost)))  # there are many, and all are needed to the end
        value, better = np.empty(least.shape), np.empty(least.shape, bool)
        for j in range(1, len(cost)):
            np.add(left[j][:, None], right[j][None, :], out=value)
            np.less(value, least, out=better)
            np.copyto(least, value, where=better)
            np.copyto(best, j, where=better)
        return self.arrays.add(least), best


class _Further(_Contraction):
    """Of a presolved problem: its nodes and states are those that count."""

    growth, product, most = FURTHER_GROWTH, FURTHER_PRODUCT, FURTHER_GROWTH

    def __init__(self, problem: Reduced, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped
        problem = _moved(problem, Interner())
        self.arrays, self.scale, self.memory_scale = problem.arrays, problem.scale, problem.memory_scale
        self.instants = [*range(len(problem.limits))]
        self.limits, self.active = problem.limits.copy(), np.ones(len(problem.limits), bool)
        self.offset, self.fixed = problem.offset, [0] * len(problem.nodes)
        self.alive = [True] * len(problem.nodes)
        self.sizes = [len(s) for s in problem.states]
        self.states = [np.arange(n) for n in self.sizes]
        self.nodes = list(problem.nodes)
        self.adjacent = [{} for _ in problem.nodes]
        for u, v, factor in problem.edges:
            self._connect(u, v, factor)
        self.dirty, self.changes, self.inert = set[int](), 0, set()
        self.steps = []
