"""GPT-2, Llama, BERT, ViT and a mixture of experts, decomposed as exporters write them."""

from __future__ import annotations

import numpy as np
import onnx

from planner.builder.graph import GraphBuilder
from planner.builder.sizes import Sizes

__all__ = ["bert", "gpt", "llama", "moe", "vit"]

MASKED = -1e9


def _heads(g: GraphBuilder, x: str, s: Sizes, heads: int, length: int, *, transposed: bool = False) -> str:
    """[batch, length, heads * head] → [batch, heads, length, head], or with the last two swapped."""
    split = g.reshape(x, s.batch, length, heads, s.head)
    return g.node("Transpose", split, perm=[0, 2, 3, 1] if transposed else [0, 2, 1, 3])


def _attend(g: GraphBuilder, q: str, k: str, v: str, s: Sizes, length: int, mask: str | None) -> str:
    """softmax(q k / sqrt(head) + mask) v with heads merged again; k is [batch, heads, head, length]."""
    scores = g.node("Mul", g.node("MatMul", q, k), g.constant(s.head**-0.5))
    if mask is not None:
        scores = g.node("Add", scores, mask)
    mixed = g.node("MatMul", g.node("Softmax", scores, axis=-1), v)
    return g.reshape(g.node("Transpose", mixed, perm=[0, 2, 1, 3]), s.batch, length, s.hidden)


def _causal(g: GraphBuilder, s: Sizes) -> str:
    """[1, 1, seq, seq]: zero where a position may look, very negative elsewhere; computed, as it may be large."""
    positions = g.node(
        "Range", g.constant(0, integer=True), g.constant(s.seq, integer=True), g.constant(1, integer=True)
    )
    rows = g.node("Unsqueeze", positions, g.constant([0, 1, 3], integer=True))
    columns = g.node("Unsqueeze", positions, g.constant([0, 1, 2], integer=True))
    return g.node("Where", g.node("LessOrEqual", columns, rows), g.constant(0.0), g.constant(MASKED))


def _self_attention(g: GraphBuilder, x: str, s: Sizes, length: int, mask: str | None) -> str:
    with g.scope("attn"):
        q = _heads(g, g.linear(x, "q_proj", s.hidden, s.hidden), s, s.heads, length)
        k = _heads(g, g.linear(x, "k_proj", s.hidden, s.hidden), s, s.heads, length, transposed=True)
        v = _heads(g, g.linear(x, "v_proj", s.hidden, s.hidden), s, s.heads, length)
        return g.linear(_attend(g, q, k, v, s, length, mask), "c_proj", s.hidden, s.hidden)


def _mlp(g: GraphBuilder, x: str, s: Sizes) -> str:
    with g.scope("mlp"):
        wide = g.node("Gelu", g.linear(x, "c_fc", s.hidden, s.wide()), approximate="tanh")
        return g.linear(wide, "c_proj", s.wide(), s.hidden)


def _pre_norm_layer(g: GraphBuilder, x: str, s: Sizes, length: int, mask: str | None) -> str:
    x = g.node("Add", x, _self_attention(g, g.layer_norm(x, "ln_1", s.hidden), s, length, mask))
    return g.node("Add", x, _mlp(g, g.layer_norm(x, "ln_2", s.hidden), s))


def _tokens(g: GraphBuilder, s: Sizes) -> tuple[str, str]:
    """The input ids and the embedding table."""
    return g.input("input_ids", [s.batch, s.seq], integer=True), g.parameter("wte.weight", s.vocab, s.hidden)


def _language_head(g: GraphBuilder, x: str, table: str, s: Sizes) -> onnx.ModelProto:
    """Scores over the vocabulary with the embedding's own table, then the loss."""
    logits = g.node("MatMul", x, g.node("Transpose", table, perm=[1, 0]))
    if s.loss:
        labels = g.input("labels", [s.batch, s.seq], integer=True)
        g.cross_entropy(logits, labels, s.batch * s.seq, s.vocab)
    else:
        g.output(logits, [s.batch, s.seq, s.vocab])
    return g.model()


