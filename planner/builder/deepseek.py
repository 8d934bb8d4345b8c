"""DeepSeek-V2 and V3: multi-head latent attention, and experts of which some are shared by all tokens.

Queries, keys and values are made from narrow latents (DeepSeek-AI 2024, arXiv:2405.04434, section 2.1): keys and
values of all heads share one of `kv_lora`, queries one of `q_lora`.  Rotations would not commute with widening the
latent, so that each head has `qk_rope` further dimensions that are rotated; those of the keys are shared by all heads.
Training computes keys and values of every head; nothing is cached.

Left out: V3's module that predicts a further token, its correction of scores for balance, and the limit on groups of
experts, none of which changes work or traffic much.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.builder import layers as nn
from planner.builder.attention import Core, mix, split_heads
from planner.builder.decoder import build_decoder, swiglu
from planner.builder.experts import Routing, dispatch_choice, routed, slots_option
from planner.builder.graph import GraphBuilder
from planner.builder.positions import rotated
from planner.builder.sizes import MAX_LAYERS, SequenceSizes, choice, flag, option
from planner.errors import UsageError

__all__ = ["DeepseekSizes", "build_deepseek"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekSizes(SequenceSizes):
    """DeepSeek-V2 where no option says otherwise: 235,741,434,880 parameters."""

    layers: int = option(60, "number of layers", most=MAX_LAYERS)
    hidden: int = option(5120, "width of the residual stream")
    heads: int = option(128, "number of attention heads")
    ffn: int | None = option(12288, "width of the feed-forward layers of the first --dense-layers")
    vocab: int = option(102400, "size of the vocabulary")
    seq: int = option(4096, "number of tokens per sample")
    attention: str = choice(
        "unfused",
        "write attention as operators for scores, softmax and weighted sum, or as one Attention operator",
        "fused",
    )
    q_lora: int = option(1536, "width of the latent of queries; 0: none", least=0)
    kv_lora: int = option(512, "width of the latent of keys and values")
    qk_nope: int = option(128, "width of a head's queries and keys that is not rotated")
    qk_rope: int = option(64, "width of a head's queries and keys that is rotated")
    v_dim: int = option(128, "width of a head's values")
    dense_layers: int = option(1, "number of layers before the first with experts", most=MAX_LAYERS, least=0)
    experts: int = option(160, "number of routed experts per layer")
    shared_experts: int = option(2, "number of experts that every token goes through", least=0)
    expert_ffn: int = option(1536, "width of each expert's feed-forward layer")
    top_k: int = option(6, "number of routed experts that each token is sent to")
    scores: str = choice(
        "softmax", "make weights of scores by softmax over all experts, or by sigmoid of each", "sigmoid"
    )
    dispatch: str = dispatch_choice()
    slots: int | None = slots_option()

    @property
    def depth(self) -> int:
        """Width of one head's queries and keys."""
        return self.qk_nope + self.qk_rope

    @property
    def routing(self) -> Routing:
        return Routing(
            seq=self.seq,
            hidden=self.hidden,
            inner=self.expert_ffn,
            experts=self.experts,
            top_k=self.top_k,
            shared=self.shared_experts,
            dispatch=self.dispatch,
            slots=self.slots,
            scores=self.scores,
        )

    def check(self) -> None:
        if self.qk_rope % 2:
            raise UsageError(f"{flag('qk_rope')} {self.qk_rope}: expected an even number, for rotary positions")
        if self.dense_layers > self.layers:
            raise UsageError(f"{flag('dense_layers')} {self.dense_layers} exceeds {flag('layers')} {self.layers}")
        self.routing.check()


def build_deepseek(g: GraphBuilder, sizes: DeepseekSizes) -> None:
    """Inputs input_ids and labels (batch, seq); output loss, or logits (batch, seq, vocab) for inference."""
    fused = sizes.attention == "fused"
    build_decoder(g, sizes, "Deepseek", _latent_attention, _feed_forward, fused=fused, rotary_depth=sizes.qk_rope)


def _latent_attention(g: GraphBuilder, x: str, core: Core, sizes: DeepseekSizes) -> str:
    """x (batch, seq, hidden) → the same; heads see (nope + rope) dimensions of each other's keys."""
    heads, hidden, depth, nope, rope = sizes.heads, sizes.hidden, sizes.depth, sizes.qk_nope, sizes.qk_rope
    assert core.turn is not None
    if sizes.q_lora:
        latent = nn.rms_norm(
            g, nn.linear(g, x, "q_a_proj", hidden, sizes.q_lora, bias=False), "q_a_layernorm", sizes.q_lora
        )
        q = nn.linear(g, latent, "q_b_proj", sizes.q_lora, heads * depth, bias=False)
    else:
        q = nn.linear(g, x, "q_proj", hidden, heads * depth, bias=False)
    still, turned = g.add_many("Split", 2, split_heads(g, q, heads, depth), g.constant([nope, rope]), axis=-1)
    q = g.add("Concat", still, rotated(g, turned, core.turn, rope), axis=-1)

    both = nn.linear(g, x, "kv_a_proj_with_mqa", hidden, sizes.kv_lora + rope, bias=False)
    latent, shared = g.add_many("Split", 2, both, g.constant([sizes.kv_lora, rope]), axis=-1)
    latent = nn.rms_norm(g, latent, "kv_a_layernorm", sizes.kv_lora)
    kv = nn.linear(g, latent, "kv_b_proj", sizes.kv_lora, heads * (nope + sizes.v_dim), bias=False)
    kv = split_heads(g, kv, heads, nope + sizes.v_dim)
    still, v = g.add_many("Split", 2, kv, g.constant([nope, sizes.v_dim]), axis=-1)
    shared = rotated(g, nn.unsqueeze(g, shared, 1), core.turn, rope)  # (batch, 1, seq, rope)
    k = g.add("Concat", still, g.add("Expand", shared, g.constant([1, heads, 1, 1])), axis=-1)

    width = heads * sizes.v_dim
    mixed = mix(g, q, k, v, Core(core.fused, core.mask), groups=1, depth=depth, width=width)
    return nn.linear(g, mixed, "o_proj", width, hidden, bias=False)


def _feed_forward(g: GraphBuilder, x: str, sizes: DeepseekSizes, layer: int) -> str:
    if layer < sizes.dense_layers:
        return swiglu(g, x, sizes.hidden, sizes.inner)
    with g.scope("mlp", "MoE"):
        return routed(g, x, sizes.routing)
