"""Differences in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.report.words import time_text

__all__ = ["why"]

PARTS = {
    "compute_forward": "forward work",
    "compute_backward": "backward work",
    "inside_operators": "collectives inside operators",
    "activations": "activations moved",
    "activation_gradients": "their gradients moved",
    "parameters": "parameters gathered",
    "parameter_gradients": "gradients synchronised",
    "optimizer": "optimizer",
}
MOST_PARTS = 2
NEGLIGIBLE = 0.02  # of the largest difference of a part


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def why(difference_s: float, parts_s: Mapping[str, float]) -> str:
    """One sentence on what an alternative costs more, and what it saves."""
    size = max((abs(s) for s in parts_s.values()), default=0.0)
    more = sorted((p for p in parts_s if parts_s[p] > NEGLIGIBLE * size), key=lambda p: -parts_s[p])
    less = sorted((p for p in parts_s if parts_s[p] < -NEGLIGIBLE * size), key=lambda p: parts_s[p])
    gains = [f"{time_text(parts_s[p])} more of {PARTS.get(p, p)}" for p in more[:MOST_PARTS]]
    losses = [f"{time_text(-parts_s[p])} less of {PARTS.get(p, p)}" for p in less[:MOST_PARTS]]
    if difference_s == 0:
        told = "costs the same" if not gains else f"costs the same: {_listed(gains)}, made up by {_listed(losses)}"
    elif difference_s > 0:
        told = f"loses by {_listed(gains)}" + (f", against {_listed(losses)}" if losses else "")
    else:
        told = f"is better by {_listed(losses)}" + (f", against {_listed(gains)}" if gains else "")
    return told
