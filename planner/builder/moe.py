"""Mixture of experts: Llama's decoder with a routed feed-forward layer."""

from __future__ import annotations

from dataclasses import dataclass

from planner.builder.decoder import build_decoder
from planner.builder.experts import Routing, dispatch_choice, routed, slots_option
from planner.builder.graph import GraphBuilder
from planner.builder.llama import LlamaSizes, attention
from planner.builder.sizes import option

__all__ = ["MoeSizes", "build_moe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSizes(LlamaSizes):
    """Mixtral 8x7B where no option says otherwise: 46,702,792,704 parameters."""

    kv_heads: int | None = option(8, "number of heads of keys and values")
    ffn: int | None = option(14336, "width of each expert's feed-forward layer")
    experts: int = option(8, "number of experts per layer")
    top_k: int = option(2, "number of experts that each token is sent to")
    shared_experts: int = option(0, "number of experts that every token goes through, as wide as the others", least=0)
    dispatch: str = dispatch_choice()
    slots: int | None = slots_option()

    @property
    def routing(self) -> Routing:
        return Routing(
            seq=self.seq,
            hidden=self.hidden,
            inner=self.inner,
            experts=self.experts,
            top_k=self.top_k,
            shared=self.shared_experts,
            dispatch=self.dispatch,
            slots=self.slots,
        )

    @property
    def capacity(self) -> int:
        """Tokens of one sample that an expert takes."""
        return self.routing.capacity

    def check(self) -> None:
        LlamaSizes.check(self)
        self.routing.check()


def build_moe(g: GraphBuilder, sizes: MoeSizes) -> None:
    """Inputs input_ids and labels (batch, seq); output loss, or logits (batch, seq, vocab) for inference."""
    build_decoder(
        g,
        sizes,
        "MixtureOfExperts",
        attention,
        _feed_forward,
        fused=sizes.attention == "fused",
        rotary_depth=sizes.depth,
        tied=sizes.tied,
    )


def _feed_forward(g: GraphBuilder, x: str, sizes: MoeSizes, layer: int) -> str:
    with g.scope("block_sparse_moe", "SparseMoE"):
        return routed(g, x, sizes.routing)
