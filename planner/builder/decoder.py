"""A decoder of Llama's kind around any attention and any feed-forward layer: RMS norm before each, rotary positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from planner.builder import layers as nn
from planner.builder.attention import Core, causal_mask
from planner.builder.graph import INT64, GraphBuilder
from planner.builder.positions import rotary_tables
from planner.builder.sizes import SequenceSizes

__all__ = ["build_decoder", "swiglu"]

S = TypeVar("S", bound=SequenceSizes)


def build_decoder(
    g: GraphBuilder,
    sizes: S,
    kind: str,
    attention: Callable[[GraphBuilder, str, Core, S], str],
    feed_forward: Callable[[GraphBuilder, str, S, int], str],
    *,
    fused: bool,
    rotary_depth: int,
    tied: bool = False,
) -> None:
    """Inputs input_ids and labels (batch, seq); output loss, or logits (batch, seq, vocab) for inference.

    `attention` and `feed_forward` map (batch, seq, hidden) to the same; the latter is told the number of its layer.
    """
    tokens = g.input("input_ids", [sizes.batch, sizes.seq], INT64)
    with g.scope("model", kind):
        x, table = nn.embedding(g, tokens, "embed_tokens", sizes.vocab, sizes.hidden)
        mask = None if fused else causal_mask(g, sizes.seq)
        with g.scope("rotary_emb", "RotaryEmbedding"):
            core = Core(fused, mask, turn=rotary_tables(g, sizes.seq, rotary_depth))
        for i in range(sizes.layers):
            with g.scope(f"layers.{i}", "DecoderLayer"):
                normed = nn.rms_norm(g, x, "input_layernorm", sizes.hidden)
                with g.scope("self_attn", "Attention"):
                    x = g.add("Add", x, attention(g, normed, core, sizes))
                normed = nn.rms_norm(g, x, "post_attention_layernorm", sizes.hidden)
                x = g.add("Add", x, feed_forward(g, normed, sizes, i))
        x = nn.rms_norm(g, x, "norm", sizes.hidden)
    if tied:
        with g.scope("lm_head", "Linear"):
            logits = nn.project(g, x, table)
    else:
        logits = nn.linear(g, x, "lm_head", sizes.hidden, sizes.vocab, bias=False)
    nn.language_model_loss(g, logits, sizes)


def swiglu(g: GraphBuilder, x: str, width: int, inner: int, scope: str = "mlp") -> str:
    """The feed-forward layer of Llama in a module `scope`."""
    with g.scope(scope, "MLP"):
        return nn.swiglu(g, x, ("gate_proj", "up_proj", "down_proj"), width, inner)
