"""The linear program of where stages begin, over the paths of a schedule that were met so far.

Its variables are the layers of each chunk, in parts, and those of them that run again; it bounds the step of every cut
from below.  Cuts are simulated beside it: the path that is longest in one of them is a constraint on all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.clock import Configuration
from planner.cost_models.pipeline import ChunkTimes, dependencies, is_split, longest_path, stage_numbers
from planner.uniform.families import layers_of_ranks, least_chunk
from planner.uniform.inner import least_layers
from planner.uniform.load import Load, room_of_ranks, static_bytes
from planner.uniform.once import ByRank

__all__ = ["CutProgram", "Descent", "Path", "chunk_times", "moments"]

_TOWARDS: Final = 0.5
_ROUNDING: Final = 1e-9
_CLOSE: Final = 5e-4  # relative, between the bound and what is simulated
_MOMENTS: Final = 6  # of a rank's memory, those at which most is held with an even cut
_RANKS: Final = 16  # at most, whose paths a program begins with
_SLOW: Final = 3.0  # times as slow as it is, that a rank is to be on every longest path
_SHORTEST: Final = 1e-9  # seconds, of passes that take none
_GIB: Final = 2.0**30
_DECIDING: Final = 1e-6  # relative, how much shorter than the step a path may be that decides on it
_HELD: Final = 1e-6  # GiB, what a linear program takes for satisfied

Path = tuple[np.ndarray, np.ndarray]  # passes by chunk and kind, and how often it goes over each boundary of chunks


@dataclass(frozen=True, slots=True)
class Descent:
    """`bound`: units that a step takes at least, inf where no cut is left; `found`: the solution at that; `best`: the
    best cut that was simulated and fits, which takes `shortest` units, inf where none fits."""

    bound: float
    found: np.ndarray
    best: np.ndarray
    shortest: float


class CutProgram:
    def __init__(
        self,
        load: Load,
        c: Configuration,
        limit: float | None,
        enough: float,
        handover: float | Sequence[float],
        once: ByRank | None = None,
        *,
        like: CutProgram | None = None,
    ) -> None:
        """`once`: what ranks do once a step beside the passes; `like`: the program of parts of layers, whose paths are
        taken over.  Its seconds are in `unit`s, of which a step has a few, for the sake of numerics."""
        self.once = once or ByRank(0.0, 0.0, (0.0,) * c.pp)
        self.unit = max(c.passes * sum(load.total) / c.pp, _SHORTEST)
        self.load, self.c = load, c
        self.count = c.pp * c.virtual_stages
        self.handover = np.full(self.count - 1, handover) / self.unit
        self.numbers = stage_numbers(c.order, c.pp, c.virtual_stages)  # (ranks, chunks of a rank)
        self.split = is_split(c.order)
        first, last = load.first, load.last
        fixed = np.zeros((self.count, 3 if self.split else 2))  # seconds of a chunk beside its layers
        gathered, gathered_back, scattered = load.chunk
        fixed[1:, 0] += gathered
        fixed[:-1, 1] += gathered_back
        fixed[1:, 1] += scattered
        fewest = least_layers(load.layers, c)
        ends = [(0, first, load.split[1]), (self.count - 1, last, load.split[2])]
        ends += [(0, x.passes, x.split) for x in load.inner if x.in_first_chunk(fewest)]
        ends += [(self.count - 1, x.passes, x.split) for x in load.inner if x.in_last_chunk(fewest)]
        for at, pair, parts in ends:
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
        self.step = self.solver.NumVar(0, infinity, "passes")
        self.beside = self.solver.NumVar(self.once.least / self.unit, infinity, "beside")
        self.saved = [self.solver.NumVar(0, infinity, f"kept {k}") for k in range(self.count)]
        most = infinity if load.again or load.copied else 0
        self.more = [self.solver.NumVar(0, most, f"more {k}") for k in range(self.count)]
        self._copy()
        for a, b in zip(self.saved, self.more, strict=True):
            self.solver.Add(a + b >= least)
        self.solver.Add(sum(self.saved) + sum(self.more) == load.layers)
        self._once()
        self.most = self._most(limit, enough - self.once.least)  # layers of each rank
        self.ranks = [self._rank(row, most) for row, most in zip(self.numbers, self.most, strict=True)]
        if like is not None:
            for rank, most in zip(self.ranks, self.most, strict=True):
                rank.SetCoefficient(self.solver.IntVar(0, min(most, load.layers), ""), -1.0)
                rank.SetBounds(0, 0)
        self.solver.Minimize(self.step + self.beside)
        self.paths: list[Path] = []
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
            self.add(path)

    def _most(self, limit: float | None, enough: float) -> list[float]:
        """The most layers, which are whole ones, that each rank has room for and passes within so many seconds."""
        if enough == float("inf") or self.load.lightest is not None:
            return [float("inf")] * self.c.pp
        return layers_of_ranks(self.load, self.c, limit, enough)

    def _once(self) -> None:
        """Every rank does once what its layers ask for."""
        each = self.once.layer / self.unit
        for row, beside in zip(self.numbers, self.once.beside, strict=True):
            done = self.solver.Constraint(beside / self.unit, self.solver.infinity())
            done.SetCoefficient(self.beside, 1.0)
            for k in row if each else ():
                done.SetCoefficient(self.saved[int(k)], -each)
                done.SetCoefficient(self.more[int(k)], -each)

    def _rank(self, numbers: np.ndarray, most: float) -> Any:
        """The layers of a rank's chunks, at most so many."""
        layers = self.solver.Constraint(0, most)
        for k in numbers:
            layers.SetCoefficient(self.saved[int(k)], 1.0)
            layers.SetCoefficient(self.more[int(k)], 1.0)
        return layers

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
        static = static_bytes(load, c)
        rows: list[np.ndarray] = []
        rooms: list[float] = []
        for d, counts in moments(c):
            row = np.zeros(2 * self.count)
            row[self.numbers[d]] = static + counts * load.saved
            row[self.count + self.numbers[d]] = static + counts * load.saved_again
            rows.append(row / _GIB)  # of the size that units have
            rooms.append(room[d] / _GIB)
        return np.array(rows), np.array(rooms)

    def descend(self, best: np.ndarray, enough: float, rounds: int, known: float = 0.0) -> Descent:
        """From a cut to the best one.  Paths are met between the solution and the best cut simulated so far, which
        takes fewer rounds than at the solution itself (Ben-Ameur and Neto 2007)."""
        bound, found = 0.0, best
        shortest, held = self.meet(best), self.holds(best)
        for _ in range(rounds):
            status = self.solver.Solve()
            if status == self.status.INFEASIBLE:
                return Descent(float("inf"), best, best, shortest)
            if status != self.status.OPTIMAL:  # numerics: the bound of fewer paths holds as well
                break
            bound, found = self.solver.Objective().Value(), self.solution()
            if bound * self.unit >= enough or (held and bound >= shortest * (1 - _CLOSE)):
                break
            # Where the best so far holds too much, nothing between it and the solution need fit.
            between = _TOWARDS * found + (1 - _TOWARDS) * best if held else found
            seconds = self.meet(between)
            if (seconds < shortest or not held) and self.holds(between):
                best, shortest, held = between, seconds, True
                if shortest * self.unit <= known:  # no cut's bound is above what one of them takes
                    break
        return Descent(bound, found, best, shortest if held else float("inf"))

    def dealt(self, layers: np.ndarray, enough: float, rounds: int) -> Descent:
        """The best cut whose ranks have as many layers as in this one, which are whole ones."""
        of_chunks = layers[: self.count] + layers[self.count :]
        for row, rank in zip(self.numbers, self.ranks, strict=True):
            rank.SetBounds(*[round(float(of_chunks[row].sum()))] * 2)
        found = self.descend(layers, enough, rounds)
        for rank, most in zip(self.ranks, self.most, strict=True):
            rank.SetBounds(0, most)
        return found

    def solution(self) -> np.ndarray:
        return np.array([x.solution_value() for x in (*self.saved, *self.more)])

    def settled(self, cut: np.ndarray, most: int) -> tuple[float, tuple[int, ...]]:
        """Whole layers of each chunk near a cut, and the units that they take: rounded, and then moved one by one
        between chunks of a rank as long as that takes less."""
        again = cut[self.count :]

        def placed(layers: np.ndarray) -> np.ndarray:
            more = np.minimum(layers, again)
            return np.concatenate([layers - more, more])

        layers = np.array(self.rounded(cut))
        at = placed(layers)
        seconds, over = self.simulated(at)[0], max(self._over(at), _HELD)
        moves = [(a, b) for row in self.numbers.tolist() for a in row for b in row if a != b]
        tried = since = 0
        while since < len(moves) and tried < most:
            a, b = moves[tried % len(moves)]
            tried, since = tried + 1, since + 1
            if layers[a] == 1:
                continue
            moved = layers.copy()
            moved[a], moved[b] = moved[a] - 1, moved[b] + 1
            at = placed(moved)
            if self._over(at) <= over and (shorter := self.simulated(at)[0]) < seconds * (1 - _ROUNDING):
                layers, seconds, since = moved, shorter, 0
        return seconds, tuple(layers.tolist())

    def holds(self, layers: np.ndarray) -> bool:
        """Whether the ranks have room for it."""
        return self._over(layers) <= _HELD

    def _over(self, layers: np.ndarray) -> float:
        """GiB that the ranks have no room for."""
        return float((self.rows @ layers - self.rooms).max(initial=0.0))

    def simulated(self, layers: np.ndarray, *, slow: int | None = None) -> tuple[float, Path]:
        """Units that a cut takes, with the longest path there; where a rank is `slow`, if there is one."""
        saved, more = layers[: self.count], layers[self.count :]
        times = self.fixed + np.outer(saved + more, self.layer) + np.outer(more, self.again)
        if slow is not None:
            times[self.numbers[slow]] *= _SLOW
        chunks = [[chunk_times(np.maximum(times[k], 0.0)) for k in row] for row in self.numbers]
        seconds, passes, crossed = longest_path(self.c.order, chunks, self.c.passes, self.handover.tolist())
        by_chunk = np.zeros((self.count, passes.shape[1]))
        by_chunk[self.numbers] = passes.transpose(0, 2, 1)
        beside = self.once.seconds((saved + more)[self.numbers].sum(axis=1)) / self.unit
        return seconds + beside, (by_chunk, crossed)

    def meet(self, layers: np.ndarray) -> float:
        """Units that a cut takes; the longest path there is added: others of little less lead nowhere much sooner, and
        each takes its time in the programs."""
        seconds, path = self.simulated(layers)
        self.add(path)
        return seconds

    def of_ranks(self, layers: np.ndarray) -> list[Path]:
        """The longest path where one rank is slow, of each: it waits for the rank, which does all its passes.  No cut
        is short where a rank has too much to do, and to find these paths one by one takes many rounds."""
        chosen = np.unique(np.linspace(0, self.c.pp - 1, min(self.c.pp, _RANKS)).astype(int))
        return [self.simulated(layers, slow=rank)[1] for rank in chosen.tolist()]

    def add(self, path: Path) -> None:
        """The step takes at least its passes of each chunk and kind, and its times of handing over."""
        passes, crossed = path
        beside = float((passes * self.fixed).sum()) + float(crossed @ self.handover)
        by_layer = np.concatenate([passes @ self.layer, passes @ (self.layer + self.again)])
        self.paths.append(path)
        self.lengths.append((by_layer, beside))
        row = self.solver.Constraint(beside, self.solver.infinity())
        row.SetCoefficient(self.step, 1.0)
        for variable, seconds in zip((*self.saved, *self.more), by_layer.tolist(), strict=True):
            if seconds:
                row.SetCoefficient(variable, -seconds)

    def deciding(self, descent: Descent) -> list[Path]:
        """The paths that decide on the step that the program finds for a cut, each once."""
        lengths = [by_layer @ descent.found + beside for by_layer, beside in self.lengths]
        longest = max(lengths, default=0.0)
        found = {
            (path[0].tobytes(), path[1].tobytes()): path
            for path, length in zip(self.paths, lengths, strict=True)
            if length >= longest * (1 - _DECIDING)
        }
        return [*found.values()]

    def rounded(self, layers: np.ndarray) -> tuple[int, ...]:
        """Of each chunk, rounded such that those of a rank add up, and all."""
        of_chunks = layers[: self.count] + layers[self.count :]
        of_ranks = _rounded(of_chunks[self.numbers].sum(axis=1), self.load.layers, self.c.virtual_stages)
        found = np.zeros(self.count, dtype=int)
        for row, count in zip(self.numbers, of_ranks.tolist(), strict=True):
            found[row] = _rounded(of_chunks[row], count, 1)
        return tuple(found.tolist())


