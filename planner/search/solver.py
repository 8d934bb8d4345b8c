"""What a solver is, and the registry of their names: command line, requests, service and plans know these alone.

A solver is one file: `planner.search.solvers` has those of plans and of saved problems, `planner.search.saved.whole`
those of saved problems alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Protocol

from planner.errors import UsageError

if TYPE_CHECKING:
    from planner.search.control import Control
    from planner.search.prices.memory import Bounded
    from planner.search.problem import Problem, Solution
    from planner.search.reduction.reduced import Reduced
    from planner.search.state import State

__all__ = ["SOLVERS", "WHOLE", "Found", "Glance", "Solver", "SolverName", "find", "load", "register", "solver_help"]

SolverName = str  # of SOLVERS


@dataclass(frozen=True, slots=True)
class Found:
    """A choice of the reduced problem and a bound of it, and which parts of the solver they are from."""

    bounded: Bounded
    solver: str


class Glance(Protocol):
    """A first bound in about the time that pricing takes: as of `Search.glance`."""

    def __call__(self, state: State, reduced: Reduced, *, choose: bool, narrow: bool, enough: float) -> None: ...


class Whole(Protocol):
    """Answers a problem as it was saved, under `control`."""

    def __call__(self, problem: Problem, control: Control, *, seed: int) -> Solution: ...


@dataclass(frozen=True, slots=True)
class Solver:
    """`name`: of `--solver`; `help`: one line; `needs`: modules without which it cannot run.

    Either `solve`: the best choice of the presolved problem that costs less than the cutoff, and a bound; it raises
    `Infeasible` where it proves that there is none, and `TooLarge` where it gives up.  What it finds on its way it
    leaves with the state.  Or `whole`: for `planner solve`, whose problems come without a plan around them.
    """

    name: str
    help: str
    solve: Callable[[State, Reduced, float], Found] | None = None
    whole: Whole | None = None
    glance: Glance | None = None
    needs: tuple[str, ...] = ()

    @property
    def lacking(self) -> tuple[str, ...]:
        """Of what it needs, what is not installed."""
        return tuple(module for module in self.needs if find_spec(module) is None)


SOLVERS: dict[str, Solver] = {}  # of plans and of saved problems
WHOLE: dict[str, Solver] = {}  # of saved problems alone


def register(solver: Solver) -> None:
    """ValueError where there is one of this name, or it solves nothing."""
    if solver.name in SOLVERS or solver.name in WHOLE:
        raise ValueError(f"solver {solver.name!r} is registered already; give it another name")
    if (solver.solve is None) == (solver.whole is None):
        raise ValueError(f"solver {solver.name!r}: expected either `solve` or `whole`; give one of them")
    (WHOLE if solver.solve is None else SOLVERS)[solver.name] = solver


def load(package: str, path: Iterable[str]) -> None:
    """Registers the `SOLVER` of every module of a package, by its `__name__` and `__path__`.  TypeError where a module
    holds none; ValueError as of `register`."""
    for module in iter_modules(path):
        held = getattr(import_module(f"{package}.{module.name}"), "SOLVER", None)
        if not isinstance(held, Solver):
            raise TypeError(f"{package}.{module.name}: expected a Solver by the name of SOLVER, found {held!r}")
        register(held)


def solver_help(*registries: dict[str, Solver]) -> str:
    """Names and lines of help, for the help of `--solver`."""
    return "; ".join(f"{s.name}: {s.help}" for registry in registries for s in registry.values())


def find(name: str) -> Solver:
    """The solver of plans of this name.  UsageError where there is none, or what it needs is not installed."""
    solver = SOLVERS.get(name)
    if solver is None:
        raise UsageError(f"--solver {name}: no such solver; there are {', '.join(SOLVERS)}")
    if solver.lacking:
        raise UsageError(f"--solver {name}: needs {', '.join(solver.lacking)}, which is not installed; install it")
    return solver
