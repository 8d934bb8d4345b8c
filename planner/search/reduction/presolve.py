"""Presolve: makes a problem smaller without changing its optimum.

Parallel edges merge; states with no allowed partner, or that cannot fit in memory whatever the others
choose, go; separable edges cost_uv[i, j] = a[i] + b[j] dissolve into the nodes; nodes with one state left
dissolve into their neighbours; memory rows that cannot bind are dropped.  A state i is dominated by j when

    cost[j] - cost[i] + sum over edges e of max_k (cost_e[j, k] - cost_e[i, k]) <= 0

and j never uses more memory than i: replacing i by j then never hurts.  The relation is transitive, so all
dominated states may go at once; of equal states the first stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from planner.native.tables import row_classes, row_difference
from planner.search.problem import FORBIDDEN, Edge, Node, Problem, alive_intervals
from planner.search.reduction.arrays import Array, Interner
from planner.search.reduction.reduced import Factor, Infeasible, Reduced, Usage
from planner.search.rows import clique_instants, covered_rows

__all__ = ["presolve"]

EXACT = 2**52  # float64 holds every integer of this size; half of 2**53 leaves room for one difference
DOMINANCE_WORK = 10**8  # entries above which the pairwise comparison of states costs more than it saves
PLAIN_WORK = 1 << 16  # entries up to which comparing equal rows again costs less than to find them


def presolve(
    problem: Problem, *, memory: bool = True, prune: bool = True, fit: bool = True, like: Reduced | None = None
) -> Reduced:
    """The reduced problem.  `Infeasible` when no choice is left.

    `memory=False` ignores the limit; `prune=False` only translates (merging parallel edges);
    `fit=False` keeps every memory row and every state that the limit alone would exclude; `like` is a problem with much
    the same arrays, of which what was found there is not found again.
    """
    view = _View(problem, memory, None if like is None else like.arrays)
    if prune:
        view.shrink(fit)
    return view.freeze()


class _View:
    """Mutable working copy; all arrays are numbers in `self.arrays`."""

    def __init__(self, problem: Problem, memory: bool, arrays: Interner | None = None) -> None:
        self.arrays = Interner() if arrays is None else arrays
        self.scale = _scale(problem)
        self.memory_scale = _memory_scale(problem)
        limited = memory and problem.limit is not None
        self.instants = clique_instants(alive_intervals(problem)) if limited else []
        self.limits = np.full(len(self.instants), float((problem.limit or 0) // self.memory_scale))
        self.active = np.ones(len(self.instants), bool)
        self.offset = 0
        self.fixed = [0] * len(problem.nodes)
        self.alive = [True] * len(problem.nodes)
        self.states = [np.arange(len(n.costs)) for n in problem.nodes]
        self.nodes = [Factor(self._costs(n.costs), self._usage(n.usage, n.interval)) for n in problem.nodes]
        self.adjacent: list[dict[int, Factor]] = [{} for _ in problem.nodes]  # seen from the key's owner: axis 0
        for edge in problem.edges:
            factor = Factor(self._costs(edge.costs), self._usage(edge.usage, edge.interval))
            old = self.adjacent[edge.u].get(edge.v)
            self._connect(edge.u, edge.v, factor if old is None else self._plus(old, factor))
        self.dirty = set(range(len(problem.nodes)))
        self.changes = 0
        self.inert: set[tuple[object, ...]] = set()

    def _costs(self, costs: Array) -> int:
        source = self.arrays.add(costs)
        return self.arrays.derive(
            ("costs", source, self.scale), lambda: np.where(costs >= FORBIDDEN, np.inf, costs // self.scale)
        )

    def _usage(self, usage: Array | None, interval: tuple[int, int] | None) -> tuple[Usage, ...]:
        if usage is None or interval is None or not self.instants:
            return ()
        a, b = covered_rows(self.instants, interval)
        source = self.arrays.add(usage)
        number = self.arrays.derive(
            ("bytes", source, self.memory_scale), lambda: (usage // self.memory_scale).astype(np.float64)
        )
        return (((a, b), number),) if a < b and usage.any() else ()

    def _plus(self, a: Factor, b: Factor) -> Factor:
        costs = self.arrays.plus(a.costs, b.costs)
        few, many = sorted((a.usage, b.usage), key=len)
        if not few:
            return Factor(costs, many)
        usage = list(many)  # sorted by span; nodes that swallow others hold thousands of spans
        for span, number in few:
            at = bisect_left(usage, span, key=itemgetter(0))
            if at < len(usage) and usage[at][0] == span:
                usage[at] = span, self.arrays.plus(usage[at][1], number)
            else:
                usage.insert(at, (span, number))
        return Factor(costs, tuple(usage))

    def _map(self, factor: Factor, name: str, axis: int, index_number: int) -> Factor:
        def apply(number: int) -> int:
            return self.arrays.transposed(number) if name == "T" else self.arrays.take(number, axis, index_number)

        return Factor(apply(factor.costs), tuple((span, apply(n)) for span, n in factor.usage))

    def _connect(self, u: int, v: int, factor: Factor) -> None:
        self.adjacent[u][v] = factor
        self.adjacent[v][u] = self._map(factor, "T", 0, 0)

    def shrink(self, fit: bool) -> None:
        while True:
            queue = sorted(self.dirty)  # position order, round by round: repeated layers meet equal arrays
            while queue:
                self.dirty.clear()
                for v in queue:
                    self.dirty.discard(v)
                    if self.alive[v]:
                        self._visit(v)
                queue = sorted(self.dirty)
            if not fit or not self._check_rows():
                return

    def _visit(self, v: int) -> None:
        surroundings = self._surroundings(v)
        if surroundings in self.inert:
            return
        before = self.changes
        self._simplify(v)
        if self.changes == before:
            self.inert.add(surroundings)

    def _surroundings(self, v: int) -> tuple[object, ...]:
        """All that decides what can be simplified at v: the copies of a repeated layer look alike."""
        node = self.nodes[v]
        around = sorted([(f.costs, *[n for _, n in f.usage]) for f in self.adjacent[v].values()])
        return node.costs, *[n for _, n in node.usage], *around

    def _simplify(self, v: int) -> None:
        self._keep(v, self._supported(v))
        for u in list(self.adjacent[v]):
            self._dissolve_if_separable(v, u)
        if len(self.states[v]) > 1:
            self._keep(v, self._undominated(v))
        if len(self.states[v]) == 1:
            self._dissolve_node(v)

    def _keep(self, v: int, index_number: int | None) -> None:
        """Restricts node v to the states in the interned index array `index_number` (None: all)."""
        if index_number is None:
            return
        index = self.arrays[index_number]
        if not len(index):
            raise Infeasible
        self.changes += 1
        self.states[v] = self.states[v][index]
        self.nodes[v] = self._map(self.nodes[v], "take", 0, index_number)
        for u, factor in list(self.adjacent[v].items()):
            self._connect(v, u, self._map(factor, "take", 0, index_number))
            self.dirty.add(u)
        self.dirty.add(v)

    def _supported(self, v: int) -> int | None:
        """States of finite cost that have an allowed partner at every neighbour."""
        numbers = (self.nodes[v].costs, *sorted({f.costs for f in self.adjacent[v].values()}))

        def compute() -> int | None:
            allowed = np.isfinite(self.arrays[numbers[0]])
            for n in numbers[1:]:
                allowed &= np.isfinite(self.arrays[n]).any(axis=1)
            return None if allowed.all() else self.arrays.add(np.flatnonzero(allowed))

        return self.arrays.once(("supported", *numbers), compute)

    def _undominated(self, v: int) -> int | None:
        edges = sorted((f.costs, *(n for _, n in f.usage)) for f in self.adjacent[v].values())
        node = (self.nodes[v].costs, *(n for _, n in self.nodes[v].usage))
        return self.arrays.once(("undominated", node, tuple(edges)), lambda: self._dominance(node, edges))

    def _dominance(self, node: tuple[int, ...], edges: Sequence[tuple[int, ...]]) -> int | None:
        cost = self.arrays[node[0]]
        d = len(cost)
        if d * d > DOMINANCE_WORK:
            return None
        worst = cost[:, None] - cost[None, :]  # worst[j, i]: by how much j may be dearer than i
        for number in node[1:]:
            use = self.arrays[number]
            worst[use[:, None] > use[None, :]] = np.inf
        for costs, *usage in edges:
            differences = [self._row_difference(costs), *(self._row_difference(n) for n in usage)]
            if any(x is None for x in differences):
                return None
            for is_usage, (classes, table) in enumerate(x for x in differences if x is not None):
                full = table if classes is None else table.take(classes, axis=0).take(classes, axis=1)
                if is_usage:
                    worst[full > 0] = np.inf
                else:
                    worst += full
        no_worse = worst <= 0
        earlier = np.tri(d, k=-1, dtype=bool).T  # earlier[j, i]: j < i
        dominated = (no_worse & (~no_worse.T | earlier)).any(axis=0)
        return self.arrays.add(np.flatnonzero(~dominated)) if dominated.any() else None

    def _row_difference(self, number: int) -> tuple[NDArray[np.int64] | None, Array] | None:
        """(row classes, table[j, i] = max_k row_j[k] - row_i[k]), classes None: every row its own; None when too large
        to compare.  A row that allows what the other forbids wins there."""

        def compute() -> tuple[NDArray[np.int64] | None, Array] | None:
            matrix = self.arrays[number]
            if matrix.shape[0] ** 2 * matrix.shape[1] <= PLAIN_WORK:
                return None, row_difference(matrix)
            classes, first = row_classes(matrix)
            rows = matrix[first]
            rows = rows[:, row_classes(rows.T)[1]]
            finite = np.isfinite(rows)
            if not np.where(finite, rows, 0).any():  # only 0 and infinity: rows compare as sets
                missing = (~finite).astype(np.float32) @ finite.astype(np.float32).T > 0
                return classes, np.where(missing, np.inf, 0.0)
            if rows.shape[0] ** 2 * rows.shape[1] > DOMINANCE_WORK:
                return None
            return classes, row_difference(rows)

        return self.arrays.once(("difference", number), compute)

    def _dissolve_if_separable(self, v: int, u: int) -> None:
        factor = self.adjacent[v][u]
        parts = [self._separate(n) for n in (factor.costs, *(n for _, n in factor.usage))]
        if any(p is None for p in parts):
            return
        pairs = [p for p in parts if p is not None]
        self.changes += 1
        del self.adjacent[v][u], self.adjacent[u][v]
        for node, side in ((v, 0), (u, 1)):
            usage = tuple((span, p[side]) for (span, _), p in zip(factor.usage, pairs[1:], strict=True))
            self.nodes[node] = self._plus(self.nodes[node], Factor(pairs[0][side], usage))
            self.dirty.add(node)

    def _separate(self, number: int) -> tuple[int, int] | None:
        """Arrays a, b with matrix[i, j] = a[i] + b[j], if there are any."""

        def compute() -> tuple[int, int] | None:
            m = self.arrays[number]
            if not np.isfinite(m).all():
                return None
            a, b = m[:, 0], m[0] - m[0, 0]
            return (self.arrays.add(a.copy()), self.arrays.add(b)) if np.array_equal(a[:, None] + b, m) else None

        return self.arrays.once(("separate", number), compute)

    def _dissolve_node(self, v: int) -> None:
        """Removes a node with one state: constants to the offset and the limits, rows to the neighbours."""
        self.changes += 1
        self.alive[v] = False
        self.fixed[v] = int(self.states[v][0])
        self.offset += int(self.arrays[self.nodes[v].costs][0])
        for (a, b), number in self.nodes[v].usage:
            self.limits[a:b] -= self.arrays[number][0]
        for u, factor in self.adjacent[v].items():

            def row(number: int) -> int:
                return self.arrays.derive(("row", number), lambda: self.arrays[number][0].copy())

            gained = Factor(row(factor.costs), tuple((span, row(n)) for span, n in factor.usage))
            self.nodes[u] = self._plus(self.nodes[u], gained)
            del self.adjacent[u][v]
            self.dirty.add(u)
        self.adjacent[v] = {}

    def _holders(self) -> list[tuple[int, int | None, Factor]]:
        """Every node, and every edge from its earlier node, that holds memory."""
        found: list[tuple[int, int | None, Factor]] = []
        for v, factor in enumerate(self.nodes):
            if self.alive[v]:
                if factor.usage:
                    found.append((v, None, factor))
                found += [(v, u, f) for u, f in self.adjacent[v].items() if f.usage and v < u]
        return found

    def _check_rows(self) -> bool:
        """Drops rows that cannot bind and states that cannot fit; whether anything changed."""
        if not self.active.any():
            return False
        holders = self._holders()
        terms = [(a, b, self.arrays.low(n), self.arrays.high(n)) for _, _, f in holders for (a, b), n in f.usage]
        begin, end, least, most = np.array(terms, np.float64).reshape(-1, 4).T
        begin, end = begin.astype(np.int64), end.astype(np.int64)
        low, high = (_levels(begin, end, held, len(self.limits)) for held in (least, most))
        slack = np.where(self.active, self.limits - low, np.inf)
        if slack.min() < 0:
            raise Infeasible
        self.active &= high > self.limits
        kept = np.concatenate(([0], np.cumsum(self.active)))
        room = _least_between(slack, begin, end)
        tight, counts = most - least > room, kept[begin] < kept[end]
        at = 0
        for v, u, factor in holders:
            until = at + len(factor.usage)
            if tight[at:until].any() or not counts[at:until].all():
                self._fit(v, u, factor, room[at:until], counts[at:until])
            at = until
        return bool(self.dirty)

    def _fit(self, v: int, u: int | None, factor: Factor, room: Array, counts: Array) -> None:
        """Forbids states beyond the `room` of their rows; drops usage that no longer `counts`."""
        fits = np.ones(self.arrays[factor.costs].shape, bool)
        for (_, number), left in zip(factor.usage, room, strict=True):
            if self.arrays.high(number) - self.arrays.low(number) > left:
                fits &= self.arrays[number] - self.arrays.low(number) <= left
        usage = tuple(term for term, count in zip(factor.usage, counts, strict=True) if count)
        costs = factor.costs
        if not fits.all() and np.isfinite(self.arrays[costs][~fits]).any():
            costs = self.arrays.add(np.where(fits, self.arrays[costs], np.inf))
        new = Factor(costs, usage)
        if new == factor:
            return
        self.dirty.add(v)
        if u is None:
            self.nodes[v] = new
        else:
            self._connect(v, u, new)
            self.dirty.add(u)

    def freeze(self) -> Reduced:
        left = [v for v, alive in enumerate(self.alive) if alive]
        number = {v: k for k, v in enumerate(left)}
        actives = np.concatenate(([0], np.cumsum(self.active)))  # rows before r that are still active

        def compact(factor: Factor) -> Factor:
            usage: dict[tuple[int, int], int] = {}
            for (a, b), n in factor.usage:
                span = int(actives[a]), int(actives[b])
                if span[0] < span[1]:
                    usage[span] = self.arrays.plus(usage[span], n) if span in usage else n
            return Factor(factor.costs, tuple(sorted(usage.items())))

        return Reduced(
            arrays=self.arrays,
            origin=tuple(left),
            states=tuple(self.states[v] for v in left),
            nodes=tuple(compact(self.nodes[v]) for v in left),
            edges=tuple(
                (number[v], number[u], compact(f)) for v in left for u, f in sorted(self.adjacent[v].items()) if v < u
            ),
            limits=self.limits[self.active],
            offset=self.offset,
            scale=self.scale,
            fixed=tuple(self.fixed),
            instants=tuple(t for t, active in zip(self.instants, self.active, strict=True) if active),
            memory_scale=self.memory_scale,
        )


def _levels(begin: Array, end: Array, held: Array, rows: int) -> Array:
    """What is held in every row."""
    change = np.bincount(begin, held, rows + 1) - np.bincount(end, held, rows + 1)
    return np.asarray(np.cumsum(change)[:-1])


def _least_between(values: Array, begin: Array, end: Array) -> Array:
    """The least of values[begin:end] for every pair, none of them empty: of the two powers of two that cover it."""
    power = np.frexp(end - begin)[1] - 1  # floor of the logarithm
    out = np.empty(len(begin))
    least = values  # of 2**k values from each on
    for k in range(int(power.max(initial=-1)) + 1):
        of = np.flatnonzero(power == k)
        out[of] = np.minimum(least[begin[of]], least[end[of] - 2**k])
        least = np.minimum(least[: max(0, len(least) - 2**k)], least[2**k :])
    return out


def _scale(problem: Problem) -> int:
    """Power of two by which costs are divided so that every sum of them is exact in float64."""
    largest: dict[int, int] = {}
    total = 0
    items: tuple[Node | Edge, ...] = (*problem.nodes, *problem.edges)
    for item in items:
        if id(item.costs) not in largest:
            finite = item.costs[item.costs < FORBIDDEN]
            largest[id(item.costs)] = int(max(abs(int(finite.max())), abs(int(finite.min())))) if finite.size else 0
        total += largest[id(item.costs)]
    return _halved_below(total, EXACT)


def _memory_scale(problem: Problem) -> int:
    """Power of two by which bytes are divided so that what is near the limit is exact in float64.  All are rounded
    down, so that every choice within the limit stays within it."""
    return _halved_below(problem.limit or 0, EXACT)


def _halved_below(amount: int, most: int) -> int:
    """The least power of two by which `amount` has to be divided to be below `most`."""
    scale = 1
    while amount // scale >= most:
        scale *= 2
    return scale
