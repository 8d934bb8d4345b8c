"""Mixture of experts: Llama's decoder with a routed feed-forward layer, dispatched by einsum.

The formulation of GShard (Lepikhin et al. 2020): every expert takes a fixed number of tokens per sample, its capacity;
a 0/1 tensor says which token takes which slot of which expert, and two einsums carry tokens there and back.  Split over
batch on one side and over experts on the other, those einsums are the all-to-all of expert parallelism.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.builder import layers as nn
from planner.builder.graph import INT64, GraphBuilder
from planner.builder.llama import LlamaSizes, build_decoder
from planner.builder.sizes import flag, option
from planner.errors import UsageError

__all__ = ["MoeSizes", "build_moe"]

CAPACITY_FACTOR = 1.25  # room above an even load (Switch Transformers, Fedus et al. 2021)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSizes(LlamaSizes):
    """Mixtral 8x7B unless told otherwise: 46,702,792,704 parameters."""

    kv_heads: int | None = option(8, "heads of keys and values")
    ffn: int | None = option(14336, "width of each expert's feed-forward layer")
    experts: int = option(8, "experts per layer")
    top_k: int = option(2, "experts that each token is sent to")

    @property
    def capacity(self) -> int:
        """Tokens of one sample that an expert takes; what comes later skips the layer."""
        return min(self.seq, math.ceil(CAPACITY_FACTOR * self.top_k * self.seq / self.experts))

    def check(self) -> None:
        LlamaSizes.check(self)
        if self.top_k > self.experts:
            raise UsageError(f"{flag('top_k')} {self.top_k} exceeds {flag('experts')} {self.experts}")


def build_moe(g: GraphBuilder, sizes: MoeSizes) -> None:
    """Inputs input_ids and labels (batch, seq); output loss, or logits (batch, seq, vocab) for inference."""
    build_decoder(g, sizes, "MixtureOfExperts", _routed)


def _routed(g: GraphBuilder, x: str, sizes: MoeSizes) -> str:
    """Dimensions: batch b, sequence s, hidden h, expert e, slot c, feed-forward f."""
    with g.scope("block_sparse_moe", "SparseMoE"):
        dispatch, combine = _route(g, x, sizes)
        fed = g.add("Einsum", dispatch, x, equation="bsec,bsh->ebch")
        with g.scope("experts", "Experts"):
            shape = (sizes.experts, sizes.hidden, sizes.inner)
            gate = g.add("Einsum", fed, g.parameter("w1.weight", *shape), equation="ebch,ehf->ebcf")
            up = g.add("Einsum", fed, g.parameter("w3.weight", *shape), equation="ebch,ehf->ebcf")
            active = g.add("Mul", g.add("Mul", gate, g.add("Sigmoid", gate)), up)
            down = g.parameter("w2.weight", sizes.experts, sizes.inner, sizes.hidden)
            out = g.add("Einsum", active, down, equation="ebcf,efh->ebch")
        return g.add("Einsum", combine, out, equation="bsec,ebch->bsh")


def _route(g: GraphBuilder, x: str, sizes: MoeSizes) -> tuple[str, str]:
    """(which token takes which slot, the same times the gate), both (b, s, e, c).

    First choices are served before second ones, each in the order of the sequence.
    """
    scores = nn.linear(g, x, "gate", sizes.hidden, sizes.experts, bias=False)
    weights, chosen = g.add_many("TopK", 2, g.add("Softmax", scores, axis=-1), g.constant([sizes.top_k]), axis=-1)
    if sizes.top_k > 1:  # one gate alone would become the constant 1 and teach the router nothing
        weights = g.add("Div", weights, g.add("ReduceSum", weights, g.constant([-1]), keepdims=1))
    on_off = g.constant([0.0, 1.0], np.float32)
    expert = g.add("OneHot", chosen, g.constant(sizes.experts), on_off, axis=-1)  # b s k e
    in_order = g.add("Transpose", expert, perm=[0, 2, 1, 3])
    queue = g.add("Reshape", in_order, g.constant([0, -1, sizes.experts]))  # b (k s) e
    before = g.add("CumSum", queue, g.constant(1), exclusive=1)
    place = g.add("ReduceSum", g.add("Mul", before, queue), g.constant([-1]), keepdims=0)  # b (k s)
    # Places beyond the capacity are no valid index: OneHot gives them no slot, which drops the token.
    slot = g.add("OneHot", g.add("Cast", place, to=INT64), g.constant(sizes.capacity), on_off, axis=-1)
    slot = g.add("Reshape", slot, g.constant([0, sizes.top_k, -1, sizes.capacity]))  # b k s c
    dispatch = g.add("Einsum", expert, slot, equation="bske,bksc->bsec")
    gated = g.add("Mul", expert, nn.unsqueeze(g, weights, 3))
    return dispatch, g.add("Einsum", gated, slot, equation="bske,bksc->bsec")