def gpt(s: Sizes) -> onnx.ModelProto:
    """GPT-2: learned positions, pre-norm layers, tied head."""
    g = GraphBuilder("gpt")
    with g.scope("transformer"):
        ids, table = _tokens(g, s)
        positions = g.parameter("wpe.weight", s.seq, s.hidden)
        x = g.node("Add", g.node("Gather", table, ids), positions)
        mask = _causal(g, s)
        for i in range(s.layers):
            with g.scope("h", i):
                x = _pre_norm_layer(g, x, s, s.seq, mask)
        x = g.layer_norm(x, "ln_f", s.hidden)
    return _language_head(g, x, table, s)


def bert(s: Sizes) -> onnx.ModelProto:
    """BERT with a masked-language head: post-norm layers, no mask."""
    g = GraphBuilder("bert")
    with g.scope("bert"):
        ids, table = _tokens(g, s)
        x = g.node("Add", g.node("Gather", table, ids), g.parameter("wpe.weight", s.seq, s.hidden))
        x = g.layer_norm(x, "embeddings.LayerNorm", s.hidden)
        for i in range(s.layers):
            with g.scope("layer", i):
                x = g.layer_norm(g.node("Add", x, _self_attention(g, x, s, s.seq, None)), "ln_1", s.hidden)
                x = g.layer_norm(g.node("Add", x, _mlp(g, x, s)), "ln_2", s.hidden)
    return _language_head(g, x, table, s)


def vit(s: Sizes) -> onnx.ModelProto:
    """ViT on patches, averaged instead of a class token."""
    g = GraphBuilder("vit")
    side = s.image // s.patch
    length = side * side
    pixels = g.input("pixel_values", [s.batch, 3, s.image, s.image])
    with g.scope("vit"):
        weight = g.parameter("patch.weight", s.hidden, 3, s.patch, s.patch)
        x = g.node("Conv", pixels, weight, g.parameter("patch.bias", s.hidden), strides=[s.patch, s.patch])
        x = g.node("Transpose", g.reshape(x, s.batch, s.hidden, length), perm=[0, 2, 1])
        x = g.node("Add", x, g.parameter("position", length, s.hidden))
        for i in range(s.layers):
            with g.scope("layer", i):
                x = _pre_norm_layer(g, x, s, length, None)
        x = g.layer_norm(x, "ln_f", s.hidden)
        x = g.node("ReduceMean", x, g.constant([1], integer=True), keepdims=0)
        logits = g.linear(x, "classifier", s.hidden, s.classes)
    if s.loss:
        g.cross_entropy(logits, g.input("labels", [s.batch], integer=True), s.batch, s.classes)
    else:
        g.output(logits, [s.batch, s.classes])
    return g.model()


def _rotary(g: GraphBuilder, s: Sizes) -> tuple[str, str]:
    """Cosines and sines, [1, seq, 1, head / 2]."""
    positions = g.node("Range", g.constant(0.0), g.constant(float(s.seq)), g.constant(1.0))
    frequencies = g.constant((10000.0 ** -(np.arange(0, s.head, 2) / s.head)).reshape(1, 1, 1, -1))
    angles = g.node("Mul", g.node("Unsqueeze", positions, g.constant([0, 2, 3], integer=True)), frequencies)
    return g.node("Cos", angles), g.node("Sin", angles)


def _rotate(g: GraphBuilder, x: str, cos: str, sin: str) -> str:
    """Rotates the halves of the last dimension into each other."""
    a, b = g.node("Split", x, results=2, axis=-1, num_outputs=2)
    first = g.node("Sub", g.node("Mul", a, cos), g.node("Mul", b, sin))
    second = g.node("Add", g.node("Mul", b, cos), g.node("Mul", a, sin))
    return g.node("Concat", first, second, axis=-1)


