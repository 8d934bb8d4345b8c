"""A mixture of experts in place of a feed-forward layer: routing, dispatch, the experts, and their outputs combined.

Every expert takes a fixed number of tokens of a sample, its capacity, so that shapes are known and the samples of a
batch are routed apart.  Tokens then lie as (expert, batch, slot, hidden): split over the batch on one side and over
experts on the other, they change owners by an all-to-all, the one of expert parallelism.  First choices are served
before second ones, each in the order of the sequence; both ways of dispatch agree on who is left out:

- capacity, as in GShard (Lepikhin et al. 2020): a 0/1 tensor says which token takes which slot, and two einsums carry
  tokens there and back.  Their work grows with the square of the sequence.
- sorted, as in MegaBlocks (Gale et al. 2022) and Megatron-LM: choices are sorted by expert, and tokens are gathered in
  that order and gathered back.  An even load fills every slot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.builder import layers as nn
from planner.builder.decoder import swiglu
from planner.builder.graph import INT64, GraphBuilder
from planner.builder.sizes import choice, flag, option
from planner.errors import UsageError

__all__ = ["Routing", "dispatch_choice", "routed", "slots_option"]

CAPACITY_FACTOR = 1.25  # room above an even load (Switch Transformers, Fedus et al. 2021)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Sizes of a mixture.

    Attributes:
        seq, hidden: of the tokens (batch, seq, hidden).
        inner: width of one expert's feed-forward layer.
        experts, top_k: experts of a layer, and those that each token is sent to.
        shared: experts that every token goes through, run as one feed-forward layer.
        dispatch: `capacity` or `sorted`.
        slots: tokens of a sample that an expert takes; None: an even load, and room above it for `capacity`.
        scores: how scores of experts become weights, `softmax` over all experts or `sigmoid` of each.
    """

    seq: int
    hidden: int
    inner: int
    experts: int
    top_k: int
    shared: int = 0
    dispatch: str = "capacity"
    slots: int | None = None
    scores: str = "softmax"

    @property
    def capacity(self) -> int:
        """Tokens of one sample that an expert takes; what comes later skips the layer."""
        factor = CAPACITY_FACTOR if self.dispatch == "capacity" else 1.0
        even = math.ceil(factor * self.top_k * self.seq / self.experts)
        return min(self.seq, even if self.slots is None else self.slots)

    def check(self) -> None:
        """UsageError where a token is sent to more experts than there are."""
        if self.top_k > self.experts:
            raise UsageError(f"{flag('top_k')} {self.top_k} exceeds {flag('experts')} {self.experts}")


def dispatch_choice() -> Any:
    """The option `--dispatch`."""
    return choice(
        "capacity",
        "bring tokens to experts by products with 0/1 tensors, or by gathering them in their order",
        "sorted",
    )


def slots_option() -> Any:
    """The option `--slots`."""
    return option(
        None,
        "tokens of a sample that an expert takes; default: an even load, and a quarter above it with "
        "--dispatch capacity",
    )


def routed(g: GraphBuilder, x: str, r: Routing) -> str:
    """x (batch, seq, hidden) → the same, from its experts and those that are shared."""
    weights, chosen = _choices(g, x, r)
    if r.dispatch == "sorted":
        y = _by_order(g, x, weights, chosen, r)
    else:
        y = _by_products(g, x, weights, chosen, r)
    if r.shared:
        y = g.add("Add", y, swiglu(g, x, r.hidden, r.shared * r.inner, "shared_experts"))
    return y


def _choices(g: GraphBuilder, x: str, r: Routing) -> tuple[str, str]:
    """(how much each choice counts, the expert chosen), both (b, s, k)."""
    scores = nn.linear(g, x, "gate", r.hidden, r.experts, bias=False)
    scores = g.add("Sigmoid", scores) if r.scores == "sigmoid" else g.add("Softmax", scores, axis=-1)
    weights, chosen = g.add_many("TopK", 2, scores, g.constant([r.top_k]), axis=-1)
    if r.top_k > 1:  # one gate alone would become the constant 1 and teach the router nothing
        weights = g.add("Div", weights, g.add("ReduceSum", weights, g.constant([-1]), keepdims=1))
    return weights, chosen


def _by_products(g: GraphBuilder, x: str, weights: str, chosen: str, r: Routing) -> str:
    """Dimensions: batch b, sequence s, hidden h, expert e, slot c, feed-forward f."""
    dispatch, combine = _slot_tensors(g, weights, chosen, r)
    fed = g.add("Einsum", dispatch, x, equation="bsec,bsh->ebch")
    with g.scope("experts", "Experts"):
        shape = (r.experts, r.hidden, r.inner)
        gate = g.add("Einsum", fed, g.parameter("w1.weight", *shape), equation="ebch,ehf->ebcf")
        up = g.add("Einsum", fed, g.parameter("w3.weight", *shape), equation="ebch,ehf->ebcf")
        active = nn.gated(g, gate, up)
        down = g.parameter("w2.weight", r.experts, r.inner, r.hidden)
        out = g.add("Einsum", active, down, equation="ebcf,efh->ebch")
    return g.add("Einsum", combine, out, equation="bsec,ebch->bsh")


