"""BERT with its masked-language-model head: post-norm encoder, three embeddings, padding mask."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from planner.builder import layers as nn
from planner.builder.attention import attend, join_heads, split_heads
from planner.builder.graph import INT64, GraphBuilder
from planner.builder.positions import position_embedding
from planner.builder.sizes import SequenceSizes, option, position_rows

__all__ = ["BertSizes", "build_bert"]

EPSILON = 1e-12
SEGMENTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BertSizes(SequenceSizes):
    """BERT base where no option says otherwise: 109,514,298 parameters."""

    vocab: int = option(30522, "size of the vocabulary")
    seq: int = option(512, "number of tokens per sample")
    context: int | None = option(None, "number of rows of the position table; default: --seq")

    def check(self) -> None:
        SequenceSizes.check(self)
        position_rows(self.context, self.seq)


def build_bert(g: GraphBuilder, sizes: BertSizes) -> None:
    """Inputs input_ids, attention_mask, token_type_ids, labels (batch, seq); output loss, or logits for inference."""
    shape, width = [sizes.batch, sizes.seq], sizes.hidden
    tokens, visible, segments = (g.input(n, shape, INT64) for n in ("input_ids", "attention_mask", "token_type_ids"))
    with g.scope("bert", "Bert"):
        with g.scope("embeddings", "Embeddings"):
            x, table = nn.embedding(g, tokens, "word_embeddings", sizes.vocab, width)
            segment, _ = nn.embedding(g, segments, "token_type_embeddings", SEGMENTS, width)
            x = g.add("Add", x, segment)
            rows = position_rows(sizes.context, sizes.seq)
            x = g.add("Add", x, position_embedding(g, "position_embeddings", rows, sizes.seq, width))
            x = nn.layer_norm(g, x, "LayerNorm", width, EPSILON)
        # (batch, 1, 1, seq): padding is hidden from every head and every query.
        mask = g.add("Unsqueeze", g.add("Cast", visible, to=TensorProto.BOOL), g.constant([1, 2]))
        for i in range(sizes.layers):
            with g.scope(f"encoder.layer.{i}", "Layer"):
                x = _layer(g, x, mask, sizes)
    with g.scope("cls.predictions", "Head"):
        with g.scope("transform", "Transform"):
            x = g.add("Gelu", nn.linear(g, x, "dense", width, width))
            x = nn.layer_norm(g, x, "LayerNorm", width, EPSILON)
        logits = g.add("Add", nn.project(g, x, table), g.parameter("bias", sizes.vocab))
    nn.language_model_loss(g, logits, sizes)


def _layer(g: GraphBuilder, x: str, mask: str, sizes: BertSizes) -> str:
    width, heads, depth = sizes.hidden, sizes.heads, sizes.depth
    with g.scope("attention", "Attention"):
        with g.scope("self", "SelfAttention"):
            q, k, v = (
                split_heads(g, nn.linear(g, x, n, width, width), heads, depth) for n in ("query", "key", "value")
            )
            mixed = join_heads(g, attend(g, q, k, v, depth=depth, mask=mask), width)
        x = _add_and_norm(g, "output", mixed, x, width, width)
    with g.scope("intermediate", "Intermediate"):
        inner = g.add("Gelu", nn.linear(g, x, "dense", width, sizes.inner))
    return _add_and_norm(g, "output", inner, x, sizes.inner, width)


def _add_and_norm(g: GraphBuilder, name: str, x: str, residual: str, inputs: int, width: int) -> str:
    with g.scope(name, "Output"):
        return nn.layer_norm(
            g, g.add("Add", nn.linear(g, x, "dense", inputs, width), residual), "LayerNorm", width, EPSILON
        )
