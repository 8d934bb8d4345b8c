"""Where stages begin, as a linear program: the shortest step of a pipeline over all cuts.

The step of a schedule is its longest path through passes, so it is a maximum of functions that are linear in the layers
of each chunk, and convex.  Kelley's cutting planes find its least value: the linear program over the paths met so far
bounds every cut from below; its solution is simulated, and the path that is longest there is met next.  Layers may be
parts, which only lowers the bound; where it is worth while an integer program over the same paths has whole layers.
A path is one of the schedule, whatever its passes take: those that decided in one family are begun with in the next.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from planner.clock import Configuration
from planner.cost_models.pipeline import ChunkTimes, dependencies, is_split, longest_path, stage_numbers
from planner.uniform.families import layers_of_ranks, least_chunk
from planner.uniform.load import Load, room_of_ranks, static_bytes

__all__ = ["NODES", "Cut", "Paths", "best_cut", "has_whole"]

_ROUNDS: Final = 60
_TOWARDS: Final = 0.5
_ROUNDING: Final = 1e-9
_CLOSE: Final = 5e-4  # relative, between the bound and what is simulated
_MOMENTS: Final = 6  # of a rank's memory, those at which most is held with an even cut
_ROUNDS_WHOLE: Final = 6
_LEAST_RISE: Final = 5e-5  # relative: where a round of whole layers raises the bound by less, it is the last
_CHUNKS_WHOLE: Final = 32  # beyond that an integer program takes seconds for each step of its bound
_ROUNDING_WHOLE: Final = 1e-5  # what an integer program takes for satisfied
NODES: Final = 300  # of each integer program; by nodes it ends the same way every time
_SCIP: Final = "limits/nodes = {}\nlimits/gap = 1e-4\n"
_OTHERS: Final = 3
_SHORTEST: Final = 1e-9  # seconds, of passes that take none
_GIB: Final = 2.0**30
_DECIDING: Final = 1e-6  # relative, how much shorter than the step a path may be that decides on it
_HELD: Final = 1e-6  # GiB, what a linear program takes for satisfied
_PASSES: Final = 60_000  # of all micro-batches, that are simulated in some hundredths of a second


@dataclass(frozen=True, slots=True)
class Cut:
    """`seconds`: of all passes, at least, whatever the cut; inf where none fits; `layers`: of each chunk, whole ones,
    near the best cut; `others`: some more such cuts, the best first."""

    seconds: float
    layers: tuple[int, ...]
    others: tuple[tuple[int, ...], ...] = ()


_Path = tuple[np.ndarray, int]  # passes by chunk and kind, and how often it goes from one stage to the next


@dataclass(frozen=True, eq=False)
class Paths:
    """By schedule: the paths that were longest at the best cuts so far, and the last of these cuts."""

    deciding: dict[Hashable, list[_Path]] = field(default_factory=dict)
    cut: dict[Hashable, np.ndarray] = field(default_factory=dict)


def best_cut(
    load: Load,
    c: Configuration,
    limit: float | None,
    enough: float,
    handover: float = 0.0,
    *,
    paths: Paths | None = None,
    whole: bool = False,
    nodes: int = NODES,
    known: float = 0.0,
    rounds: int = _ROUNDS,
) -> Cut | None:
    """Over all cuts of the family of `c` whose ranks hold `limit` bytes at most, and whose passes take less than
    `enough` seconds: inf where there is none, and not looked for beyond that.  None where the pipeline has too many
    passes.  `handover`: seconds between stages, at least; `paths`: to begin with, and to add to; `whole`: every chunk
    has whole layers, which takes longer to find, with so many `nodes` of each integer program; `known`: seconds that
    they take at least, as is known: no bound below is looked for; `rounds`: after which the bound so far is taken."""
    kinds = 3 if is_split(c.order) else 2
    if c.passes * c.pp * c.virtual_stages * kinds > _PASSES:
        return None
    program = _Program(load, c, limit, enough, handover)
    cut = program.solved(enough, rounds, known, paths)
    if not whole or cut.seconds >= enough or not has_whole(load, c):
        return cut
    return _Program(load, c, limit, enough, handover, like=program).solved_whole(enough, cut, nodes)


def has_whole(load: Load, c: Configuration) -> bool:
    """Whether cuts into whole layers are looked for: of layers that are alike (parts of others are no whole ones), and
    in few chunks."""
    return load.lightest is None and c.pp * c.virtual_stages <= _CHUNKS_WHOLE


class _Program:
    def __init__(
        self,
        load: Load,
        c: Configuration,
        limit: float | None,
        enough: float,
        handover: float,
        *,
        like: _Program | None = None,
    ) -> None:
        """`like`: the program of parts of layers, whose paths are taken over.  Its seconds are in `unit`s, of which
        a step has a few, for the sake of numerics."""
        self.unit = max(c.passes * sum(load.total) / c.pp, _SHORTEST)
        self.load, self.c, self.handover = load, c, handover / self.unit
        self.count = c.pp * c.virtual_stages
        self.numbers = stage_numbers(c.order, c.pp, c.virtual_stages)  # (ranks, chunks of a rank)
        self.split = is_split(c.order)
        first, last = load.first, load.last
        fixed = np.zeros((self.count, 3 if self.split else 2))  # seconds of a chunk beside its layers
        gathered, scattered = load.chunk
        fixed[1:, 0] += gathered
        fixed[:-1, 1] += gathered
        fixed[1:, 1] += scattered
        for at, pair, parts in ((0, first, load.split[1]), (self.count - 1, last, load.split[2])):
            fixed[at] += (pair[0], *parts) if self.split else pair
        self.fixed = fixed / self.unit
        layer = (load.layer[0], *load.split[0]) if self.split else load.layer
        self.layer = np.array(layer) / self.unit  # of a layer by kind of pass
        self.again = np.array((0.0, load.again, 0.0)[: len(layer)]) / self.unit
        from ortools.linear_solver import pywraplp  # takes a while to load; a first plan is found before

        self.status = pywraplp.Solver
        self.solver = pywraplp.Solver.CreateSolver("GLOP" if like is None else "SCIP")
        least = least_chunk(load, c)
        infinity = self.solver.infinity()
        self.step = self.solver.NumVar(0, infinity, "step")
        self.saved = [self.solver.NumVar(0, infinity, f"kept {k}") for k in range(self.count)]
        most = infinity if load.again or load.copied else 0
        self.more = [self.solver.NumVar(0, most, f"more {k}") for k in range(self.count)]
        self._copy()
        for a, b in zip(self.saved, self.more, strict=True):
            self.solver.Add(a + b >= least)
            if like is not None:
                self.solver.Add(a + b == self.solver.IntVar(0, load.layers, ""))
        self.solver.Add(sum(self.saved) + sum(self.more) == load.layers)
        self._whole_layers(limit, enough)
        self.solver.Minimize(self.step)
        self.paths: list[_Path] = []
        self.lengths: list[tuple[np.ndarray, float]] = []  # of these: units by layer of each chunk, and beside layers
        self.rows, self.rooms = np.zeros((0, 2 * self.count)), np.zeros(0)
        if limit is not None:
            self.rows, self.rooms = self._memory(room_of_ranks(load, c, limit))
        for row, room in zip(self.rows, self.rooms.tolist(), strict=True):
            held = self.solver.Constraint(-infinity, room)
            for variable, size in zip((*self.saved, *self.more), row.tolist(), strict=True):
                if size:
                    held.SetCoefficient(variable, size)
        for path in [] if like is None else like.paths:
            self._path(path)

    def _whole_layers(self, limit: float | None, enough: float) -> None:
        """No rank has more layers, which are whole ones, than it has room for and passes within so many seconds."""
        if enough == float("inf") or self.load.lightest is not None:
            return
        for row, most in zip(self.numbers, layers_of_ranks(self.load, self.c, limit, enough), strict=True):
            held = self.solver.Constraint(0, most)
            for k in row:
                held.SetCoefficient(self.saved[int(k)], 1.0)
                held.SetCoefficient(self.more[int(k)], 1.0)

    def _copy(self) -> None:
        """Every rank copies what waits in the host's memory, there and back, in all passes."""
        each = 2 * self.load.copied * self.c.passes / self.unit
        for row in self.numbers if each else ():
            copied = self.solver.Constraint(0, self.solver.infinity())
            copied.SetCoefficient(self.step, 1.0)
            for k in row:
                copied.SetCoefficient(self.more[int(k)], -each)

    def _memory(self, room: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        """Rows, and what each may come to: bytes by layer of each chunk whose activations are saved, and by layer that
        runs again or waits elsewhere: of every rank, at the moments when it holds most of an even cut."""
        load, c = self.load, self.c
        static, v = static_bytes(load, c), c.virtual_stages
        rows: list[np.ndarray] = []
        rooms: list[float] = []
        for d, held in enumerate(dependencies(c.order, c.pp, v, c.passes).held):
            flying = held[:, :v] + (held[:, v:] if self.split else 0)
            for counts in np.unique(flying[np.argsort(-flying.sum(axis=1))[:_MOMENTS]], axis=0):
                row = np.zeros(2 * self.count)
                row[self.numbers[d]] = static + counts * load.saved
                row[self.count + self.numbers[d]] = static + counts * load.saved_again
                rows.append(row / _GIB)  # of the size that units have
                rooms.append(room[d] / _GIB)
        return np.array(rows), np.array(rooms)

    def solved(self, enough: float, rounds: int, known: float = 0.0, paths: Paths | None = None) -> Cut:
        """Paths are met between the solution and the best cut simulated so far, which takes fewer rounds than at the
        solution itself (Ben-Ameur and Neto 2007)."""
        bound, found, paths = 0.0, np.zeros(2 * self.count), paths or Paths()
        key = self.c.order, self.c.pp, self.c.virtual_stages, self.c.passes
        for path in paths.deciding.get(key, ()):
            self._path(path)
        best = self._start(paths.cut.get(key))
        shortest, held = self._meet(best), self._holds(best)
        for _ in range(rounds):
            status = self.solver.Solve()
            if status == self.status.INFEASIBLE:
                return Cut(float("inf"), ())
            if status != self.status.OPTIMAL:  # numerics: the bound of fewer paths holds as well
                break
            bound = self.step.solution_value()
            found = np.array([x.solution_value() for x in (*self.saved, *self.more)])
            if bound * self.unit >= enough or (held and bound >= shortest * (1 - _CLOSE)):
                break
            # Where the best so far holds too much, nothing between it and the solution need fit.
            between = _TOWARDS * found + (1 - _TOWARDS) * best if held else found
            seconds = self._meet(between)
            if (seconds < shortest or not held) and self._holds(between):
                best, shortest, held = between, seconds, True
                if shortest * self.unit <= known:  # no cut's bound is above what one of them takes
                    break
        if bound:
            paths.deciding[key], paths.cut[key] = self._longest(found, bound), best
        return Cut(bound * self.unit * (1 - _ROUNDING), self._whole(best[: self.count] + best[self.count :]))

    def _start(self, known: np.ndarray | None) -> np.ndarray:
        """A cut to begin with: the one that is known of another family, or an even one."""
        even = np.concatenate([np.full(self.count, self.load.layers / self.count), np.zeros(self.count)])
        if known is None or abs(known.sum() - self.load.layers) > _ROUNDING * self.load.layers:
            return even
        if not (self.load.again or self.load.copied):
            known = np.concatenate([known[: self.count] + known[self.count :], np.zeros(self.count)])
        return known if self._holds(known) else even

    def solved_whole(self, enough: float, parts: Cut, nodes: int = NODES) -> Cut:
        """With whole layers in every chunk; `parts`: the best cut without that."""
        bound, met = parts.seconds / self.unit, list[tuple[float, tuple[int, ...]]]()
        self.solver.SetSolverSpecificParametersAsString(_SCIP.format(nodes))
        for _ in range(_ROUNDS_WHOLE):
            status, before = self.solver.Solve(), bound
            if status == self.status.INFEASIBLE:
                return Cut(float("inf"), ())
            bound = max(bound, self.solver.Objective().BestBound())
            if status not in (self.status.OPTIMAL, self.status.FEASIBLE):
                break
            found = np.array([x.solution_value() for x in (*self.saved, *self.more)])
            seconds = self._meet(found)
            if self._holds(found):
                met.append((seconds, self._whole(found[: self.count] + found[self.count :])))
            if bound * self.unit >= enough or bound >= min(met, default=(float("inf"), ()))[0] * (1 - _CLOSE):
                break
            if len(met) > 1 and bound < before * (1 + _LEAST_RISE):
                break
        best = list(dict.fromkeys(layers for _, layers in sorted(met)))[:_OTHERS]
        return Cut(bound * self.unit * (1 - _ROUNDING_WHOLE), parts.layers, tuple(best))

    def _holds(self, layers: np.ndarray) -> bool:
        """Whether the ranks have room for it."""
        return bool((self.rows @ layers <= self.rooms + _HELD).all()) if len(self.rows) else True

    def _meet(self, layers: np.ndarray) -> float:
        """Units that a cut takes, simulated; the longest path there is added: others of little less lead
        nowhere much sooner, and each takes its time in the programs."""
        saved, more = layers[: self.count], layers[self.count :]
        times = self.fixed + np.outer(saved + more, self.layer) + np.outer(more, self.again)
        chunks = [[_chunk(np.maximum(times[k], 0.0)) for k in row] for row in self.numbers]
        seconds, passes, crossed = longest_path(self.c.order, chunks, self.c.passes, self.handover)
        by_chunk = np.zeros((self.count, passes.shape[1]))
        by_chunk[self.numbers] = passes.transpose(0, 2, 1)
        self._path((by_chunk, crossed))
        return seconds

    def _path(self, path: _Path) -> None:
        """The step takes at least its passes of each chunk and kind, and its times of handing over."""
        passes, crossed = path
        beside = float((passes * self.fixed).sum()) + crossed * self.handover
        by_layer = np.concatenate([passes @ self.layer, passes @ (self.layer + self.again)])
        self.paths.append(path)
        self.lengths.append((by_layer, beside))
        row = self.solver.Constraint(beside, self.solver.infinity())
        row.SetCoefficient(self.step, 1.0)
        for variable, seconds in zip((*self.saved, *self.more), by_layer.tolist(), strict=True):
            if seconds:
                row.SetCoefficient(variable, -seconds)

    def _longest(self, layers: np.ndarray, step: float) -> list[_Path]:
        """The paths that decide on the step that the program finds for a cut, each once."""
        found = {
            (path[0].tobytes(), path[1]): path
            for path, (by_layer, beside) in zip(self.paths, self.lengths, strict=True)
            if by_layer @ layers + beside >= step * (1 - _DECIDING)
        }
        return [*found.values()]

    def _whole(self, layers: np.ndarray) -> tuple[int, ...]:
        """Rounded such that they add up."""
        found = np.floor(layers + 1e-6).astype(int)
        found = np.maximum(found, 1)
        rest = layers - found
        while found.sum() < self.load.layers:
            k = int(rest.argmax())
            found[k], rest[k] = found[k] + 1, rest[k] - 1
        while found.sum() > self.load.layers:
            k = int(np.where(found > 1, rest, np.inf).argmin())
            found[k], rest[k] = found[k] - 1, rest[k] + 1
        return tuple(found.tolist())


def _chunk(times: np.ndarray) -> ChunkTimes:
    forward, values = float(times[0]), float(times[1])
    if len(times) == 2:
        return ChunkTimes(forward, values)
    weights = float(times[2])
    return ChunkTimes(forward, values + weights, values, weights)
