"""Llama: RMS norm, rotary positions, grouped-query attention, SwiGLU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from planner.builder import layers as nn
from planner.builder.graph import INT64, GraphBuilder
from planner.builder.sizes import MAX_LAYERS, SequenceSizes, flag, option, require_multiple
from planner.errors import UsageError

__all__ = ["LlamaSizes", "build_decoder", "build_llama"]

EPSILON = 1e-5
ROTARY_BASE = 10000.0  # RoFormer, Su et al. 2021


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSizes(SequenceSizes):
    """Llama 2 7B unless told otherwise: 6,738,415,616 parameters."""

    layers: int = option(32, "layers", most=MAX_LAYERS)
    hidden: int = option(4096, "width of the residual stream")
    heads: int = option(32, "attention (query) heads")
    kv_heads: int | None = option(None, "heads of keys and values; default: --heads")
    ffn: int | None = option(11008, "width of the feed-forward layers")
    vocab: int = option(32000, "size of the vocabulary")
    seq: int = option(2048, "tokens per sample")

    @property
    def key_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    def check(self) -> None:
        SequenceSizes.check(self)
        require_multiple("heads", self.heads, "kv_heads", self.key_heads)
        if self.depth % 2:
            given = f"{flag('hidden')} {self.hidden} over {flag('heads')} {self.heads}"
            raise UsageError(
                f"{given} makes heads of odd width {self.depth}; rotary positions turn pairs, so it must be even"
            )


S = TypeVar("S", bound=LlamaSizes)


def build_llama(g: GraphBuilder, sizes: LlamaSizes) -> None:
    """Inputs input_ids and labels (batch, seq); output loss, or logits (batch, seq, vocab) for inference."""
    build_decoder(g, sizes, "Llama", _swiglu)


def build_decoder(g: GraphBuilder, sizes: S, kind: str, feed_forward: Callable[[GraphBuilder, str, S], str]) -> None:
    """A decoder of Llama's kind around any feed-forward layer (batch, seq, hidden) → the same."""
    tokens = g.input("input_ids", [sizes.batch, sizes.seq], INT64)
    with g.scope("model", kind):
        x, _ = nn.embedding(g, tokens, "embed_tokens", sizes.vocab, sizes.hidden)
        mask = nn.causal_mask(g, sizes.seq)
        with g.scope("rotary_emb", "RotaryEmbedding"):
            turn = _rotary_tables(g, sizes)
        for i in range(sizes.layers):
            with g.scope(f"layers.{i}", "DecoderLayer"):
                normed = _rms_norm(g, x, "input_layernorm", sizes.hidden)
                with g.scope("self_attn", "Attention"):
                    x = g.add("Add", x, _attention(g, normed, mask, turn, sizes))
                normed = _rms_norm(g, x, "post_attention_layernorm", sizes.hidden)
                x = g.add("Add", x, feed_forward(g, normed, sizes))
        x = _rms_norm(g, x, "norm", sizes.hidden)
    logits = nn.linear(g, x, "lm_head", sizes.hidden, sizes.vocab, bias=False)
    nn.language_model_loss(g, logits, sizes)


def _rms_norm(g: GraphBuilder, x: str, name: str, width: int) -> str:
    with g.scope(name, "RMSNorm"):
        power = g.add("ReduceMean", g.add("Mul", x, x), g.constant([-1]), keepdims=1)
        root = g.add("Sqrt", g.add("Add", power, g.constant(EPSILON, np.float32)))
        return g.add("Mul", g.add("Div", x, root), g.parameter("weight", width))


def _rotary_tables(g: GraphBuilder, sizes: LlamaSizes) -> tuple[str, str]:
    """Cosines and sines (seq, depth) of position times frequency, both halves of the depth alike."""
    frequencies = ROTARY_BASE ** (-np.arange(0, sizes.depth, 2, dtype=np.float64) / sizes.depth)
    zero, end, one = (g.constant(float(v), np.float32) for v in (0, sizes.seq, 1))
    positions = nn.unsqueeze(g, g.add("Range", zero, end, one), 1)
    angles = g.add("Mul", positions, g.constant(frequencies, np.float32))
    angles = g.add("Concat", angles, angles, axis=-1)
    return g.add("Cos", angles), g.add("Sin", angles)


def _rotated(g: GraphBuilder, x: str, turn: tuple[str, str], half: int) -> str:
    """x (…, seq, depth) turned by its position: x · cos + (−x₂, x₁) · sin."""
    first, second = g.add_many("Split", 2, x, g.constant([half, half]), axis=-1)
    crossed = g.add("Concat", g.add("Neg", second), first, axis=-1)
    return g.add("Add", g.add("Mul", x, turn[0]), g.add("Mul", crossed, turn[1]))


def _attention(g: GraphBuilder, x: str, mask: str, turn: tuple[str, str], sizes: LlamaSizes) -> str:
    """Query heads in groups that share a key head.

    Groups are a dimension of their own, over which keys and values broadcast; repeating them would copy what every
    group reads.
    """
    keys, depth, groups = sizes.key_heads, sizes.depth, sizes.heads // sizes.key_heads
    width, kv_width = sizes.hidden, keys * depth
    q = nn.linear(g, x, "q_proj", width, width, bias=False)
    k = nn.linear(g, x, "k_proj", width, kv_width, bias=False)
    v = nn.linear(g, x, "v_proj", width, kv_width, bias=False)
    k, v = nn.split_heads(g, k, keys, depth), nn.split_heads(g, v, keys, depth)
    if groups == 1:
        q = nn.split_heads(g, q, keys, depth)
    else:
        q = g.add("Reshape", q, g.constant([0, 0, keys, groups, depth]))
        q = g.add("Transpose", q, perm=[0, 2, 3, 1, 4])
    q, k = _rotated(g, q, turn, depth // 2), _rotated(g, k, turn, depth // 2)
    if groups == 1:
        mixed = nn.join_heads(g, nn.attend(g, q, k, v, depth=depth, mask=mask), width)
    else:
        k, v = nn.unsqueeze(g, k, 2), nn.unsqueeze(g, v, 2)
        mixed = nn.attend(g, q, k, v, depth=depth, rank=5, mask=mask)
        mixed = g.add("Reshape", g.add("Transpose", mixed, perm=[0, 3, 1, 2, 4]), g.constant([0, 0, width]))
    return nn.linear(g, mixed, "o_proj", width, width, bias=False)


def _swiglu(g: GraphBuilder, x: str, sizes: LlamaSizes) -> str:
    """W₂ (silu(W₁ x) · W₃ x), Shazeer 2020."""
    with g.scope("mlp", "MLP"):
        gate = nn.linear(g, x, "gate_proj", sizes.hidden, sizes.inner, bias=False)
        up = nn.linear(g, x, "up_proj", sizes.hidden, sizes.inner, bias=False)
        active = g.add("Mul", g.add("Mul", gate, g.add("Sigmoid", gate)), up)
        return nn.linear(g, active, "down_proj", sizes.inner, sizes.hidden, bias=False)
