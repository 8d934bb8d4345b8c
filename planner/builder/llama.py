"""Llama and its kin: RMS norm, rotary positions, grouped-query attention, SwiGLU.

Qwen 1 to 2 and GLM-3 have `--qkv-bias`; Qwen 3 has `--head-dim 128 --qk-norm`; the smallest of a family are `--tied`.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.builder import layers as nn
from planner.builder.attention import Core, mix, split_heads, split_queries
from planner.builder.decoder import build_decoder, swiglu
from planner.builder.graph import GraphBuilder
from planner.builder.sizes import (
    MAX_LAYERS,
    DecoderSizes,
    flag,
    option,
    require_even_depth,
    require_multiple,
    switch,
)
from planner.errors import UsageError

__all__ = ["LlamaSizes", "attention", "build_llama"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSizes(DecoderSizes):
    """Llama 2 7B where no option says otherwise: 6,738,415,616 parameters."""

    layers: int = option(32, "number of layers", most=MAX_LAYERS)
    hidden: int = option(4096, "width of the residual stream")
    heads: int = option(32, "number of query heads")
    ffn: int | None = option(11008, "width of the feed-forward layers")
    vocab: int = option(32000, "size of the vocabulary")
    seq: int = option(2048, "number of tokens per sample")
    head_dim: int | None = option(None, "width of one head; default: --hidden over --heads")
    qkv_bias: bool = switch(False, "give queries, keys and values biases")
    qk_norm: bool = switch(False, "normalise every head's queries and keys")
    tied: bool = switch(False, "use the embedding's table as the output layer, too")

    @property
    def depth(self) -> int:
        return self.hidden // self.heads if self.head_dim is None else self.head_dim

    def check(self) -> None:
        if self.head_dim is None:
            DecoderSizes.check(self)
            require_even_depth(self)
            return
        require_multiple("heads", self.heads, "kv_heads", self.key_heads)
        if self.head_dim % 2:
            raise UsageError(f"{flag('head_dim')} {self.head_dim}: expected an even number, for rotary positions")


def build_llama(g: GraphBuilder, sizes: LlamaSizes) -> None:
    """Inputs input_ids and labels (batch, seq); output loss, or logits (batch, seq, vocab) for inference."""
    build_decoder(
        g,
        sizes,
        "Llama",
        attention,
        lambda g, x, s, _: swiglu(g, x, s.hidden, s.inner),
        fused=sizes.attention == "fused",
        rotary_depth=sizes.depth,
        tied=sizes.tied,
    )


def attention(g: GraphBuilder, x: str, core: Core, sizes: LlamaSizes) -> str:
    """Query heads in groups that share a key head."""
    keys, depth, groups = sizes.key_heads, sizes.depth, sizes.heads // sizes.key_heads
    hidden, width, kv_width = sizes.hidden, sizes.heads * depth, keys * depth
    q, k, v = (
        nn.linear(g, x, name, hidden, outputs, bias=sizes.qkv_bias)
        for name, outputs in (("q_proj", width), ("k_proj", kv_width), ("v_proj", kv_width))
    )
    k, v = split_heads(g, k, keys, depth), split_heads(g, v, keys, depth)
    q = split_queries(g, q, keys, groups, depth, fused=core.fused)
    if sizes.qk_norm:
        q, k = nn.rms_norm(g, q, "q_norm", depth), nn.rms_norm(g, k, "k_norm", depth)
    mixed = mix(g, q, k, v, core, groups=groups, depth=depth, width=width)
    return nn.linear(g, mixed, "o_proj", width, hidden, bias=False)
