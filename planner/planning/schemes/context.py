"""Context parallelism: inputs arrive divided along their second dimension, the sequence, and stay so.

Weights are whole.  Attention that is one operator passes keys and values round, beside computing (Liu et al. 2023;
Megatron's `--cp-comm-type p2p`); other products of two activations gather one of them.
"""

from __future__ import annotations

from typing import Final

from planner.planning.schemes.arrival import Arrival, KindOfAxis, Ways

__all__ = ["CONTEXT"]


def _admitted(at: Arrival, ways: Ways) -> Ways:
    following = at.following(ways)
    if at.rule.kind != "attention":
        return following
    return [w for w in following if any(c.kind == "permute" for c in w.inner)] or following


CONTEXT: Final = KindOfAxis(
    "cp", 1, _admitted, False, "no input of the model has a second dimension (the sequence) that {} divides"
)
