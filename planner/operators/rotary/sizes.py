"""How rotary embeddings carry a new size."""

from __future__ import annotations

from planner.frontends.broadcasting import carry_first, share
from planner.frontends.carry import Carrier
from planner.frontends.sizes import carries
from planner.ir import Op

__all__: list[str] = []


@carries("com.microsoft::RotaryEmbedding")
def _rotary(c: Carrier, op: Op) -> None:
    """Positions follow the batch."""
    share(c, op, {0: 0, 1: 0})
    carry_first(c, op)
