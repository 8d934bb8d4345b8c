"""The language models of Alpa's tests: tied embedding, masked-language BERT, mixtures of experts.

As alpa/model/bert_model.py and moe.py define them (alpa-projects/alpa at b8078a9): positions are as many as a sequence
has, BERT has two token types, the mixture none, an expert takes 2 S / E tokens of every group of S.  Left out: dropout
and the mask of padded positions, which cost nothing here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.builder.graph import INT64, GraphBuilder
from planner.builder.layers import embedding, layer_norm, linear, project
from planner.frontends import import_bytes
from planner.ir import Graph
from tests.unit.alpa_graphs import attention, feed_forward, squared_error

__all__ = ["masked_language_bert", "mixture_layer", "mixture_model", "tied_embedding"]


def tied_embedding(batch: int, seq: int, vocab: int, hidden: int) -> Graph:
    """Rows of a table, multiplied by the same table; the sum of all losses."""
    g = GraphBuilder("tied")
    x, table = embedding(g, g.input("ids", [batch, seq], INT64), "embed", vocab, hidden)
    return _cross_entropy(g, project(g, x, table), batch * seq, vocab, reduction="sum")


def masked_language_bert(layers: int, batch: int, seq: int, hidden: int, heads: int, vocab: int) -> Graph:
    g = GraphBuilder("bert_mlm")
    x, table = _embeddings(g, batch, seq, hidden, vocab, types=2)
    for i in range(layers):
        with g.scope(f"layer.{i}"):
            x = feed_forward(g, attention(g, x, batch, seq, hidden, heads), hidden)
    x = g.add("Gelu", linear(g, x, "transform", hidden, hidden), approximate="tanh")
    x = layer_norm(g, x, "transform_norm", hidden)
    return _head(g, x, table, batch * seq, vocab)


def mixture_layer(batch: int, seq: int, hidden: int, heads: int, group: int, experts: int) -> Graph:
    g = GraphBuilder("moe")
    x = g.input("hidden_states", [batch, seq, hidden])
    x = _mixture_layer(g, x, batch, seq, hidden, heads, group, experts)
    return squared_error(g, x, [batch, seq, hidden])


def mixture_model(
    layers: int, batch: int, seq: int, hidden: int, heads: int, vocab: int, group: int, experts: int
) -> Graph:
    """Layers with experts and plain ones in turn."""
    g = GraphBuilder("moe_lm")
    x, table = _embeddings(g, batch, seq, hidden, vocab, types=0)
    for i in range(layers):
        with g.scope(f"layer.{i}"):
            if i % 2:
                x = feed_forward(g, attention(g, x, batch, seq, hidden, heads), hidden)
            else:
                x = _mixture_layer(g, x, batch, seq, hidden, heads, group, experts)
    return _head(g, x, table, batch * seq, vocab)


def _embeddings(g: GraphBuilder, batch: int, seq: int, hidden: int, vocab: int, *, types: int) -> tuple[str, str]:
    """The normalised sum of three rows, and the table of words."""
    x, table = embedding(g, g.input("ids", [batch, seq], INT64), "words", vocab, hidden)
    x = g.add("Add", x, embedding(g, g.input("positions", [batch, seq], INT64), "places", seq, hidden)[0])
    if types:
        x = g.add("Add", x, embedding(g, g.input("types", [batch, seq], INT64), "kinds", types, hidden)[0])
    return layer_norm(g, x, "embedding_norm", hidden), table


def _head(g: GraphBuilder, x: str, table: str, tokens: int, vocab: int) -> Graph:
    logits = g.add("Add", project(g, x, table), g.parameter("decoder.bias", vocab))
    return _cross_entropy(g, logits, tokens, vocab, reduction="mean", ignore_index=0)


def _cross_entropy(g: GraphBuilder, logits: str, tokens: int, vocab: int, **options: object) -> Graph:
    rows = g.add("Reshape", logits, g.constant([tokens, vocab]))
    loss = g.add("SoftmaxCrossEntropyLoss", rows, g.input("labels", [tokens], INT64), **options)
    g.output(loss, "loss", [])
    return replace(import_bytes(g.model().SerializeToString(), name="alpa"), loss="loss")


def _mixture_layer(
    g: GraphBuilder, x: str, batch: int, seq: int, hidden: int, heads: int, group: int, experts: int
) -> str:
    attended = attention(g, x, batch, seq, hidden, heads)
    grouped = g.add("Reshape", attended, g.constant([-1, group, hidden]))
    mixed = g.add("Reshape", _mixture(g, grouped, hidden, group, experts), g.constant([batch, seq, hidden]))
    return layer_norm(g, g.add("Add", mixed, attended), "norm_2", hidden)


def _mixture(g: GraphBuilder, x: str, hidden: int, group: int, experts: int) -> str:
    """Every token goes to its two best experts, as far as they have room (GShard)."""
    gates = g.add("Softmax", g.add("Einsum", x, g.parameter("wg", hidden, experts), equation="GSM,ME->GSE"), axis=-1)
    combine, dispatch = _two_best(g, gates, group, experts)
    chosen = g.add("Einsum", dispatch, x, equation="GSEC,GSM->EGCM")
    inner = g.add("Einsum", chosen, g.parameter("wi", experts, hidden, 4 * hidden), equation="EGCM,EMH->EGCH")
    outer = g.parameter("wo", experts, 4 * hidden, hidden)
    found = g.add("Einsum", g.add("Relu", inner), outer, equation="EGCH,EHM->GECM")
    return g.add("Einsum", combine, found, equation="GSEC,GECM->GSM")


def _two_best(g: GraphBuilder, gates: str, group: int, experts: int) -> tuple[str, str]:
    """Weights (group, token, expert, place) and where they are not zero."""
    capacity = 2 * group // experts
    last, ones = g.constant([-1]), g.constant([0, 1], np.float32)

    def summed(x: str) -> str:
        return g.add("ReduceSum", x, last, keepdims=0)

    def marked(index: str, depth: int) -> str:
        return g.add("OneHot", index, g.constant([depth]), ones, axis=-1)

    def best(x: str) -> str:
        return marked(g.add("ArgMax", x, axis=-1, keepdims=0), experts)

    def placed(mask: str, before: str) -> tuple[str, str]:
        """The places of tokens at their expert, and the mask of those that find one."""
        at = g.add("Sub", g.add("CumSum", mask, g.constant(1)), mask)
        at = g.add("Add", at, before) if before else at
        room = g.add("Cast", g.add("Less", at, g.constant(capacity, np.float32)), to=1)
        kept = g.add("Mul", mask, room)
        return g.add("Cast", summed(g.add("Mul", at, kept)), to=7), kept

    first = best(gates)
    second = best(g.add("Mul", gates, g.add("Sub", g.constant(1, np.float32), first)))
    place_1, kept_1 = placed(first, "")
    place_2, kept_2 = placed(second, g.add("ReduceSum", kept_1, g.constant([1]), keepdims=1))
    weight_1, weight_2 = (summed(g.add("Mul", gates, kept)) for kept in (kept_1, kept_2))
    total = g.add("Add", weight_1, weight_2)
    zero = g.constant(0, np.float32)
    total = g.add("Where", g.add("Greater", total, zero), total, g.constant(1, np.float32))
    parts = []
    for weight, kept, place in ((weight_1, kept_1, place_1), (weight_2, kept_2, place_2)):
        share = g.add("Mul", g.add("Unsqueeze", g.add("Div", weight, total), last), kept)
        parts.append(g.add("Einsum", share, marked(place, capacity), equation="GSE,GSC->GSEC"))
    combine = g.add("Add", *parts)
    return combine, g.add("Cast", g.add("Greater", combine, zero), to=1)
