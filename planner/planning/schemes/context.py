"""Context parallelism: inputs arrive divided along their second dimension, the sequence, and stay so.

Weights are whole.  Attention that is one operator passes keys and values round, beside computing (Liu et al. 2023;
Megatron's `--cp-comm-type p2p`), or gathers them before it computes (Llama Team 2024; its `allgather`).  Other products
of two activations gather one of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from planner.planning.schemes.arrival import Arrival, KindOfAxis, Ways
from planner.planning.schemes.ways import Way

__all__ = ["BY_GATHER", "BY_RING"]


def _by_ring(at: Arrival, ways: Ways) -> Ways:
    following = at.following(ways)
    return [w for w in following if at.rule.cost.kind != "attention" or _passes_round(w)] or following


def _by_gather(at: Arrival, ways: Ways) -> Ways:
    following = at.following(ways)
    return [w for w in following if at.rule.cost.kind != "attention" or not _passes_round(w)] or following


def _passes_round(way: Way) -> bool:
    return any(c.kind == "permute" for c in way.inner)


BY_RING: Final = KindOfAxis(
    "cp", 1, _by_ring, False, "no input of the model has a second dimension (the sequence) that {} divides"
)
BY_GATHER: Final = replace(BY_RING, rule=_by_gather)
