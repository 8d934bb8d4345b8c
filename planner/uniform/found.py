"""What a search of uniform configurations found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from planner.clock import Configuration, Prediction
from planner.uniform.coarse import Coarse

__all__ = ["ONE_BY_ONE", "ONE_BY_ONE_LESS", "Found", "Scored"]

# Of a step, that layouts of single operators save at most, we assume, where finding them takes long.
ONE_BY_ONE: Final = 0.1
ONE_BY_ONE_LESS: Final = 0.15  # and of the memory of a device


@dataclass(frozen=True, slots=True)
class Scored:
    """A configuration and what is predicted of it."""

    configuration: Configuration
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class Found:
    """`best`: those asked for, the shortest step first; `considered`: configurations in all, of which so many were
    `simulated`; `refused`: by reason, those that are not in question; `rejected`: the same of each configuration once,
    whatever its ZeRO level: too large for a device, what the model does not admit, what the target has no words for,
    and what a bound says is slower, before it was simulated; `at_once_s`: about the seconds that a step takes
    with the whole batch in one pass, on one stage, and nothing of it but what plans of single operators can say; inf
    where a bound says that it is not among those asked for, or that `ONE_BY_ONE` less would not make it the fastest,
    or no device can hold it even with `ONE_BY_ONE_LESS`, 0 where the search was stopped too early to say; `coarse`:
    what is known of each choice of ranks that may be near the best; `ended`: whether nothing was left open."""

    best: tuple[Scored, ...]
    considered: int
    simulated: int
    refused: Mapping[str, int]
    at_once_s: float
    coarse: Coarse
    ended: bool
    rejected: Mapping[str, int] = field(default_factory=dict)
