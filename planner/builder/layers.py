"""Layers that several architectures share.

Activations are (batch, sequence, hidden).  Reshape targets say 0 ("as before") for batch and sequence, so that no
constant of the graph spells out the batch and another can be bound later.  Weights are (in, out): `x @ W`.
"""

from __future__ import annotations

import numpy as np

from planner.builder.graph import INT64, GraphBuilder
from planner.builder.sizes import SequenceSizes

__all__ = [
    "cross_entropy",
    "embedding",
    "gated",
    "gelu_mlp",
    "language_model_loss",
    "layer_norm",
    "linear",
    "project",
    "rms_norm",
    "squared_relu_mlp",
    "swiglu",
    "unsqueeze",
]

EPSILON = 1e-5
IGNORED_LABEL = -100  # as torch's cross-entropy has it


def linear(g: GraphBuilder, x: str, name: str, inputs: int, outputs: int, *, bias: bool = True) -> str:
    """x (…, inputs) → (…, outputs)."""
    with g.scope(name, "Linear"):
        y = g.add("MatMul", x, g.parameter("weight", inputs, outputs))
        return g.add("Add", y, g.parameter("bias", outputs)) if bias else y


def project(g: GraphBuilder, x: str, table: str) -> str:
    """x (…, hidden) times the transposed embedding table (vocabulary, hidden): an output layer with tied weights."""
    return g.add("MatMul", x, g.add("Transpose", table, perm=[1, 0]))


def layer_norm(g: GraphBuilder, x: str, name: str, width: int, epsilon: float = EPSILON, *, bias: bool = True) -> str:
    with g.scope(name, "LayerNorm"):
        parameters = [g.parameter(n, width) for n in (["weight", "bias"] if bias else ["weight"])]
        return g.add("LayerNormalization", x, *parameters, axis=-1, epsilon=epsilon)


def rms_norm(g: GraphBuilder, x: str, name: str, width: int) -> str:
    with g.scope(name, "RMSNorm"):
        power = g.add("ReduceMean", g.add("Mul", x, x), g.constant([-1]), keepdims=1)
        root = g.add("Sqrt", g.add("Add", power, g.constant(EPSILON, np.float32)))
        return g.add("Mul", g.add("Div", x, root), g.parameter("weight", width))


def embedding(g: GraphBuilder, indices: str, name: str, rows: int, width: int) -> tuple[str, str]:
    """(indices' shape, width) and the table (rows, width) itself."""
    with g.scope(name, "Embedding"):
        table = g.parameter("weight", rows, width)
        return g.add("Gather", table, indices, axis=0), table


def unsqueeze(g: GraphBuilder, x: str, axis: int) -> str:
    return g.add("Unsqueeze", x, g.constant([axis]))


def gelu_mlp(
    g: GraphBuilder,
    x: str,
    up: str,
    down: str,
    width: int,
    inner: int,
    approximate: str = "none",
    *,
    bias: bool = True,
) -> str:
    """Two linear layers with a GELU between them."""
    hidden = g.add("Gelu", linear(g, x, up, width, inner, bias=bias), approximate=approximate)
    return linear(g, hidden, down, inner, width, bias=bias)


def squared_relu_mlp(g: GraphBuilder, x: str, up: str, down: str, width: int, inner: int, *, bias: bool = True) -> str:
    """Two linear layers with a squared ReLU between them (So et al. 2021, Primer)."""
    hidden = g.add("Relu", linear(g, x, up, width, inner, bias=bias))
    return linear(g, g.add("Mul", hidden, hidden), down, inner, width, bias=bias)


def swiglu(g: GraphBuilder, x: str, names: tuple[str, str, str], width: int, inner: int, *, bias: bool = False) -> str:
    """W₂ (silu(W₁ x) · W₃ x), Shazeer 2020; `names` of the layers W₁, W₃ and W₂."""
    gate, up = (linear(g, x, name, width, inner, bias=bias) for name in names[:2])
    return linear(g, gated(g, gate, up), names[2], inner, width, bias=bias)


def gated(g: GraphBuilder, gate: str, up: str) -> str:
    """silu(gate) · up."""
    return g.add("Mul", g.add("Mul", gate, g.add("Sigmoid", gate)), up)


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
