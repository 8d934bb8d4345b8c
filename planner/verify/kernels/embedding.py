"""Embeddings fused with their normalisation: ONNX Runtime asks for declared sizes, which sessions here do not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from planner.ir import Op
from planner.verify.vjp.attributes import Array

__all__ = ["EMBEDDING_KERNELS"]

Operands = Sequence["Array | None"]


def _embed_layer_normalization(op: Op, inputs: Operands) -> Sequence[Array | None]:
    words, segments, of_words, of_places, of_segments, gain, shift, mask, places = (*inputs, *[None] * 9)[:9]
    assert words is not None
    assert of_words is not None
    assert of_places is not None
    assert gain is not None
    assert shift is not None
    total = of_words[words] + of_places[np.arange(words.shape[1])[None] if places is None else places]
    if segments is not None and of_segments is not None:
        total = total + of_segments[segments]
    wide = total.astype(np.float32)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + op.attributes.get("epsilon", 1e-12))
    y = (centred / deviation * gain + shift).astype(total.dtype)
    count = np.zeros(len(words), np.int32) if mask is None else mask.sum(axis=1, dtype=np.int32)
    return [y, count, total]


EMBEDDING_KERNELS: Mapping[str, Callable[[Op, Operands], Sequence[Array | None] | None]] = {
    "com.microsoft::EmbedLayerNormalization": _embed_layer_normalization
}
