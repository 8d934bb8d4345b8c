"""How rotary embeddings carry a new size."""

from __future__ import annotations

from planner.frontends.facts.sizes import carries
from planner.frontends.resized.broadcasting import carry_first, share
from planner.frontends.resized.carry import Carrier
from planner.ir import Op

__all__: list[str] = []


@carries("com.microsoft::RotaryEmbedding")
def _rotary(c: Carrier, op: Op) -> None:
    """Positions follow the batch."""
    share(c, op, {0: 0, 1: 0})
    carry_first(c, op)
