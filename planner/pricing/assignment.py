"""What a solver's choice means: a strategy for every operator and the redistributions of every tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from planner.ir import Layout
from planner.redistribute import RedistributionStep
from planner.rules.strategy import Strategy

__all__ = ["Assignment", "Redistribution", "RedistributionPlan", "Style"]

Style = Literal["direct", "set", "star"]


@dataclass(frozen=True, slots=True)
class Redistribution:
    """A redistribution of a tensor or of its gradient; `reader` names the operator it serves alone, if only one."""

    gradient: bool
    source: Layout
    target: Layout
    steps: tuple[RedistributionStep, ...] = ()
    reader: str = ""


@dataclass(frozen=True, slots=True)
class RedistributionPlan:
    """How one tensor is redistributed: `produced`, with `wanted` as its gradient's layout, and the moves between.

    Moves without a reader are made once for all readers, in the order given.  Under the style `star` the
    gradient contributions meet in `gathered`, and each reader's own moves start from, or end in, there.
    """

    tensor: str
    style: Style
    produced: Layout
    wanted: Layout | None
    moves: tuple[Redistribution, ...] = ()

    def shared(self, *, gradient: bool) -> tuple[Redistribution, ...]:
        return tuple(m for m in self.moves if m.gradient == gradient and not m.reader)

    def of_reader(self, reader: str, *, gradient: bool) -> tuple[Redistribution, ...]:
        return tuple(m for m in self.moves if m.gradient == gradient and m.reader == reader)


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """Strategies by operator, stored layouts by parameter, redistributions by tensor; `blocks` numbers the operators
    that run again in the backward pass, block by block."""

    strategies: Mapping[str, Strategy]
    stored: Mapping[str, Layout]
    redistributions: Mapping[str, RedistributionPlan]
    blocks: Mapping[str, int]
