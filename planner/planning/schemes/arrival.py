"""What a rule of a kind of parallelism sees of an operator, and the conditions that rules are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.ir import Layout, Op
from planner.planning.schemes.ways import Layouts, Way, divided
from planner.rules.rule import Rule

__all__ = ["Arrival", "KindOfAxis", "Ways"]

Ways = Sequence[Way]


@dataclass(frozen=True, slots=True)
class Arrival:
    """An operator, and how its operands arrive along the axis: None where any layout will do, of absent ones,
    constants, and weights that no operator before has read.

    weights   operands made of parameters alone
    matrices  those of them with two dimensions or more, of which the rule knows
    indexed   whether it looks rows of a weight up by an input of the model
    feeds     whether products read the first result in this layout, or nothing does, before a normalisation over what
              it divides
    """

    op: Op
    rule: Rule
    operands: Layouts
    weights: frozenset[int]
    matrices: tuple[int, ...]
    indexed: bool
    feeds: Callable[[Layout], bool]

    @property
    def heavy(self) -> bool:
        """Whether it is worth dividing by itself: what is not follows its activations."""
        return not self.rule.cost.kind.fuses

    @property
    def activations(self) -> list[int]:
        return [i for i, t in enumerate(self.op.inputs) if t and i not in self.weights]

    def keeps(self, way: Way, operand: int) -> bool:
        """Whether an operand that arrives divided is read just so."""
        return divided(self.operands[operand]) and way.operands[operand] == self.operands[operand]

    def follows(self, way: Way) -> bool:
        """Whether the operator runs whole, or divided as one of its activations arrives."""
        return not way.splits or any(self.keeps(way, i) for i in self.activations)

    def following(self, ways: Ways) -> Ways:
        """Those that follow the activations; a heavy operator leaves its weights whole."""
        return [w for w in ways if self.follows(w) and not (self.heavy and w.divides(self.matrices))]


@dataclass(frozen=True, slots=True)
class KindOfAxis:
    """What an axis of one kind does.

    inputs           the dimension along which inputs of the model arrive divided; None: they arrive whole
    rule             the ways that are admitted, of all that there are
    divides_weights  whether the kind is there to divide weights, or inputs
    lacking          what the model lacks where it divides none, over so many ranks
    """

    key: str
    inputs: int | None
    rule: Callable[[Arrival, Ways], Ways]
    divides_weights: bool
    lacking: str
