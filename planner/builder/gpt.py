"""GPT-2, GPT-3 and their kin: pre-norm blocks with one product for queries, keys and values.

As they stand, sizes give GPT.  Options change one part each:

- Bloom: `--positions alibi --embedding-norm`
- MPT: `--positions alibi --no-bias`, or learned positions
- Nemotron: `--activation squared_relu --positions rotary --kv-heads 8 --no-bias --untied`
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.builder import layers as nn
from planner.builder.attention import Core, causal_mask, self_attention
from planner.builder.graph import INT64, GraphBuilder
from planner.builder.positions import alibi, position_embedding, rotary_tables
from planner.builder.sizes import DecoderSizes, choice, flag, option, position_rows, require_even_depth, switch
from planner.errors import UsageError

__all__ = ["GptSizes", "build_gpt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GptSizes(DecoderSizes):
    """GPT-2 small where no option says otherwise: 124,439,808 parameters."""

    context: int | None = option(None, "number of rows of the position table; default: --seq")
    activation: str = choice("gelu", "activation function between the feed-forward layers", "squared_relu", "swiglu")
    norm: str = choice("layer", "kind of norm: layer norm, or root mean square norm", "rms")
    positions: str = choice("learned", "how tokens know their place", "rotary", "alibi", "none")
    bias: bool = switch(True, "give linear layers and layer norms biases")
    embedding_norm: bool = switch(False, "normalise embeddings before the first block")
    untied: bool = switch(False, "give the output layer weights of its own, apart from the embedding's table")

    def check(self) -> None:
        DecoderSizes.check(self)
        if self.positions == "learned":
            position_rows(self.context, self.seq)
        elif self.context is not None:
            raise UsageError(
                f"{flag('context')} {self.context} with {flag('positions')} {self.positions}: there is no table of "
                f"positions; leave {flag('context')} out"
            )
        if self.positions == "rotary":
            require_even_depth(self)


def build_gpt(g: GraphBuilder, sizes: GptSizes) -> None:
    """Inputs input_ids and labels (batch, seq); output loss, or logits (batch, seq, vocab) for inference."""
    tokens = g.input("input_ids", [sizes.batch, sizes.seq], INT64)
    with g.scope("transformer", "GPT"):
        x, table = nn.embedding(g, tokens, "wte", sizes.vocab, sizes.hidden)
        if sizes.positions == "learned":
            rows = position_rows(sizes.context, sizes.seq)
            x = g.add("Add", x, position_embedding(g, "wpe", rows, sizes.seq, sizes.hidden))
        if sizes.embedding_norm:
            x = _norm(g, x, "wte_norm", sizes)
        core = _core(g, sizes)
        for i in range(sizes.layers):
            with g.scope(f"h.{i}", "Block"):
                x = _block(g, x, core, sizes)
        x = _norm(g, x, "ln_f", sizes)
    if sizes.untied:
        logits = nn.linear(g, x, "lm_head", sizes.hidden, sizes.vocab, bias=False)
    else:
        with g.scope("lm_head", "Linear"):
            logits = nn.project(g, x, table)
    nn.language_model_loss(g, logits, sizes)


def _core(g: GraphBuilder, sizes: GptSizes) -> Core:
    fused = sizes.attention == "fused"
    mask = None if fused else causal_mask(g, sizes.seq)
    turn = rotary_tables(g, sizes.seq, sizes.depth) if sizes.positions == "rotary" else None
    bias = _alibi(g, sizes, fused) if sizes.positions == "alibi" else None
    return Core(fused, mask, bias, turn)


def _alibi(g: GraphBuilder, sizes: GptSizes, fused: bool) -> str:
    keys, groups = sizes.key_heads, sizes.heads // sizes.key_heads
    if not fused:
        return alibi(g, sizes.seq, *([keys] if groups == 1 else [keys, groups]))
    # ONNX lets a mask have one row for all queries; ONNX Runtime refuses it, its reference is wrong about it.
    return g.add("Expand", alibi(g, sizes.seq, sizes.heads), g.constant([1, sizes.seq, 1]))


def _block(g: GraphBuilder, x: str, core: Core, sizes: GptSizes) -> str:
    normed = _norm(g, x, "ln_1", sizes)
    heads = {"heads": sizes.heads, "key_heads": sizes.key_heads, "depth": sizes.depth}
    with g.scope("attn", "Attention"):
        mixed = self_attention(g, normed, "c_attn", "c_proj", **heads, core=core, bias=sizes.bias)
    x = g.add("Add", x, mixed)
    normed = _norm(g, x, "ln_2", sizes)
    with g.scope("mlp", "MLP"):
        fed = _feed_forward(g, normed, sizes)
    return g.add("Add", x, fed)


def _norm(g: GraphBuilder, x: str, name: str, sizes: GptSizes) -> str:
    if sizes.norm == "rms":
        return nn.rms_norm(g, x, name, sizes.hidden)
    return nn.layer_norm(g, x, name, sizes.hidden, bias=sizes.bias)


def _feed_forward(g: GraphBuilder, x: str, sizes: GptSizes) -> str:
    width, inner, bias = sizes.hidden, sizes.inner, sizes.bias
    if sizes.activation == "swiglu":
        return nn.swiglu(g, x, ("c_gate", "c_fc", "c_proj"), width, inner, bias=bias)
    if sizes.activation == "squared_relu":
        return nn.squared_relu_mlp(g, x, "c_fc", "c_proj", width, inner, bias=bias)
    return nn.gelu_mlp(g, x, "c_fc", "c_proj", width, inner, approximate="tanh", bias=bias)
