"""The portfolio for problems beyond the exact solvers: see `docs/solver.md`."""

from planner.search.large.portfolio import solve_large

__all__ = ["solve_large"]
