"""What a trace knows of a graph before any program, kept with the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from planner.ir import Graph
from planner.work.activity import fixed_operators, made_of_parameters, trained_parameters
from planner.work.units import bucket_shares, units_of

__all__ = ["Facts", "cut_units", "facts_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """Weights and units of a graph; does not refer to the graph, which would never be freed.

    `fixed` are operators that compute the same at every step, `weights` parameters and tensors made of parameters
    alone, `trained` parameters that an optimizer changes.  `unit[op]` numbers the units in graph order; `repeated[u]`
    says whether unit u is a block of a run of equal ones, `stages[u]` which stage of a pipeline it is in; `shares`:
    those of parameters in the unit that reads them first.
    """

    fixed: frozenset[str]
    weights: frozenset[str]
    trained: frozenset[str]
    unit: Mapping[str, int]
    repeated: tuple[bool, ...]
    shares: Mapping[str, float]
    stages: tuple[int, ...] = ()

    def cut(self, stage_of: Mapping[str, int]) -> Facts:
        """With units that end where stages do, and are numbered stage by stage."""
        unit, repeated, stages = cut_units(self.unit, self.repeated, stage_of)
        return replace(self, unit=unit, repeated=repeated, stages=stages)


def cut_units(
    unit: Mapping[str, int], repeated: Sequence[bool], stage_of: Mapping[str, int]
) -> tuple[dict[str, int], tuple[bool, ...], tuple[int, ...]]:
    """Units by operator that end where stages do, numbered stage by stage; by unit whether it is `repeated`, and its
    stage."""
    numbers = sorted({(stage_of[name], u) for name, u in unit.items()})
    number = {key: n for n, key in enumerate(numbers)}
    cut = {name: number[stage_of[name], u] for name, u in unit.items()}
    return cut, tuple(repeated[u] for _, u in numbers), tuple(stage for stage, _ in numbers)


_KNOWN: WeakKeyDictionary[Graph, Facts] = WeakKeyDictionary()


def facts_of(graph: Graph) -> Facts:
    """Found once as long as the graph lives."""
    if graph not in _KNOWN:
        units = units_of(graph)
        weights = made_of_parameters(graph)
        trained, shares = trained_parameters(graph), bucket_shares(graph)
        _KNOWN[graph] = Facts(fixed_operators(graph), weights, trained, units.of, units.repeated, shares)
    return _KNOWN[graph]
