"""What rotary embeddings ask of the values of their operands: that positions lie inside of the table."""

from __future__ import annotations

from planner.verify.uses import Reading, Use, Uses, reads

__all__: list[str] = []


@reads("RotaryEmbedding")
def _positions(r: Reading) -> Uses:
    return {3: Use(below=r.shape(1)[:1])} if len(r.op.inputs) > 3 else {}
