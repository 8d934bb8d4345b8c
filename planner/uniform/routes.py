"""By which collectives tensors travel, where a program stands for others of other sizes.

Layouts of a program stand for those at other sizes of its mesh and its batch (`resize`), but the shortest way between
two layouts depends on sizes: what a slow axis gathers is shared among ranks of a fast one that hold the same, and
gradients are summed over two axes at once or in turn.  Ways are found here at the prices of each size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from planner.clock import Configuration
from planner.ir import Layout, Tensor
from planner.lowering import Load, Program, Redistribute
from planner.planning.schemes.stored import beyond_zero, cut_further, held_whole
from planner.pricing import Settings
from planner.redistribute import scattered
from planner.redistribute.steps import FREE
from planner.trace import ExchangeCounts, ExchangeKey, Exchanges, WeightMove, facts_of, weight_moves
from planner.uniform.data_ranks import DataRanks
from planner.uniform.ways import Ends, Ways
from planner.work.units import bucket_shares

__all__ = ["Cut", "Moves", "Routes", "cut_as_prescribed", "same_ways"]

_Keys = tuple[ExchangeKey, ...]


_UNSEEN: Final = 1e-3  # of all elements: so many may be cut otherwise, as of `divide_alike`


@dataclass(frozen=True, slots=True)
class Cut:
    """A parameter, as it lies between steps and as what its shards are parts of, in so many of them."""

    tensor: Tensor
    rest: Layout
    whole: Layout
    parts: int


@dataclass(frozen=True, eq=False)
class Moves:
    """Of weights and their gradients under one program, in so many `units`; `cuts`: by parameter, over so many ranks;
    `alike`: the same number for programs that move them between the same layouts."""

    units: int
    moves: tuple[WeightMove, ...]
    cuts: Mapping[str, Cut]
    over: int
    alike: int


@dataclass(frozen=True, eq=False)
class Routes:
    """On meshes of one machine; what was found is remembered."""

    ways: Ways
    _alike: dict[object, int] = field(default_factory=dict)
    _exchanges: dict[object, Sequence[Exchanges] | None] = field(default_factory=dict)

    def rerouted(self, program: Program, settings: Settings) -> Program | None:
        """The program with the shortest ways between its layouts; None where one does not divide its tensor evenly."""
        shares, tensors = bucket_shares(program.graph), program.graph.tensors
        ends: dict[int, Ends] = {}
        alike: dict[object, Ends] = {}  # in equal blocks
        for n, i in enumerate(program.instructions):
            if isinstance(i, Redistribute) and i.steps:
                tensor, share = tensors[i.tensor], shares.get(i.tensor, 1.0)
                key = tensor.shape, tensor.dtype, share, i.source, i.target
                if key not in alike:
                    alike[key] = _ends(tensor, i.source, i.target, share, settings)
                ends[n] = alike[key]
        every = [*alike.values()]
        found = dict(zip(map(id, every), self.ways.shortest(every, program.mesh, settings), strict=True))
        instructions = [*program.instructions]
        for n, e in ends.items():
            steps, i = found[id(e)], instructions[n]
            if steps is None or not isinstance(i, Redistribute):
                return None
            instructions[n] = replace(i, steps=steps)
        return replace(program, instructions=tuple(instructions))

    def moves(self, program: Program, c: Configuration) -> Moves:
        """What the program, of the configuration, moves of weights."""
        facts, ranks = facts_of(program.graph), DataRanks.of(c)
        moves, cuts = tuple(weight_moves(program, facts)), _cuts(program, ranks, c.zero) if ranks.over else {}
        over = ranks.mesh.size(ranks.over)
        ends = tuple((m.unit, m.tensor.name, m.gradient, m.source, m.target) for m in moves)
        key = ends, tuple((name, x.rest, x.whole, x.parts) for name, x in cuts.items()), over
        return Moves(len(facts.repeated), moves, cuts, over, self._alike.setdefault(key, len(self._alike)))

    def exchanges(self, weights: Moves, ranks: DataRanks, settings: Settings) -> Sequence[Exchanges] | None:
        """By unit, what moves of weights are among these ranks; None where they divide other weights, or not evenly."""
        key = weights.alike, ranks, settings
        if key not in self._exchanges:
            self._exchanges[key] = self._exchanged(weights, ranks, settings)
        return self._exchanges[key]

    def _exchanged(self, weights: Moves, ranks: DataRanks, settings: Settings) -> Sequence[Exchanges] | None:
        if not _divide_same(weights, ranks):
            return None
        keys = [
            (m.tensor.shape, m.tensor.dtype, m.share, m.gradient, m.source, m.target, m.tensor.name in weights.cuts)
            for m in weights.moves
        ]
        alike = dict(zip(keys, weights.moves, strict=True))
        ends = []
        for m in alike.values():
            source, target = (_among(ranks, m.tensor, x, weights) for x in (m.source, m.target))
            ends.append(_ends(m.tensor, source, target, m.share, settings))
        counts, known = ExchangeCounts(ranks.mesh, weights.units), dict[object, tuple[_Keys, _Keys]]()
        for (key, m), steps in zip(alike.items(), self.ways.shortest(ends, ranks.mesh, settings), strict=True):
            if steps is None:
                return None
            known[key] = counts.of_steps(m, steps), counts.of_steps(m, scattered(steps)) if m.gradient else ()
        for m, key in zip(weights.moves, keys, strict=True):
            counts.count(m, *known[key])
        return [counts.of(unit) for unit in range(weights.units)]


def same_ways(few: Program, more: Program) -> bool:
    """Whether activations go by the same ways in a program of few data-parallel ranks and in one of more of them, on
    the first axis, none of which is over these."""
    weights, first = facts_of(few.graph).weights, few.mesh.names[0]
    return all(
        x.steps == y.steps and not any(first in step.axes for step in x.steps if step.kind not in FREE)
        for x, y in zip(few.instructions, more.instructions, strict=True)
        if isinstance(x, Redistribute) and isinstance(y, Redistribute) and x.tensor not in weights
    )


def cut_as_prescribed(program: Program, c: Configuration) -> bool:
    """Whether parameters lie between steps as a layout of the configuration itself has them."""
    ranks = DataRanks.of(c)
    return not ranks.over or all(
        cut_further(x.tensor, x.whole, ranks.mesh, ranks.over) == x.rest for x in _cuts(program, ranks, c.zero).values()
    )


def _cuts(program: Program, ranks: DataRanks, zero: int) -> dict[str, Cut]:
    """Of parameters that this level of ZeRO divides."""
    read = held_whole(program.graph, program.strategies, ranks.context)
    for name in beyond_zero(program.graph, zero):
        read.pop(name, None)
    cuts: dict[str, Cut] = {}
    for i in program.instructions:
        if isinstance(i, Load) and i.tensor in read:
            tensor, whole = program.graph.tensors[i.tensor], read[i.tensor]
            parts = i.layout.shards(ranks.mesh) // whole.shards(ranks.mesh)
            if i.tensor not in cuts or parts > cuts[i.tensor].parts:
                cuts[i.tensor] = Cut(tensor, i.layout, whole, parts)
    return cuts


def _divide_same(weights: Moves, ranks: DataRanks) -> bool:
    """Whether these ranks divide the same parameters, into as many more parts as there are more ranks."""
    more, differ = ranks.mesh.size(ranks.over) / weights.over, 0
    for x in weights.cuts.values():
        whole = ranks.layout(x.whole)
        now = cut_further(x.tensor, whole, ranks.mesh, ranks.over).shards(ranks.mesh) // whole.shards(ranks.mesh)
        if now != (1 if x.parts == 1 else x.parts * more):
            differ += x.tensor.elements
    return differ <= _UNSEEN * sum(x.tensor.elements for x in weights.cuts.values())


def _ends(tensor: Tensor, source: Layout, target: Layout, share: float, settings: Settings) -> Ends:
    return Ends(tensor.shape or (), settings.tensor_bytes(tensor), share, source, target)


def _among(ranks: DataRanks, tensor: Tensor, layout: Layout, weights: Moves) -> Layout:
    """The layout among these ranks: that of a parameter between steps is cut anew, since more ranks, or fewer, may not
    divide the same dimension."""
    known = weights.cuts.get(tensor.name)
    if known is None or known.parts == 1 or layout != known.rest:
        return ranks.layout(layout)
    return cut_further(tensor, ranks.layout(known.whole), ranks.mesh, ranks.over)