def moments(c: Configuration) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """By rank, the moments when it holds most of an even cut: micro-batches in flight in each of its chunks."""
    v = c.virtual_stages
    for d, held in enumerate(dependencies(c.order, c.pp, v, c.passes).held):
        flying = held[:, :v] + (held[:, v:] if is_split(c.order) else 0)
        for counts in np.unique(flying[np.argsort(-flying.sum(axis=1))[:_MOMENTS]], axis=0):
            yield d, counts


def _rounded(parts: np.ndarray, total: int, least: int) -> np.ndarray:
    """Whole numbers near these that add up to the total, each of them `least` or more."""
    found = np.maximum(np.floor(parts + 1e-6).astype(int), least)
    rest = parts - found
    while found.sum() < total:
        k = int(rest.argmax())
        found[k], rest[k] = found[k] + 1, rest[k] - 1
    while found.sum() > total:
        k = int(np.where(found > least, rest, np.inf).argmin())
        found[k], rest[k] = found[k] - 1, rest[k] + 1
    return found


def chunk_times(times: NDArray[np.float64]) -> ChunkTimes:
    """Of a forward and a backward pass, the latter also as gradients of values and of weights."""
    forward, values = float(times[0]), float(times[1])
    if len(times) == 2:
        return ChunkTimes(forward, values)
    weights = float(times[2])
    return ChunkTimes(forward, values + weights, values, weights)
