"""The integer program of a reduced problem, in plain numbers.

One-hot variables x[v, i]; an edge's matrix is first cleared of its row and column minima (they move to
the nodes) and its identical rows and columns are grouped: with g, h running over the groups and
X[u, g] = sum of x[u, i] over i in g,

    forbidden pairs only:   X[u, g] <= sum of X[v, h] over the h allowed with g     (and the converse)
    otherwise:              y[g, h] >= 0,  sum_h y[g, h] = X[u, g],  sum_g y[g, h] = X[v, h]

so y is integral whenever x is.  Memory rows sum usage over what is alive.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from planner.native.tables import row_classes
from planner.search.reduction.arrays import Array
from planner.search.reduction.reduced import Factor, Infeasible, Reduced

__all__ = ["LinearProgram", "Row", "linearise"]


@dataclass(frozen=True, slots=True)
class Row:
    """low <= sum of coefficient * variable <= high; either side may be None."""

    variables: list[int]
    coefficients: list[int]
    low: int | None
    high: int | None


@dataclass(slots=True)
class LinearProgram:
    """Minimise offset + sum of costs[k] * variable k, all variables in {0, 1}; the first are x, node by node
    from `first[v]` (-1 for a forbidden state's absence is never needed: such states have no row)."""

    offset: int
    costs: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    binary: int = 0  # so many leading variables have to be declared integer

    def variable(self, cost: int) -> int:
        self.costs.append(cost)
        return len(self.costs) - 1

    def equal(self, plus: list[int], minus: list[int], value: int = 0) -> None:
        self.rows.append(Row(plus + minus, [1] * len(plus) + [-1] * len(minus), value, value))

    def at_most(self, plus: list[int], minus: list[int]) -> None:
        self.rows.append(Row(plus + minus, [1] * len(plus) + [-1] * len(minus), None, 0))


def linearise(problem: Reduced) -> LinearProgram:
    """The integer program.  `Infeasible` when a node has no finite state."""
    arrays = problem.arrays
    program = LinearProgram(problem.offset)
    memory: list[dict[int, int]] = [{} for _ in problem.limits]
    for factor in problem.nodes:
        costs = arrays[factor.costs]
        if not np.isfinite(costs).any():
            raise Infeasible
        program.first.append(len(program.costs))
        for c in costs:
            program.variable(int(c) if np.isfinite(c) else 0)
        every = range(program.first[-1], len(program.costs))
        program.equal(list(every), [], 1)
        barred = [k for k, c in zip(every, costs, strict=True) if np.isinf(c)]
        if barred:
            program.equal(barred, [], 0)
        for span, number in factor.usage:
            _hold(memory, span, {k: int(b) for k, b in zip(every, arrays[number], strict=True)})
    program.binary = len(program.costs)
    for u, v, factor in problem.edges:
        _edge(problem, program, memory, u, v, factor)
    for held, limit in zip(memory, problem.limits, strict=True):
        if held:
            program.rows.append(Row(list(held), list(held.values()), None, int(limit)))
    return program


def _hold(memory: list[dict[int, int]], span: tuple[int, int], amounts: dict[int, int]) -> None:
    for r in range(*span):
        for k, amount in amounts.items():
            if amount:
                memory[r][k] = memory[r].get(k, 0) + amount


def _edge(
    problem: Reduced, program: LinearProgram, memory: list[dict[int, int]], u: int, v: int, factor: Factor
) -> None:
    arrays = problem.arrays
    costs, rows, columns = arrays.once(("clear", factor.costs), lambda: _clear(arrays[factor.costs]))
    for node, extra in ((u, rows), (v, columns)):
        for i in np.flatnonzero(extra):
            program.costs[program.first[node] + int(i)] += int(extra[i])
    usage = [arrays[n] for _, n in factor.usage]
    layers = np.stack([costs, *usage], axis=-1)
    row_class, row_first = row_classes(layers)
    column_class, column_first = row_classes(layers.transpose(1, 0, 2))
    groups = [_groups(program.first[u], row_class), _groups(program.first[v], column_class)]
    small = layers[np.ix_(row_first, column_first)]
    allowed = np.isfinite(small[..., 0])
    if not usage and not small[..., 0][allowed].any():
        if not allowed.all():
            for mine, theirs, table in ((groups[0], groups[1], allowed), (groups[1], groups[0], allowed.T)):
                for g, fits in zip(mine, table, strict=True):
                    if not fits.all():
                        program.at_most(g, [k for h in np.flatnonzero(fits) for k in theirs[int(h)]])
        return
    y = np.full(allowed.shape, -1)
    for g, h in np.argwhere(allowed):
        y[g, h] = program.variable(int(small[g, h, 0]))
        for (span, _), bytes_ in zip(factor.usage, small[g, h, 1:], strict=True):
            _hold(memory, span, {int(y[g, h]): int(bytes_)})
    for group, line in ((groups[0], y), (groups[1], y.T)):
        for members, variables in zip(group, line, strict=True):
            program.equal([int(k) for k in variables if k >= 0], members)


def _groups(first: int, classes: Array) -> list[list[int]]:
    out: list[list[int]] = [[] for _ in range(int(classes.max()) + 1)]
    for i, c in enumerate(classes):
        out[int(c)].append(first + i)
    return out


def _clear(matrix: Array) -> tuple[Array, Array, Array]:
    """(matrix less row and then column minima, the row minima, the column minima); lines of infinities keep 0."""
    rows = matrix.min(axis=1)
    rows[np.isinf(rows)] = 0.0
    rest = matrix - rows[:, None]
    columns = rest.min(axis=0)
    columns[np.isinf(columns)] = 0.0
    return rest - columns[None, :], rows, columns
