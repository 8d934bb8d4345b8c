"""How embeddings carry a new size."""

from __future__ import annotations

from planner.frontends.facts.sizes import carries
from planner.frontends.resized.broadcasting import carry_first, share
from planner.frontends.resized.carry import Carrier
from planner.ir import Op

__all__: list[str] = []


@carries("com.microsoft::EmbedLayerNormalization")
def _embedding(c: Carrier, op: Op) -> None:
    """Ids, segments and positions share batch and length."""
    for dimension in (0, 1):
        share(c, op, {0: dimension, 1: dimension, 7: dimension})
    carry_first(c, op)
