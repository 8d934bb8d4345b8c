"""The integer program solved by OR-Tools: CP-SAT (exact in integers) or HiGHS through MathOpt."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Literal

from ortools.math_opt.python import mathopt
from ortools.sat.python import cp_model

from planner.search.prices.memory import Bounded
from planner.search.program.linear import LinearProgram, linearise
from planner.search.reduction.reduced import Infeasible, Reduced

__all__ = ["Backend", "solve_ilp"]

Backend = Literal["cp-sat", "highs"]
CP_SAT_WORK = 120.0  # units of deterministic time, about seconds, where no time limit is given


def solve_ilp(
    problem: Reduced,
    *,
    time_limit: float | None,
    hint: Sequence[int] | None = None,
    backend: Backend = "cp-sat",
) -> Bounded:
    """Best choice and bound in `time_limit` seconds.  Raises `Infeasible` when proven.

    Without a time limit CP-SAT is limited in deterministic work, so that equal problems give equal answers.
    """
    program = linearise(problem)
    if not problem.nodes:
        return Bounded((), float(problem.offset))
    if backend == "highs":
        return _highs(problem, program, time_limit, hint)
    return _cp_sat(problem, program, time_limit, hint)


def _cp_sat(problem: Reduced, program: LinearProgram, time_limit: float | None, hint: Sequence[int] | None) -> Bounded:
    model = cp_model.CpModel()
    x = [model.new_bool_var("") for _ in program.costs]
    for row in program.rows:
        terms = [x[k] for k in row.variables]
        if row.low == row.high == 1 and all(c == 1 for c in row.coefficients):
            model.add_exactly_one(terms)
            continue
        low = cp_model.INT_MIN if row.low is None else row.low
        high = cp_model.INT_MAX if row.high is None else row.high
        domain = cp_model.Domain(low, high)
        model.add_linear_expression_in_domain(cp_model.LinearExpr.weighted_sum(terms, row.coefficients), domain)
    model.minimize(cp_model.LinearExpr.weighted_sum(x, program.costs))
    if hint is not None:
        for v, first in enumerate(program.first):
            for i in range(problem.size(v)):
                model.add_hint(x[first + i], int(hint[v] == i))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # several workers race, and what they find depends on timing
    solver.parameters.random_seed = 1
    solver.parameters.linearization_level = 2
    # One family of presolve steps loses optima of models with large coefficients: google/or-tools#5293 (9.15).
    solver.parameters.presolve_inclusion_work_limit = 0
    if time_limit is None:
        solver.parameters.max_deterministic_time = CP_SAT_WORK
    else:
        solver.parameters.max_time_in_seconds = max(0.01, time_limit)
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        raise Infeasible
    bound = program.offset + solver.best_objective_bound
    if status == cp_model.MODEL_INVALID:
        return Bounded(None, -math.inf)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Bounded(None, bound - _ROUNDING * abs(bound))
    choice = _read(problem, program, [float(solver.value(v)) for v in x[: program.binary]])
    if status == cp_model.OPTIMAL:
        return Bounded(choice, problem.cost(choice))
    # the bound is an integer that CP-SAT reports as a float64
    return Bounded(choice, bound - _ROUNDING * abs(bound))


_ROUNDING = 2.0**-50
_HIGHS_TOLERANCE = 1e-7  # HiGHS stops within 1e-7 (dual feasibility) in scaled units; kept ten times safer


def _highs(problem: Reduced, program: LinearProgram, time_limit: float | None, hint: Sequence[int] | None) -> Bounded:
    unit = max(1.0, max(map(abs, program.costs)) / 1e6)
    model = mathopt.Model()
    x = [model.add_variable(lb=0.0, ub=1.0, is_integer=k < program.binary) for k in range(len(program.costs))]
    for row in program.rows:
        scale = float(max(1, max(map(abs, row.coefficients)) // 1000))
        terms = zip(row.variables, row.coefficients, strict=True)
        model.add_linear_constraint(
            lb=-math.inf if row.low is None else row.low / scale,
            ub=math.inf if row.high is None else row.high / scale,
            expr=mathopt.LinearSum(c / scale * x[k] for k, c in terms),
        )
    model.minimize(mathopt.LinearSum(c / unit * x[k] for k, c in enumerate(program.costs) if c))
    limit = None if time_limit is None else datetime.timedelta(seconds=max(0.01, time_limit))
    parameters = mathopt.SolveParameters(time_limit=limit, relative_gap_tolerance=0.0, absolute_gap_tolerance=0.0)
    result = mathopt.solve(model, mathopt.SolverType.HIGHS, params=parameters)
    if result.termination.reason == mathopt.TerminationReason.INFEASIBLE:
        raise Infeasible
    objective = result.termination.objective_bounds.dual_bound
    slack = 10 * _HIGHS_TOLERANCE * (1.0 + abs(objective))
    bound = program.offset + unit * (objective - slack) if math.isfinite(objective) else -math.inf
    if not result.solutions or result.solutions[0].primal_solution is None:
        return Bounded(None, bound)
    values = result.variable_values(x[: program.binary])
    choice = _read(problem, program, list(values))
    return Bounded(choice, min(bound, problem.cost(choice)))


def _read(problem: Reduced, program: LinearProgram, values: Sequence[float]) -> tuple[int, ...]:
    """The state with the largest variable, for every node."""
    choice = []
    for v, first in enumerate(program.first):
        own = values[first : first + problem.size(v)]
        choice.append(max(range(len(own)), key=own.__getitem__))
    return tuple(choice)
