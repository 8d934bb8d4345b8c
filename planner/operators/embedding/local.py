"""Embeddings fused with their normalisation: ONNX Runtime asks for declared sizes, which sessions here do not have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.local import in_place_of_runtime

__all__: list[str] = []

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


in_place_of_runtime({"com.microsoft::EmbedLayerNormalization": _embed_layer_normalization})
