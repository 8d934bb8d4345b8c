"""Further solvers of problems as they were saved, one file each, as in `planner.search.solvers`."""

from planner.search.solver import WHOLE, load

__all__ = ["WHOLE"]

load(__name__, __path__)