def _slot_tensors(g: GraphBuilder, weights: str, chosen: str, r: Routing) -> tuple[str, str]:
    """(which token takes which slot, the same times the gate), both (b, s, e, c)."""
    on_off = g.constant([0.0, 1.0], np.float32)
    expert = g.add("OneHot", chosen, g.constant(r.experts), on_off, axis=-1)  # b s k e
    in_order = g.add("Transpose", expert, perm=[0, 2, 1, 3])
    queue = g.add("Reshape", in_order, g.constant([0, -1, r.experts]))  # b (k s) e
    before = g.add("CumSum", queue, g.constant(1), exclusive=1)
    place = g.add("ReduceSum", g.add("Mul", before, queue), g.constant([-1]), keepdims=0)  # b (k s)
    # Places beyond the capacity are no valid index: OneHot gives them no slot, which drops the token.
    slot = g.add("OneHot", g.add("Cast", place, to=INT64), g.constant(r.capacity), on_off, axis=-1)
    slot = g.add("Reshape", slot, g.constant([0, r.top_k, -1, r.capacity]))  # b k s c
    dispatch = g.add("Einsum", expert, slot, equation="bske,bksc->bsec")
    gated = g.add("Mul", expert, nn.unsqueeze(g, weights, 3))
    return dispatch, g.add("Einsum", gated, slot, equation="bske,bksc->bsec")


def _by_order(g: GraphBuilder, x: str, weights: str, chosen: str, r: Routing) -> str:
    """Tokens gathered to (e, (b c), h), one batched product for each weight, and gathered back.

    Slots that no choice fills hold some other token, whose output nobody reads.
    """
    token, slot, taken = _order(g, chosen, r)
    fed = g.add("GatherND", x, token, batch_dims=1)  # b e c h
    fed = g.add("Reshape", g.add("Transpose", fed, perm=[1, 0, 2, 3]), g.constant([r.experts, -1, r.hidden]))
    with g.scope("experts", "Experts"):
        shape = (r.experts, r.hidden, r.inner)
        gate = g.add("MatMul", fed, g.parameter("w1.weight", *shape))
        up = g.add("MatMul", fed, g.parameter("w3.weight", *shape))
        out = g.add("MatMul", nn.gated(g, gate, up), g.parameter("w2.weight", r.experts, r.inner, r.hidden))
    out = g.add("Reshape", out, g.constant([r.experts, -1, r.capacity, r.hidden]))
    out = g.add("Reshape", g.add("Transpose", out, perm=[1, 0, 2, 3]), g.constant([0, -1, r.hidden]))  # b (e c) h
    outputs = g.add("GatherND", out, slot, batch_dims=1)  # b s k h
    counted = g.add("Where", taken, weights, g.constant(0.0, np.float32))
    return g.add("Einsum", counted, outputs, equation="bsk,bskh->bsh")


def _order(g: GraphBuilder, chosen: str, r: Routing) -> tuple[str, str, str]:
    """(token in every slot (b, e, c, 1), slot of every choice (b, s, k, 1), whether it has one (b, s, k)).

    A stable sort by expert: TopK of all, which serves equal values in their order.
    """
    count = r.seq * r.top_k
    everything, one = g.constant([count]), g.constant([1])
    queue = g.add("Reshape", g.add("Transpose", chosen, perm=[0, 2, 1]), g.constant([0, -1]))  # b (k s)
    _, order = g.add_many("TopK", 2, queue, everything, axis=-1, largest=0)
    _, rank = g.add_many("TopK", 2, order, everything, axis=-1, largest=0)  # the inverse permutation
    # Where each expert's part of the order begins, (b, e): a histogram, summed up.
    nothing = g.add("Mul", queue, g.constant(0))
    zeros = g.add("Expand", g.add("ReduceSum", nothing, one, keepdims=1), g.constant([1, r.experts]))
    ones = g.add("Add", nothing, g.constant(1))
    load = g.add("ScatterElements", zeros, queue, ones, axis=1, reduction="add")
    begin = g.add("CumSum", load, g.constant(1), exclusive=1)

    place = g.add("Sub", rank, g.add("GatherElements", begin, queue, axis=1))
    first = g.add("Mul", queue, g.constant(r.capacity))
    slot = g.add("Add", first, g.add("Min", place, g.constant(r.capacity - 1)))
    taken = g.add("Less", place, g.constant(r.capacity))

    slots = g.add("Range", g.constant(0), g.constant(r.capacity), g.constant(1))
    position = g.add("Min", g.add("Add", nn.unsqueeze(g, begin, 2), slots), g.constant(count - 1))  # b e c
    token = g.add("GatherElements", order, g.add("Reshape", position, g.constant([0, -1])), axis=1)
    token = g.add("Mod", token, g.constant(r.seq))
    token = g.add("Reshape", token, g.constant([0, r.experts, r.capacity, 1]))
    return token, nn.unsqueeze(g, _by_token(g, slot, r), 3), _by_token(g, taken, r)


def _by_token(g: GraphBuilder, queue: str, r: Routing) -> str:
    """(b, (k s)) → (b, s, k)."""
    return g.add("Transpose", g.add("Reshape", queue, g.constant([0, r.top_k, -1])), perm=[0, 2, 1])
