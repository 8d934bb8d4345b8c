"""What a trace knows of a graph before any program, kept with the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from planner.ir import Graph
from planner.rules.rule import Rule
from planner.work.activity import fixed_operators, made_of_parameters, trained_parameters
from planner.work.fusion import Fusion, fuse
from planner.work.units import units_of

__all__ = ["Facts", "facts_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """Weights and units of a graph; does not refer to the graph, which would never be freed.

    `fixed` are operators that compute the same at every step, `weights` parameters and tensors made of parameters
    alone, `trained` parameters that an optimizer changes.  `unit[op]` numbers the units in graph order; `repeated[u]`
    says whether unit u is a block of a run of equal ones.
    """

    fixed: frozenset[str]
    weights: frozenset[str]
    trained: frozenset[str]
    unit: Mapping[str, int]
    repeated: tuple[bool, ...]
    fusions: dict[tuple[frozenset[str], bool, bool, bool], Fusion] = field(default_factory=dict)

    def fusion(
        self,
        graph: Graph,
        rules: Mapping[str, Rule],
        active: frozenset[str],
        *,
        chains: bool,
        attention: bool,
        copies: bool,
    ) -> Fusion:
        """Of the same graph; its rules follow from it."""
        key = active, chains, attention, copies
        if key not in self.fusions:
            self.fusions[key] = fuse(graph, rules, active, chains=chains, attention=attention, copies=copies)
        return self.fusions[key]


_KNOWN: WeakKeyDictionary[Graph, Facts] = WeakKeyDictionary()


def facts_of(graph: Graph) -> Facts:
    """Found once as long as the graph lives."""
    if graph not in _KNOWN:
        units = units_of(graph)
        weights = made_of_parameters(graph)
        _KNOWN[graph] = Facts(fixed_operators(graph), weights, trained_parameters(graph), units.of, units.repeated)
    return _KNOWN[graph]
