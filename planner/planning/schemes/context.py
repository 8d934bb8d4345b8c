"""Context parallelism: inputs arrive divided along their second dimension, the sequence, and stay so.

Weights are whole.  Attention that is one operator passes keys and values round, beside computing (Liu et al. 2023;
Megatron's `--cp-comm-type p2p`), or gathers them before it computes (Llama Team 2024; its `allgather`).  Other products
of two activations gather one of them.

Where positions are summed over, as tokens are into the slots of experts (Lepikhin et al. 2020), a product with weights
divides what else its activations have, the slots: ranks would repeat it otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from planner.planning.schemes.arrival import Arrival, KindOfAxis, Ways
from planner.planning.schemes.ways import Way, divided

__all__ = ["BY_GATHER", "BY_RING"]


def _by_ring(at: Arrival, ways: Ways) -> Ways:
    following = _following(at, ways)
    return [w for w in following if at.rule.cost.kind != "attention" or _passes_round(w)] or following


def _by_gather(at: Arrival, ways: Ways) -> Ways:
    following = _following(at, ways)
    return [w for w in following if at.rule.cost.kind != "attention" or not _passes_round(w)] or following


def _following(at: Arrival, ways: Ways) -> Ways:
    if at.rule.cost.kind.product and at.matrices and not any(divided(at.operands[i]) for i in at.activations):
        shared = [w for w in ways if not w.divides(at.matrices) and _divides_slots(at, w)]
        if shared:
            return shared
    return at.following(ways)


def _divides_slots(at: Arrival, way: Way) -> bool:
    """Whether an activation is divided along the last dimension that no weight has; the first one is samples."""
    weights = {f for i in at.weights for d in at.rule.operands[i] or () for f in d}
    for i in at.activations:
        own = [n for n, d in enumerate(at.rule.operands[i] or ()) if weights.isdisjoint(d)]
        layout = way.operands[i]
        if own and own[-1] > 0 and layout is not None and layout.dims[own[-1]]:
            return True
    return False


def _passes_round(way: Way) -> bool:
    return any(c.kind == "permute" for c in way.inner)


BY_RING: Final = KindOfAxis(
    "cp", 1, _by_ring, False, "no input of the model has a second dimension (the sequence) that {} divides"
)
BY_GATHER: Final = replace(BY_RING, rule=_by_gather)
