"""What makes a strategy another one: the factors that it splits, and into how many shards.

Shards, not axes: so a split means the same on every mesh that can form it, and the search may choose the mesh.
Whether an axis that splits nothing leaves gradients pending belongs to how tensors travel and is left to the search,
as it is where a user pins a strategy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.ir import DeviceMesh, Graph
from planner.planning.constraints import parse_pin
from planner.planning.constraints.select import Selector
from planner.planning.constraints.values import StrategyPin, split_of
from planner.rules.strategy import Strategy
from planner.work.activity import fixed_operators

__all__ = ["OtherThan", "Split", "pin_text", "split_text", "splits_into"]

Split = tuple[tuple[str, int], ...]  # factor, or mode → shards, by name; what is not named is whole


def splits_into(strategy: Strategy, mesh: DeviceMesh) -> Split:
    shards = ((factor, mesh.size(axes)) for factor, axes in split_of(strategy, mesh).items())
    return tuple(sorted((factor, n) for factor, n in shards if n > 1))


def split_text(split: Split) -> str:
    """As `--pin` has it: `m=8 n=2`, or `replicated`."""
    return " ".join(f"{factor}={n}" for factor, n in split) or "replicated"


@dataclass(frozen=True, slots=True)
class OtherThan(StrategyPin):
    """Admits every strategy but those that split like one of `known`."""

    known: tuple[Split, ...] = ()

    @property
    def only_roles(self) -> bool:
        return False

    def distance(self, strategy: Strategy, mesh: DeviceMesh) -> int:
        return int(splits_into(strategy, mesh) in self.known)

    def __str__(self) -> str:
        return f"other than {' or '.join(map(split_text, self.known))}"


def pin_text(operator: str, split: Split, graph: Graph) -> str | None:
    """The operator's split as one `--pin`; None where the operator or a factor has a name that none can say."""
    text = f"{_pattern(operator)} {split_text(split)}"
    try:
        (pin,) = parse_pin(text).operators
        meant = Selector(graph, fixed_operators(graph)).operators(pin)
    except (PlannerError, ValueError):
        return None
    factors: Mapping[str, object] = dict(pin.strategy.factors or ())
    return text if [op.name for op in meant] == [operator] and factors == dict(split) else None


def _pattern(name: str) -> str:
    """The name, or where that cannot stand in a pin or on a terminal, a pattern that it matches."""
    if all(c.isprintable() and c not in " =" for c in name):
        return name
    quoted = re.sub(r"[\[*?]", r"[\g<0>]", name)
    return "".join(c if c.isprintable() and c not in " =" else "?" for c in quoted)