def _grouped_attention(g: GraphBuilder, x: str, s: Sizes, mask: str, cos: str, sin: str) -> str:
    """Llama's: rotary positions, each head of keys and values shared by heads / groups queries."""
    share = s.heads // s.groups
    with g.scope("self_attn"):
        q, k, v = (
            g.reshape(g.linear(x, name, s.hidden, n * s.head, bias=False), s.batch, s.seq, n, s.head)
            for name, n in (("q_proj", s.heads), ("k_proj", s.groups), ("v_proj", s.groups))
        )
        q, k = _rotate(g, q, cos, sin), _rotate(g, k, cos, sin)
        q = g.node("Transpose", g.reshape(q, s.batch, s.seq, s.groups, share, s.head), perm=[0, 2, 3, 1, 4])
        k = g.node("Unsqueeze", g.node("Transpose", k, perm=[0, 2, 3, 1]), g.constant([2], integer=True))
        v = g.node("Unsqueeze", g.node("Transpose", v, perm=[0, 2, 1, 3]), g.constant([2], integer=True))
        scores = g.node("Add", g.node("Mul", g.node("MatMul", q, k), g.constant(s.head**-0.5)), mask)
        mixed = g.node("MatMul", g.node("Softmax", scores, axis=-1), v)
        merged = g.reshape(g.node("Transpose", mixed, perm=[0, 3, 1, 2, 4]), s.batch, s.seq, s.hidden)
        return g.linear(merged, "o_proj", s.hidden, s.hidden, bias=False)


def _gated(g: GraphBuilder, x: str, s: Sizes) -> str:
    """SwiGLU."""
    wide = s.wide(8 / 3, 256 if s.hidden >= 256 else 8)
    with g.scope("mlp"):
        gate = g.linear(x, "gate_proj", s.hidden, wide, bias=False)
        silu = g.node("Mul", gate, g.node("Sigmoid", gate))
        both = g.node("Mul", silu, g.linear(x, "up_proj", s.hidden, wide, bias=False))
        return g.linear(both, "down_proj", wide, s.hidden, bias=False)


def _experts(g: GraphBuilder, x: str, s: Sizes) -> str:
    """Gated sum over all experts: the router keeps the top k of its softmax, and experts are one Einsum each way."""
    wide = s.wide()
    with g.scope("moe"):
        gates = g.node("Softmax", g.linear(x, "router", s.hidden, s.experts, bias=False), axis=-1)
        best, _ = g.node("TopK", gates, g.constant([s.top_k], integer=True), results=2, axis=-1)
        least = g.node("ReduceMin", best, g.constant([-1], integer=True), keepdims=1)
        kept = g.node("Where", g.node("GreaterOrEqual", gates, least), gates, g.constant(0.0))
        inner = g.node("Einsum", x, g.parameter("up.weight", s.experts, s.hidden, wide), equation="bsh,ehf->ebsf")
        inner = g.node("Gelu", inner, approximate="tanh")
        weighted = g.node("Einsum", inner, kept, equation="ebsf,bse->ebsf")
        return g.node(
            "Einsum", weighted, g.parameter("down.weight", s.experts, wide, s.hidden), equation="ebsf,efh->bsh"
        )


def _llama_like(name: str, s: Sizes, *, experts: bool) -> onnx.ModelProto:
    g = GraphBuilder(name)
    with g.scope("model"):
        ids, table = _tokens(g, s)
        x = g.node("Gather", table, ids)
        mask = g.node("Unsqueeze", _causal(g, s), g.constant([0], integer=True))
        cos, sin = _rotary(g, s)
        for i in range(s.layers):
            with g.scope("layers", i):
                attended = _grouped_attention(g, g.rms_norm(x, "input_layernorm", s.hidden), s, mask, cos, sin)
                x = g.node("Add", x, attended)
                inner = g.rms_norm(x, "post_attention_layernorm", s.hidden)
                x = g.node("Add", x, _experts(g, inner, s) if experts else _gated(g, inner, s))
        x = g.rms_norm(x, "norm", s.hidden)
    return _language_head(g, x, table, s)


def llama(s: Sizes) -> onnx.ModelProto:
    """Llama: RMS norms, rotary positions, grouped queries, SwiGLU."""
    return _llama_like("llama", s, experts=False)


def moe(s: Sizes) -> onnx.ModelProto:
    """Llama's attention with experts in place of the feed-forward layer."""
    return _llama_like("moe", s, experts=True)
