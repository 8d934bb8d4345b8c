"""GPT-2 and GPT-3: learned positions, pre-norm blocks, GELU, output layer tied to the embedding."""

from __future__ import annotations

from dataclasses import dataclass

from planner.builder import layers as nn
from planner.builder.graph import INT64, GraphBuilder
from planner.builder.sizes import SequenceSizes, flag, option
from planner.errors import UsageError

__all__ = ["GptSizes", "build_gpt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GptSizes(SequenceSizes):
    """GPT-2 small unless told otherwise: 124,439,808 parameters."""

    context: int | None = option(None, "rows of the position table; default: --seq")

    @property
    def positions(self) -> int:
        return self.seq if self.context is None else self.context

    def check(self) -> None:
        SequenceSizes.check(self)
        if self.positions < self.seq:
            raise UsageError(
                f"{flag('context')} {self.positions} is shorter than {flag('seq')} {self.seq}; "
                "every token needs a row of the position table"
            )


def build_gpt(g: GraphBuilder, sizes: GptSizes) -> None:
    """Inputs input_ids and labels (batch, seq); output loss, or logits (batch, seq, vocab) for inference."""
    tokens = g.input("input_ids", [sizes.batch, sizes.seq], INT64)
    with g.scope("transformer", "GPT"):
        x, table = nn.embedding(g, tokens, "wte", sizes.vocab, sizes.hidden)
        x = g.add("Add", x, nn.position_embedding(g, "wpe", sizes.positions, sizes.seq, sizes.hidden))
        mask = nn.causal_mask(g, sizes.seq)
        for i in range(sizes.layers):
            with g.scope(f"h.{i}", "Block"):
                x = _block(g, x, mask, sizes)
        x = nn.layer_norm(g, x, "ln_f", sizes.hidden)
    with g.scope("lm_head", "Linear"):
        logits = nn.project(g, x, table)
    nn.language_model_loss(g, logits, sizes)


def _block(g: GraphBuilder, x: str, mask: str, sizes: GptSizes) -> str:
    normed = nn.layer_norm(g, x, "ln_1", sizes.hidden)
    with g.scope("attn", "Attention"):
        mixed = nn.self_attention(g, normed, "c_attn", "c_proj", heads=sizes.heads, depth=sizes.depth, mask=mask)
    x = g.add("Add", x, mixed)
    normed = nn.layer_norm(g, x, "ln_2", sizes.hidden)
    with g.scope("mlp", "MLP"):
        fed = nn.gelu_mlp(g, normed, "c_fc", "c_proj", sizes.hidden, sizes.inner, approximate="tanh")
    return g.add("Add", x, fed)
