"""Where stages begin in a model whose layers differ, such as an encoder and a decoder: the shortest step over all cuts.

As in `planner.uniform.cuts` a step is the longest path through the passes of its schedule, and the program over the
paths that were met so far bounds every cut.  Its variables say of each layer whether it stands in chunk k or behind it;
what a chunk takes is linear in them, whatever its layers are.  In parts they bound the step; in whole numbers they are
a cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.clock import Configuration
from planner.cost_models.pipeline import is_split, longest_path, stage_numbers
from planner.uniform.cut_program import Path, chunk_times, moments
from planner.uniform.each_layer import EachLayer
from planner.uniform.inner import least_layers
from planner.uniform.load import Load

__all__ = ["LARGEST", "unlike_cuts"]

LARGEST: Final = 2_000  # layers times chunks, beyond which the programs in parts take seconds
_LARGE: Final = 1_000  # beyond which each program in whole layers does, and is looked at for a moment alone

_GIB: Final = 2.0**30
_HELD: Final = 1e-6  # GiB, what a program takes for satisfied
_SHORTEST: Final = 1e-9  # seconds, of passes that take none
_TOWARDS: Final = 0.5
_CLOSE: Final = 5e-4  # relative, between the bound and what is simulated
_ROUNDING: Final = 1e-7  # relative, what a program takes for satisfied
_ROUNDING_WHOLE: Final = 1e-5  # and an integer program
_SCIP: Final = "limits/nodes = {}\nlimits/gap = 1e-4\n"

_Floats = NDArray[np.float64]


class UnlikeProgram:
    """A cut is an array (chunks + 1, layers): whether a layer stands in that chunk or behind it, from 0 to 1; the first
    row is 1 and the last one 0."""

    def __init__(
        self, each: EachLayer, load: Load, c: Configuration, limit: float | None, paths: Sequence[Path], *, whole: bool
    ) -> None:
        """`load`: of the same workload; `paths`: of the schedule, to begin with; `whole`: layers have no parts. Seconds
        are in `unit`s, of which a step has a few."""
        self.each, self.load, self.c = each, load, c
        self.count, self.layers = c.pp * c.virtual_stages, len(each.once)
        self.unit = max(c.passes * sum(load.total) / c.pp, _SHORTEST)
        self.numbers = stage_numbers(c.order, c.pp, c.virtual_stages)  # (ranks, chunks of a rank)
        self.split = is_split(c.order)
        passes = each.passes if self.split else np.stack([each.passes[:, 0], each.passes[:, 1:].sum(axis=1)], axis=1)
        self.passes = passes / self.unit  # (layers, kinds)
        self.fixed = np.zeros((self.count, passes.shape[1]))  # units of a chunk beside its layers
        gathered, gathered_back, scattered = np.array(load.chunk) / self.unit
        self.fixed[1:, 0] += gathered
        self.fixed[:-1, 1] += gathered_back
        self.fixed[1:, 1] += scattered
        self.handed = each.handed / self.unit
        self._solver(whole=whole)
        self._memory(limit)
        self.paths: list[Path] = []
        for path in paths:
            self.add(path)

    def _solver(self, *, whole: bool) -> None:
        from ortools.linear_solver import pywraplp  # takes a while to load; a first plan is found before

        self.status = pywraplp.Solver
        self.solver = pywraplp.Solver.CreateSolver("SCIP" if whole else "GLOP")
        self.infinity = self.solver.infinity()
        self.step = self.solver.NumVar(0, self.infinity, "")
        self.beside = self.solver.NumVar(self.each.beside.least / self.unit, self.infinity, "")
        make = self.solver.IntVar if whole else self.solver.NumVar
        least = least_layers(self.layers, self.c)
        self.places: list[list[Any]] = []
        for k in range(1, self.count):
            first, last = k * least, self.layers - (self.count - k) * least
            row = [make(float(i >= last), float(i >= first), "") for i in range(self.layers)]
            for a, b in zip(row[first:last], row[first + 1 : last + 1], strict=True):
                self.solver.Add(a <= b)
            if self.places:  # the chunk before has that many layers
                for before, behind in zip(self.places[-1], row[least:], strict=False):
                    self.solver.Add(behind <= before)
            self.places.append(row)
        once, ranks = self.each.once / self.unit, zip(self.numbers, self.each.beside.beside, strict=True)
        for numbers, beside in ranks:
            by_layer = np.zeros((self.count, self.layers))
            by_layer[numbers] = once
            self._at_least(self.beside, by_layer, beside / self.unit)
        self.solver.Minimize(self.step + self.beside)

    def _at_least(self, variable: Any, by_layer: _Floats, more: float, crossed: _Floats | None = None) -> None:
        """What is so much of a layer in each chunk, (chunks, layers), and of a chunk but the first that begins with
        it."""
        coefficients = np.diff(by_layer, axis=0)  # of a layer that stands in chunk k or behind it
        if crossed is not None:
            coefficients[:, :-1] += crossed[:, :-1] - crossed[:, 1:]
            coefficients[:, -1] += crossed[:, -1]
        row = self.solver.Constraint(float(by_layer[0].sum()) + more, self.infinity)
        row.SetCoefficient(variable, 1.0)
        self._set(row, -coefficients)

    def _set(self, row: Any, coefficients: _Floats) -> None:
        for variables, values in zip(self.places, coefficients.tolist(), strict=True):
            for variable, value in zip(variables, values, strict=True):
                if value:
                    row.SetCoefficient(variable, value)

    def _memory(self, limit: float | None) -> None:
        """What every rank holds at the moments when it holds most of an even cut."""
        self.held: list[tuple[_Floats, float]] = []  # GiB by layer of each chunk, and what these may come to
        for d, counts in () if limit is None else moments(self.c):
            by_layer = np.zeros((self.count, self.layers))
            by_layer[self.numbers[d]] = (self.each.static + np.outer(counts, self.each.saved)) / _GIB
            room = ((limit or 0.0) - self.load.beside) / _GIB
            self.held.append((by_layer, room))
            row = self.solver.Constraint(-self.infinity, room - float(by_layer[0].sum()))
            self._set(row, np.diff(by_layer, axis=0))

    def holds(self, cut: _Floats) -> bool:
        """Whether the ranks have room for it."""
        inside = cut[:-1] - cut[1:]
        return all(float((by_layer * inside).sum()) <= room + _HELD for by_layer, room in self.held)

    def solve(self, enough: float) -> tuple[float, _Floats | None]:
        """Seconds that a step takes at least, inf where no cut is left, and the cut that the program finds; None where
        that is not known, or takes `enough` seconds or more."""
        status = self.solver.Solve()
        if status == self.status.INFEASIBLE:
            return float("inf"), None
        if status not in (self.status.OPTIMAL, self.status.FEASIBLE):
            return 0.0, None
        bound = self.solver.Objective().BestBound() if self.solver.IsMip() else self.solver.Objective().Value()
        bound *= self.unit
        return bound, None if bound >= enough else self.solution()

    def solution(self) -> _Floats:
        found = np.zeros((self.count + 1, self.layers))
        found[0] = 1.0
        for k, row in enumerate(self.places, 1):
            found[k] = [x.solution_value() for x in row]
        return found

    def meet(self, cut: _Floats) -> float:
        """Seconds that a cut takes at least; the longest path there is added."""
        inside = cut[:-1] - cut[1:]  # (chunks, layers)
        times = np.maximum(self.fixed + inside @ self.passes, 0.0)
        begins = np.diff(cut[1:-1], axis=1, prepend=0.0)
        chunks = [[chunk_times(times[k]) for k in row] for row in self.numbers]
        handed = np.maximum(begins @ self.handed, 0.0)
        seconds, passes, crossed = longest_path(self.c.order, chunks, self.c.passes, handed.tolist())
        by_chunk = np.zeros((self.count, passes.shape[1]))
        by_chunk[self.numbers] = passes.transpose(0, 2, 1)
        self.add((by_chunk, crossed))
        each = (inside @ self.each.once)[self.numbers].sum(axis=1) + self.each.beside.beside
        return seconds * self.unit + max(self.each.beside.least, float(each.max()))

    def add(self, path: Path) -> None:
        """The step takes at least its passes of each chunk and kind, and its times of handing over."""
        passes, crossed = path
        self.paths.append(path)
        handed = np.outer(crossed, self.handed)
        self._at_least(self.step, passes @ self.passes.T, float((passes * self.fixed).sum()), handed)

    def descend(self, cut: _Floats, enough: float, rounds: int, close: float) -> float:
        """From a cut to a bound: seconds that every cut takes at least.  Paths are met between the solution and the
        best cut so far, as in `planner.uniform.cut_program`."""
        bound, best = 0.0, cut
        shortest, held = self.meet(best), self.holds(best)
        for _ in range(rounds):
            least, found = self.solve(enough)
            bound = max(bound, least)
            if found is None or (held and bound >= shortest * (1 - close)):
                break
            # Where the best so far holds too much, nothing between it and the solution need fit.
            between = _TOWARDS * found + (1 - _TOWARDS) * best if held else found
            seconds = self.meet(between)
            if (seconds < shortest or not held) and self.holds(between):
                best, shortest, held = between, seconds, True
        return bound

    def even(self) -> _Floats:
        """Every chunk has its share of what all layers take."""
        each = self.passes.sum(axis=1)
        begins = each.cumsum() - each
        cut = np.zeros((self.count + 1, self.layers))
        cut[0] = 1.0
        share = each.sum() / self.count
        for k in range(1, self.count):
            cut[k] = np.clip((begins + each - k * share) / np.maximum(each, _SHORTEST), 0.0, 1.0)
        return cut

    def counted(self, cut: _Floats) -> tuple[int, ...]:
        """Layers of each chunk of a cut without parts."""
        return tuple(np.rint((cut[:-1] - cut[1:]).sum(axis=1)).astype(int).tolist())


def unlike_cuts(
    each: EachLayer,
    load: Load,
    c: Configuration,
    limit: float | None,
    enough: float,
    paths: Sequence[Path],
    *,
    rounds: int,
    nodes: int,
    programs: int,
) -> tuple[float, list[tuple[float, tuple[int, ...]]]]:
    """Seconds that a step takes at least, wherever stages begin, inf where no cut fits; and cuts that were met, layers
    of each chunk with seconds that these take at least.  So many `programs` in whole layers follow the one in parts, of
    so many `nodes` each, of large ones fewer; none where `nodes` is 0.  Not looked for beyond `enough`."""
    parts = UnlikeProgram(each, load, c, limit, paths, whole=False)
    bound = parts.descend(parts.even(), enough, rounds, _CLOSE) * (1 - _ROUNDING)
    met: dict[tuple[int, ...], float] = {}
    if bound >= enough or not nodes:
        return bound, []
    if parts.layers * parts.count > _LARGE:
        nodes, programs = 1, 1
    program = UnlikeProgram(each, load, c, limit, parts.paths, whole=True)
    program.solver.SetSolverSpecificParametersAsString(_SCIP.format(nodes))
    for _ in range(programs):
        least, found = program.solve(enough)
        bound = max(bound, least * (1 - _ROUNDING_WHOLE))
        if found is None:
            break
        found = np.rint(found)
        met[program.counted(found)] = program.meet(found)
        if bound >= min(met.values()) * (1 - _CLOSE):
            break
    return bound, sorted((seconds, layers) for layers, seconds in met.items() if seconds < enough)
