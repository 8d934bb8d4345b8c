"""Layers that several architectures share.

Activations are (batch, sequence, hidden).  Reshape targets say 0 ("as before") for batch and sequence, so that no
constant of the graph spells out the batch and another can be bound later.  Weights are (in, out): `x @ W`.
"""

from __future__ import annotations

import numpy as np

from planner.builder.graph import INT64, GraphBuilder
from planner.builder.sizes import SequenceSizes

__all__ = [
    "attend",
    "causal_mask",
    "cross_entropy",
    "embedding",
    "gelu_mlp",
    "join_heads",
    "language_model_loss",
    "layer_norm",
    "linear",
    "position_embedding",
    "project",
    "self_attention",
    "split_heads",
    "unsqueeze",
]

IGNORED_LABEL = -100  # as torch's cross-entropy has it


def linear(g: GraphBuilder, x: str, name: str, inputs: int, outputs: int, *, bias: bool = True) -> str:
    """x (…, inputs) → (…, outputs)."""
    with g.scope(name, "Linear"):
        y = g.add("MatMul", x, g.parameter("weight", inputs, outputs))
        return g.add("Add", y, g.parameter("bias", outputs)) if bias else y


def project(g: GraphBuilder, x: str, table: str) -> str:
    """x (…, hidden) times the transposed embedding table (vocabulary, hidden): an output layer with tied weights."""
    return g.add("MatMul", x, g.add("Transpose", table, perm=[1, 0]))


def layer_norm(g: GraphBuilder, x: str, name: str, width: int, epsilon: float = 1e-5) -> str:
    with g.scope(name, "LayerNorm"):
        weight, bias = g.parameter("weight", width), g.parameter("bias", width)
        return g.add("LayerNormalization", x, weight, bias, axis=-1, epsilon=epsilon)


def embedding(g: GraphBuilder, indices: str, name: str, rows: int, width: int) -> tuple[str, str]:
    """(indices' shape, width) and the table (rows, width) itself."""
    with g.scope(name, "Embedding"):
        table = g.parameter("weight", rows, width)
        return g.add("Gather", table, indices, axis=0), table


def position_embedding(g: GraphBuilder, name: str, rows: int, used: int, width: int) -> str:
    """The first `used` rows of a table (rows, width) of learned positions."""
    with g.scope(name, "Embedding"):
        table = g.parameter("weight", rows, width)
        if rows == used:
            return table
        return g.add("Slice", table, g.constant([0]), g.constant([used]), g.constant([0]))


def unsqueeze(g: GraphBuilder, x: str, axis: int) -> str:
    return g.add("Unsqueeze", x, g.constant([axis]))


def causal_mask(g: GraphBuilder, seq: int) -> str:
    """(seq, seq) booleans, true where a query may look at a key.

    Computed from positions: stored, the mask of a long sequence would dwarf the graph.
    """
    positions = g.add("Range", g.constant(0), g.constant(seq), g.constant(1))
    return g.add("GreaterOrEqual", unsqueeze(g, positions, 1), unsqueeze(g, positions, 0))


def split_heads(g: GraphBuilder, x: str, heads: int, depth: int) -> str:
    """(batch, sequence, heads · depth) → (batch, heads, sequence, depth)."""
    return g.add("Transpose", g.add("Reshape", x, g.constant([0, 0, heads, depth])), perm=[0, 2, 1, 3])


def join_heads(g: GraphBuilder, x: str, width: int) -> str:
    """(batch, heads, sequence, depth) → (batch, sequence, width)."""
    return g.add("Reshape", g.add("Transpose", x, perm=[0, 2, 1, 3]), g.constant([0, 0, width]))


def attend(g: GraphBuilder, q: str, k: str, v: str, *, depth: int, rank: int = 4, mask: str | None = None) -> str:
    """softmax(q kᵀ / √depth) v over the last two dimensions; queries look where `mask` is true."""
    perm = [*range(rank - 2), rank - 1, rank - 2]
    scores = g.add("MatMul", q, g.add("Transpose", k, perm=perm))
    scores = g.add("Mul", scores, g.constant(depth**-0.5, np.float32))
    if mask is not None:
        scores = g.add("Where", mask, scores, g.constant(np.finfo(np.float32).min, np.float32))
    return g.add("MatMul", g.add("Softmax", scores, axis=-1), v)


def self_attention(
    g: GraphBuilder, x: str, fused: str, output: str, *, heads: int, depth: int, mask: str | None = None
) -> str:
    """Multi-head attention of x (batch, sequence, heads · depth) with itself.

    One product (`fused`) makes queries, keys and values, its columns ordered (head, q|k|v, depth) as in Megatron-LM and
    GPT-NeoX: heads are then contiguous and a column split keeps whole heads on a device.
    """
    width = heads * depth
    qkv = linear(g, x, fused, width, 3 * width)
    qkv = g.add("Reshape", qkv, g.constant([0, 0, heads, 3 * depth]))
    parts = g.add_many("Split", 3, qkv, g.constant([depth] * 3), axis=-1)
    q, k, v = (g.add("Transpose", part, perm=[0, 2, 1, 3]) for part in parts)
    mixed = attend(g, q, k, v, depth=depth, mask=mask)
    return linear(g, join_heads(g, mixed, width), output, width, width)


def gelu_mlp(g: GraphBuilder, x: str, up: str, down: str, width: int, inner: int, approximate: str = "none") -> str:
    """Two linear layers with a GELU between them."""
    hidden = g.add("Gelu", linear(g, x, up, width, inner), approximate=approximate)
    return linear(g, hidden, down, inner, width)


def cross_entropy(g: GraphBuilder, logits: str, labels: str) -> None:
    """Mean loss of logits (samples, classes) against labels (samples); the graph's output `loss`."""
    loss = g.add("SoftmaxCrossEntropyLoss", logits, labels, reduction="mean", ignore_index=IGNORED_LABEL)
    g.output(loss, "loss", [])


def language_model_loss(g: GraphBuilder, logits: str, sizes: SequenceSizes) -> None:
    """The end of a model over tokens: logits (batch, seq, vocab) as they are, or the loss against input `labels`.

    Labels (batch, seq) stand under the position that predicts them: whoever feeds a causal model shifts them.
    """
    if sizes.inference:
        g.output(logits, "logits", [sizes.batch, sizes.seq, sizes.vocab])
        return
    labels = g.input("labels", [sizes.batch, sizes.seq], INT64)
    rows = g.add("Reshape", logits, g.constant([-1, sizes.vocab]))
    cross_entropy(g, rows, g.add("Reshape", labels, g.constant([-1])))
