"""Shapes of what embeddings give, where ONNX does not say."""

from __future__ import annotations

from planner.frontends.facts.shapes import UNKNOWN, Inferred, Operands, given, infers, shape_of
from planner.ir import Op

__all__: list[str] = []


@infers("com.microsoft::EmbedLayerNormalization")
def _embedding(op: Op, operands: Operands) -> list[Inferred]:
    """Ids (b, s) and a table (v, h): the normalised sum, a mask index, the sum."""
    ids, table = shape_of(operands, 0), given(operands, 2)
    if ids is None or table is None or table.shape is None:
        return [UNKNOWN]
    embedded = (table.dtype, (*ids, table.shape[-1]))
    return [embedded, ("int32", ids[:1]), embedded]
