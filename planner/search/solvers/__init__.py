"""The solvers, one file each, which holds a `SOLVER`.  Nothing heavy is loaded before one of them runs."""

from planner.search.solver import SOLVERS, SolverName, find, load, solver_help

__all__ = ["SOLVERS", "SolverName", "find", "solver_help"]

load(__name__, __path__)
