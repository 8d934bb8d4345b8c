"""The integer program of a contracted problem with lazy memory rows.

`planner.search.program.linear` linearises the costs; memory rows are added only where a solution exceeds them, round by
round, until it fits everywhere.  Every round's bound holds for the whole problem, because rows left out only relax it.
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from planner.native.forest import Graph
from planner.search.large.core import flatten
from planner.search.program.linear import LinearProgram, linearise
from planner.search.reduction.reduced import Factor, Reduced

if TYPE_CHECKING:
    from ortools.math_opt.python import mathopt

__all__ = ["Lazy", "prepare", "solve_lazily"]

Floats = NDArray[np.float64]
ADDED = 8  # rows in a round
ROUNDS = 60
TOLERANCE = 1e-6  # of a row's largest coefficient; the evaluator judges in integers
NODES = 20_000  # of the solver's tree, where there is no limit in time
# HiGHS leaves at most 1e-7 of dual infeasibility per variable, and in any choice one variable per node and edge is 1;
# ten times that is taken off its bounds.
DUAL_SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class Lazy:
    """A program without memory rows, and what is needed to add them."""

    program: LinearProgram
    graph: Graph
    edges: int


def prepare(reduced: Reduced) -> Lazy:
    """`Infeasible` where a node has no finite state.  No edge may hold memory."""
    bare = replace(reduced, limits=np.zeros(0), nodes=tuple(Factor(f.costs) for f in reduced.nodes))
    return Lazy(linearise(bare), flatten(reduced, math.inf), len(reduced.edges))


def solve_lazily(
    lazy: Lazy,
    rows: Iterable[int],
    *,
    seconds: float | None,
    report: Callable[[float | None, list[int] | None], None],
) -> bool:
    """Reports (bound, choice) of every round; whether the last one is optimal and fits.  (inf, None): infeasible.

    `rows` are the memory rows to begin with.
    """
    from ortools.math_opt.python import mathopt  # slow to load, and only the process that solves needs it

    deadline = None if seconds is None else time.monotonic() + seconds
    graph, program = lazy.graph, lazy.program
    # Small enough that the slack taken off a bound is below one unit of cost, which proves an integer optimum.
    most = max(1.0, max(map(abs, program.costs), default=1) / 1e6)
    unit = max(1.0, min(most, 0.4 / (DUAL_SLACK * (graph.nodes + lazy.edges + 1))))
    known = sorted(set(rows))
    for _ in range(ROUNDS):
        model, x = _model(lazy, known, unit)
        left = None if deadline is None else max(0.01, deadline - time.monotonic())
        parameters = mathopt.SolveParameters(
            time_limit=None if left is None else datetime.timedelta(seconds=left),
            node_limit=NODES if left is None else None,
            relative_gap_tolerance=0.0,
            absolute_gap_tolerance=0.0,
        )
        result = mathopt.solve(model, mathopt.SolverType.HIGHS, params=parameters)
        reason = result.termination.reason
        if reason == mathopt.TerminationReason.INFEASIBLE:
            report(math.inf, None)
            return True
        dual = result.termination.objective_bounds.dual_bound
        slack = unit * DUAL_SLACK * (graph.nodes + lazy.edges + 1)
        bound = program.offset + unit * dual - slack if math.isfinite(dual) else None
        if not result.has_primal_feasible_solution():
            report(bound, None)
            return False
        values = np.array(result.variable_values(x[: program.binary]))
        choice = [int(values[a : a + d].argmax()) for a, d in zip(program.first, graph.sizes, strict=True)]
        over = _levels(graph, choice) - graph.limits
        report(bound, choice if not (over > 0).any() else None)
        new = [r for r in _peaks(over) if r not in known]
        if not new or reason != mathopt.TerminationReason.OPTIMAL:
            return reason == mathopt.TerminationReason.OPTIMAL and not (over > 0).any()
        known += new
    return False


def _model(lazy: Lazy, rows: Iterable[int], unit: float) -> tuple[mathopt.Model, list[mathopt.Variable]]:
    from ortools.math_opt.python import mathopt

    program = lazy.program
    model = mathopt.Model()
    x = [model.add_variable(lb=0.0, ub=1.0, is_integer=k < program.binary) for k in range(len(program.costs))]
    for row in program.rows:
        terms = zip(row.variables, row.coefficients, strict=True)
        model.add_linear_constraint(
            lb=-math.inf if row.low is None else row.low,
            ub=math.inf if row.high is None else row.high,
            expr=mathopt.LinearSum(c * x[k] for k, c in terms),
        )
    for r in rows:
        held = _held(lazy.graph, r)
        paid = [
            (first + int(i), float(held[v][i]))
            for v, first in enumerate(program.first)
            if v in held
            for i in np.flatnonzero(held[v])
        ]
        if paid:
            scale = max(c for _, c in paid)
            allowed = float(lazy.graph.limits[r])
            model.add_linear_constraint(ub=allowed / scale, expr=mathopt.LinearSum(c / scale * x[k] for k, c in paid))
    model.minimize(mathopt.LinearSum(c / unit * x[k] for k, c in enumerate(program.costs) if c))
    return model, x


def _held(graph: Graph, r: int) -> dict[int, Floats]:
    """Bytes in row r of every state of every node that holds any."""
    out: dict[int, Floats] = {}
    owner = np.repeat(np.arange(graph.nodes), np.diff(graph.term_at))
    for t in np.flatnonzero((graph.begin <= r) & (r < graph.end)):
        v = int(owner[t])
        bytes_ = graph.uses[graph.held[t] : graph.held[t] + graph.sizes[v]]
        out[v] = out[v] + bytes_ if v in out else bytes_
    return out


def _levels(graph: Graph, choice: list[int]) -> Floats:
    states = np.repeat(np.array(choice, np.int64), np.diff(graph.term_at))
    bytes_ = graph.uses[graph.held + states]
    change = np.zeros(graph.rows + 1)
    np.add.at(change, graph.begin, bytes_)
    np.subtract.at(change, graph.end, bytes_)
    return np.cumsum(change)[:-1]


def _peaks(over: Floats) -> list[int]:
    """Rows that exceed their limit most, some distance from each other."""
    found: list[int] = []
    apart = max(1, len(over) // 500)
    rest = over.copy()
    while len(found) < ADDED and len(rest) and (r := int(rest.argmax())) >= 0 and rest[r] > 0:
        found.append(r)
        rest[max(0, r - apart) : r + apart] = -math.inf
    return found
