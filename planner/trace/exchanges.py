"""Collectives that parameters, and gradients of parameters, take part in, by unit of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.ir import DeviceMesh, Layout, Tensor
from planner.lowering import Program, Redistribute
from planner.redistribute import RedistributionStep, scattered
from planner.redistribute.steps import FREE
from planner.trace.facts import Facts
from planner.trace.passes import passes
from planner.trace.workload import Exchange

__all__ = ["ExchangeCounts", "ExchangeKey", "Exchanges", "WeightMove", "weight_moves"]

ExchangeKey = tuple[str, tuple[str, ...], float, float]  # kind, axes, elements of the group, share of the unit


@dataclass(frozen=True, slots=True)
class WeightMove:
    """A weight, or its gradient, on its way between two layouts; `unit`: that reads it there, or read it first;
    `share`: as of `Exchange`."""

    unit: int
    tensor: Tensor
    share: float
    gradient: bool
    source: Layout
    target: Layout
    steps: tuple[RedistributionStep, ...]


def weight_moves(program: Program, facts: Facts) -> Iterator[WeightMove]:
    """Those that communicate, each once, though blocks that run again load their weights twice."""
    seen: dict[tuple[str, str, bool], list[Redistribute]] = {}  # not a set of them: hashing layouts takes long
    for i, again in passes(program):
        if again or not isinstance(i, Redistribute) or i.tensor not in facts.weights:
            continue
        if all(s.kind in FREE for s in i.steps):
            continue
        before = seen.setdefault((i.tensor, i.reader, i.gradient), [])
        if i not in before:
            before.append(i)
            readers = program.graph.consumers[i.tensor]
            unit = min(facts.unit[op.name] for op, _ in readers if not i.reader or op.name == i.reader)
            share = facts.shares.get(i.tensor, 1.0)
            yield WeightMove(unit, program.graph.tensors[i.tensor], share, i.gradient, i.source, i.target, i.steps)


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Of one unit, as of `Unit`."""

    gathers: tuple[Exchange, ...] = ()
    sums: tuple[Exchange, ...] = ()
    scatters: tuple[Exchange, ...] = ()


class ExchangeCounts:
    """What moves of weights on a mesh come to, by unit."""

    def __init__(self, mesh: DeviceMesh, units: int) -> None:
        self._mesh = mesh
        self._gathers = [Counter[ExchangeKey]() for _ in range(units)]
        self._sums = [Counter[ExchangeKey]() for _ in range(units)]
        self._scatters = [Counter[ExchangeKey]() for _ in range(units)]

    def add(self, move: WeightMove, steps: Sequence[RedistributionStep]) -> None:
        once = self.of_steps(move, steps)
        self.count(move, once, self.of_steps(move, scattered(steps)) if move.gradient else ())

    def of_steps(self, move: WeightMove, steps: Iterable[RedistributionStep]) -> tuple[ExchangeKey, ...]:
        """What such a move exchanges by these steps."""
        elements = move.tensor.elements
        return tuple(
            (str(s.kind), s.axes, s.group_bytes(elements, self._mesh), move.share) for s in steps if s.kind not in FREE
        )

    def count(self, move: WeightMove, once: Sequence[ExchangeKey], every_pass: Sequence[ExchangeKey]) -> None:
        """Counts the move by what it exchanges once a step; of gradients, also where every pass scatters them."""
        if move.gradient:
            self._sums[move.unit].update(once)
            self._scatters[move.unit].update(every_pass)
        else:
            self._gathers[move.unit].update(once)

    def of(self, unit: int) -> Exchanges:
        return Exchanges(*(_exchanges(found[unit]) for found in (self._gathers, self._sums, self._scatters)))


def _exchanges(found: Mapping[ExchangeKey, int]) -> tuple[Exchange, ...]:
    return tuple(Exchange(*key, count) for key, count in sorted(found.items()))
