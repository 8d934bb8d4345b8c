"""By which collectives tensors travel, where a program stands for others of other sizes.

Layouts of a program stand for those at other sizes of its mesh and its batch (`resize`), but the shortest way between
two layouts depends on sizes: what a slow axis gathers is shared among ranks of a fast one that hold the same, and
gradients are summed over two axes at once or in turn.  Ways are found here at the prices of each size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from planner.clock import Configuration
from planner.ir import Layout, Tensor
from planner.lowering import Load, Program, Redistribute
from planner.planning.schemes.stored import cut_further, held_whole
from planner.pricing import Settings
from planner.redistribute import scattered
from planner.trace import ExchangeCounts, ExchangeKey, Exchanges, WeightMove, facts_of, weight_moves
from planner.uniform.data_ranks import DataRanks
from planner.uniform.ways import Ends, Ways
from planner.work.units import bucket_shares

__all__ = ["Moves", "Routes", "same_ways"]

_Keys = tuple[ExchangeKey, ...]


@dataclass(frozen=True, eq=False)
class Moves:
    """Of weights and their gradients under one program, in so many `units`; `cut`: parameter → how it lies between
    steps, and the layout of which that is a part on every rank; `alike`: the same number for programs that move them
    between the same layouts."""

    units: int
    moves: tuple[WeightMove, ...]
    cut: Mapping[str, tuple[Layout, Layout]]
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
        moves = tuple(weight_moves(program, facts))
        read = held_whole(program.graph, program.strategies, ranks.context)
        cut: dict[str, tuple[Layout, Layout]] = {}
        for i in program.instructions if ranks.over else ():
            if isinstance(i, Load) and i.tensor in read and i.layout != read[i.tensor]:
                whole = read[i.tensor]
                further = [a for a in ranks.over if a not in whole.split_axes]
                if tuple(tuple(a for a in d if a not in further) for d in i.layout.dims) == whole.dims:
                    cut[i.tensor] = i.layout, whole
        ends = tuple((m.unit, m.tensor.name, m.gradient, m.source, m.target) for m in moves), tuple(cut.items())
        return Moves(len(facts.repeated), moves, cut, self._alike.setdefault(ends, len(self._alike)))

    def exchanges(self, weights: Moves, ranks: DataRanks, settings: Settings) -> Sequence[Exchanges] | None:
        """By unit, what moves of weights are among these ranks; None where layouts do not divide weights evenly among
        groups of them."""
        key = weights.alike, ranks, settings
        if key not in self._exchanges:
            self._exchanges[key] = self._exchanged(weights, ranks, settings)
        return self._exchanges[key]

    def _exchanged(self, weights: Moves, ranks: DataRanks, settings: Settings) -> Sequence[Exchanges] | None:
        keys = [
            (m.tensor.shape, m.tensor.dtype, m.share, m.gradient, m.source, m.target, m.tensor.name in weights.cut)
            for m in weights.moves
        ]
        alike = dict(zip(keys, weights.moves, strict=True))
        ends = []
        for m in alike.values():
            source, target = (_among(ranks, m.tensor, x, weights) for x in (m.source, m.target))
            ends.append(_ends(m.tensor, source, target, m.share, settings))
        counts, known = ExchangeCounts(ranks.mesh, weights.units), dict[object, tuple[_Keys, _Keys]]()
        for (key, m), way in zip(alike.items(), self.ways.shortest(ends, ranks.mesh, settings), strict=True):
            if way is None and ranks.copies is not None:
                return None
            steps = m.steps if way is None else way
            known[key] = counts.of_steps(m, steps), counts.of_steps(m, scattered(steps)) if m.gradient else ()
        for m, key in zip(weights.moves, keys, strict=True):
            counts.count(m, *known[key])
        return [counts.of(unit) for unit in range(weights.units)]


def same_ways(a: Program, b: Program) -> bool:
    """Whether activations go by the same ways in two programs of the same layouts."""
    weights = facts_of(a.graph).weights
    return all(
        x.steps == y.steps
        for x, y in zip(a.instructions, b.instructions, strict=True)
        if isinstance(x, Redistribute) and isinstance(y, Redistribute) and x.tensor not in weights
    )


def _ends(tensor: Tensor, source: Layout, target: Layout, share: float, settings: Settings) -> Ends:
    return Ends(tensor.shape or (), settings.tensor_bytes(tensor), share, source, target)


def _among(ranks: DataRanks, tensor: Tensor, layout: Layout, weights: Moves) -> Layout:
    """The layout among these ranks: that of a parameter between steps is cut anew, since more ranks, or fewer, may not
    divide the same dimension."""
    rest, whole = weights.cut.get(tensor.name, (None, None))
    if whole is None or layout != rest:
        return ranks.layout(layout)
    return cut_further(tensor, ranks.layout(whole), ranks.mesh, ranks.over)
