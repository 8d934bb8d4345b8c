"""By which collectives tensors travel, where a program stands for others of other sizes.

Layouts of a program stand for those at other sizes of its mesh and its batch (`resize`), but the shortest way between
two layouts depends on sizes: what a slow axis gathers is shared among ranks of a fast one that hold the same, and
gradients are summed over two axes at once or in turn.  Ways are found here at the prices of each size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from planner.cost_models import HardwareProfile
from planner.ir import DeviceMesh, Tensor
from planner.lowering import Program, Redistribute
from planner.pricing import Machine, Settings
from planner.redistribute import Redistributions, RedistributionStep, parts_of_both, reduction_of_both, scattered
from planner.trace import ExchangeCounts, ExchangeKey, Exchanges, WeightMove, facts_of, weight_moves
from planner.work.units import bucket_shares

__all__ = ["Moves", "Routes"]

_Steps = tuple[RedistributionStep, ...]
_Keys = tuple[ExchangeKey, ...]


@dataclass(frozen=True, eq=False)
class Moves:
    """Of weights and their gradients under one program, in so many `units`; `alike`: the same number for programs that
    move them between the same layouts."""

    units: int
    moves: tuple[WeightMove, ...]
    alike: int


@dataclass(frozen=True, eq=False)
class Routes:
    """On meshes of one machine; what was found is remembered."""

    profile: HardwareProfile
    _machines: dict[tuple[DeviceMesh, Settings], Machine] = field(default_factory=dict)
    _tables: dict[object, Redistributions] = field(default_factory=dict)
    _ways: dict[object, _Steps] = field(default_factory=dict)
    _alike: dict[object, int] = field(default_factory=dict)
    _exchanges: dict[object, Sequence[Exchanges]] = field(default_factory=dict)

    def rerouted(self, program: Program, settings: Settings) -> Program:
        """The program with the shortest ways between its layouts."""
        shares, machine = bucket_shares(program.graph), self._machine(program.mesh, settings)
        tensors = program.graph.tensors
        known: dict[object, _Steps] = {}  # in equal blocks

        def shortest(i: Redistribute) -> Redistribute:
            tensor, share = tensors[i.tensor], shares.get(i.tensor, 1.0)
            key = tensor.shape, tensor.dtype, share, i.source, i.target
            if key not in known:
                known[key] = self._shortest(i, tensor, share, machine)
            return replace(i, steps=known[key])

        moved = (shortest(i) if isinstance(i, Redistribute) and i.steps else i for i in program.instructions)
        return replace(program, instructions=tuple(moved))

    def moves(self, program: Program) -> Moves:
        """What the program moves of weights."""
        facts = facts_of(program.graph)
        moves = tuple(weight_moves(program, facts))
        ends = tuple((m.unit, m.tensor.name, m.gradient, m.source, m.target) for m in moves)
        return Moves(len(facts.repeated), moves, self._alike.setdefault(ends, len(self._alike)))

    def exchanges(self, weights: Moves, mesh: DeviceMesh, settings: Settings) -> Sequence[Exchanges]:
        """By unit, what moves of weights are on `mesh`, whose axes have the names of the program's."""
        key = weights.alike, mesh, settings
        if key not in self._exchanges:
            machine, found = self._machine(mesh, settings), ExchangeCounts(mesh, weights.units)
            known: dict[object, tuple[_Keys, _Keys]] = {}
            for m in weights.moves:
                ends = m.tensor.shape, m.tensor.dtype, m.share, m.gradient, m.source, m.target
                if ends not in known:
                    steps = self._shortest(m, m.tensor, m.share, machine)
                    known[ends] = found.of_steps(m, steps), found.of_steps(m, scattered(steps)) if m.gradient else ()
                found.count(m, *known[ends])
            self._exchanges[key] = [found.of(unit) for unit in range(weights.units)]
        return self._exchanges[key]

    def _machine(self, mesh: DeviceMesh, settings: Settings) -> Machine:
        key = mesh, settings
        if key not in self._machines:
            self._machines[key] = Machine(self.profile, mesh, settings)
        return self._machines[key]

    def _shortest(self, move: Redistribute | WeightMove, tensor: Tensor, share: float, machine: Machine) -> _Steps:
        """The steps that the move has already where its layouts do not divide the tensor on this mesh."""
        shape, size = tensor.shape or (), machine.settings.tensor_bytes(tensor)
        key = machine.mesh, machine.settings, shape, size, share, move.source, move.target
        if key not in self._ways:
            parts, reduction = parts_of_both(move.source, move.target), reduction_of_both(move.source, move.target)
            kind = machine.mesh, machine.settings, shape, size, share, parts, reduction
            if kind not in self._tables:
                self._tables[kind] = Redistributions(shape, size, machine.mesh, machine, reduction, parts, None, share)
            table = self._tables[kind]
            fits = move.source in table.index and move.target in table.index
            self._ways[key] = table.path(move.source, move.target) if fits else move.steps
        return self._ways[key]
