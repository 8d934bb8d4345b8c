"""What stands between the layers of a model, such as masks that the first attention makes for all, and the end of an
encoder; and which chunks of a pipeline hold it, wherever stages begin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from planner.clock import Configuration

__all__ = ["LEAST_CHUNK", "Inner", "Pair", "least_layers"]

LEAST_CHUNK: Final = 0.5  # of an even share of the layers, rounded down, that every chunk has

Pair = tuple[float, float]  # of the forward and of the backward pass


@dataclass(frozen=True, slots=True)
class Inner:
    """A unit between layers, of which so many are `before` and `behind` it: seconds of its `passes`, the backward one
    also `split` as gradients of values and of weights; and the `longest` that they compute.  A chunk ends with a layer,
    so that it may begin with this."""

    before: int
    behind: int
    passes: Pair
    split: Pair
    longest: Pair

    def in_first_chunk(self, least: int) -> bool:
        """Whether it always is, where every chunk has so many layers or more."""
        return self.before < least

    def in_last_chunk(self, least: int) -> bool:
        """Whether it always is, and not in the first one."""
        return self.behind <= least <= self.before

    def begins(self, k: int, count: int, least: int) -> bool:
        """Whether chunk k of so many may begin with it, where each has so many layers or more."""
        return k * least <= self.before and (count - k) * least <= self.behind


def least_layers(layers: int, c: Configuration) -> int:
    """Of so many, those that every chunk of a member of a family has: half of an even share, rounded down, and one at
    least."""
    return max(1, math.floor(LEAST_CHUNK * layers / (c.pp * c.virtual_stages)))
