"""Where stages begin, as a linear program: the shortest step of a pipeline over all cuts.

The step of a schedule is its longest path through passes, so it is a maximum of functions that are linear in the layers
of each chunk, and convex.  Kelley's cutting planes find its least value: the linear program over the paths met so far
bounds every cut from below; its solution is simulated, and the path that is longest there is met next.  Layers may be
parts, which only lowers the bound; where it is worth while an integer program over the same paths has whole layers on
every rank.  How a rank's layers are dealt to its chunks is left in parts: that lowers the bound by little, and there
are several times as many chunks as ranks.
A path is one of the schedule, whatever its passes take: those that decided in one family are begun with in the next.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from planner.clock import Configuration
from planner.cost_models.pipeline import is_split
from planner.uniform.cut_program import CutProgram, Path
from planner.uniform.each_layer import EachLayer
from planner.uniform.load import Load
from planner.uniform.once import ByRank
from planner.uniform.unlike_cut import LARGEST, unlike_cuts

__all__ = ["QUICK", "THOROUGH", "Cut", "Effort", "Paths", "best_cut"]

_ROUNDS: Final = 60
_ROUNDING: Final = 1e-9
_CLOSE: Final = 5e-4  # relative, between the bound and what is simulated
_LEAST_RISE: Final = 5e-5  # relative, of a bound: less is little
_CHUNKS_WHOLE: Final = 64  # beyond that an integer program takes seconds for each step of its bound
_ROUNDING_WHOLE: Final = 1e-5  # what an integer program takes for satisfied
# Without cutting planes of its own: as many nodes prove as much in half of the time.
_SCIP: Final = "limits/nodes = {}\nlimits/gap = 1e-4\nseparating/maxroundsroot = 0\nseparating/maxrounds = 0\n"
_PASSES: Final = 60_000  # of all micro-batches, that are simulated in some hundredths of a second


@dataclass(frozen=True, slots=True)
class Effort:
    """`nodes` of each integer program: by nodes it ends the same way every time; so many `programs`, one after the
    other, and of them so many that raise the bound by little; `rounds` in which a rank's layers are dealt to its
    chunks; so many cuts are `settled` in whole layers of chunks, by so many `moves` of one layer."""

    nodes: int
    programs: int
    flat: int
    rounds: int
    settled: int
    moves: int


QUICK: Final = Effort(nodes=50, programs=4, flat=1, rounds=8, settled=2, moves=300)
THOROUGH: Final = Effort(nodes=100, programs=8, flat=3, rounds=16, settled=2, moves=300)


@dataclass(frozen=True, slots=True)
class Cut:
    """`seconds`: of all passes and what is done once, at least, whatever the cut; inf where none fits; `layers`: of
    each chunk, whole ones, near the best cut; `others`: some more such cuts, the best first; `whole`: no rank has a
    part of a layer."""

    seconds: float
    layers: tuple[int, ...]
    others: tuple[tuple[int, ...], ...] = ()
    whole: bool = False


@dataclass(frozen=True, eq=False)
class Paths:
    """By schedule: the path through all passes of each rank; those that were longest at the best cuts so far, and the
    last of these cuts."""

    of_ranks: dict[Hashable, list[Path]] = field(default_factory=dict)
    deciding: dict[Hashable, list[Path]] = field(default_factory=dict)
    cut: dict[Hashable, np.ndarray] = field(default_factory=dict)


def best_cut(
    load: Load,
    c: Configuration,
    limit: float | None,
    enough: float,
    handover: float | Sequence[float] = 0.0,
    once: ByRank | None = None,
    *,
    paths: Paths | None = None,
    whole: Effort | None = None,
    known: float = 0.0,
    rounds: int = _ROUNDS,
    each: EachLayer | None = None,
) -> Cut | None:
    """Over all cuts of the family of `c` whose ranks hold `limit` bytes at most, and whose passes, with what each rank
    does `once` a step, take less than `enough` seconds: inf where there is none, and not looked for beyond that. None
    where the pipeline has too many passes. `handover`: seconds between chunks, at least, the same or by boundary;
    `paths`: to begin with, and to add to; `whole`: ranks have whole layers, which takes longer to find, the more the
    greater the effort; `known`: seconds that they take at least, as is known: no bound below is looked for; `rounds`:
    after which the bound so far is taken; `each`: what the layers do one by one, where they differ."""
    kinds = 3 if is_split(c.order) else 2
    if c.passes * c.pp * c.virtual_stages * kinds > _PASSES:
        return None
    program = CutProgram(load, c, limit, enough, handover, once)
    cut = _in_parts(program, enough, rounds, known, paths or Paths())
    if each is not None and cut.seconds < enough and load.layers * program.count <= LARGEST:
        nodes, programs = (whole.nodes, whole.programs) if whole is not None else (0, 0)
        unlike = unlike_cuts(
            each, load, c, limit, enough, program.paths, rounds=rounds, nodes=nodes, programs=programs
        )  # fmt: skip
        best = tuple(layers for _, layers in unlike[1])
        return Cut(max(cut.seconds, unlike[0]), best[0] if best else cut.layers, best, whole=bool(best))
    # Parts of layers that differ are no whole ones of others.
    if whole is None or cut.seconds >= enough or load.lightest is not None or program.count > _CHUNKS_WHOLE:
        return cut
    integer = CutProgram(load, c, limit, enough, handover, once, like=program)
    return _whole(integer, program, enough, cut, whole)


def _in_parts(program: CutProgram, enough: float, rounds: int, known: float, paths: Paths) -> Cut:
    """With layers in parts."""
    c = program.c
    key = c.order, c.pp, c.virtual_stages, c.passes
    for path in paths.deciding.get(key, ()):
        program.add(path)
    even = _even(program)
    if key not in paths.of_ranks:
        paths.of_ranks[key] = program.of_ranks(even)
    for path in paths.of_ranks[key]:
        program.add(path)
    start = _start(program, paths.cut.get(key), even)
    if start is not even:
        program.meet(even)
    found = program.descend(start, enough, rounds, known)
    if found.bound == float("inf"):
        return Cut(float("inf"), ())
    if found.bound:
        paths.deciding[key], paths.cut[key] = program.deciding(found), found.best
    return Cut(found.bound * program.unit * (1 - _ROUNDING), program.rounded(found.best))


def _even(program: CutProgram) -> np.ndarray:
    """The cut whose chunks have as many layers each, none of which runs again."""
    return np.concatenate([np.full(program.count, program.load.layers / program.count), np.zeros(program.count)])


def _start(program: CutProgram, known: np.ndarray | None, even: np.ndarray) -> np.ndarray:
    """A cut to begin with: the one that is known of another family, or else an even one."""
    load, count = program.load, program.count
    if known is None or abs(known.sum() - load.layers) > _ROUNDING * load.layers:
        return even
    if not (load.again or load.copied):
        known = np.concatenate([known[:count] + known[count:], np.zeros(count)])
    return known if program.holds(known) else even


def _whole(program: CutProgram, parts: CutProgram, enough: float, cut: Cut, effort: Effort) -> Cut:
    """With whole layers on every rank, which `program` demands; `parts`: the one without that, which deals what a rank
    has to its chunks, and meets the paths there; `cut`: the best of it."""
    bound, met, flat = cut.seconds / program.unit, list[tuple[float, np.ndarray]](), 0
    program.solver.SetSolverSpecificParametersAsString(_SCIP.format(effort.nodes))
    for _ in range(effort.programs):
        status, before = program.solver.Solve(), bound
        if status == program.status.INFEASIBLE:
            return Cut(float("inf"), ())
        bound = max(bound, program.solver.Objective().BestBound())
        if status not in (program.status.OPTIMAL, program.status.FEASIBLE) or bound * program.unit >= enough:
            break
        flat += bool(met) and bound < before * (1 + _LEAST_RISE)
        if flat > effort.flat:
            break
        found = parts.dealt(program.solution(), enough, effort.rounds)
        if found.bound == float("inf"):  # by what the programs take for satisfied
            break
        if found.shortest < float("inf"):
            met.append((found.shortest, found.best))
        if bound >= min((seconds for seconds, _ in met), default=float("inf")) * (1 - _CLOSE):
            break
        for path in parts.paths[len(program.paths) :]:
            program.add(path)
    short = sorted((seconds, k) for k, (seconds, _) in enumerate(met) if seconds * program.unit < enough)
    settled = [parts.settled(met[k][1], effort.moves) for _, k in short[: effort.settled]]
    best = list(dict.fromkeys(layers for _, layers in sorted(settled)))
    return Cut(bound * program.unit * (1 - _ROUNDING_WHOLE), cut.layers, tuple(best), whole=True)
