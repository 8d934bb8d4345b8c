"""Differences in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["bytes_text", "listed", "seconds_text", "why"]

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


def seconds_text(seconds: float) -> str:
    """Four digits and a unit."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns" if seconds else "0 s"


def bytes_text(size: float) -> str:
    for unit, text in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(size) >= unit:
            return f"{size / unit:.2f} {text}"
    return f"{size:.0f} B"


def listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def why(difference_s: float, parts_s: Mapping[str, float]) -> str:
    """One sentence on what an alternative costs more, and what it saves."""
    size = max((abs(s) for s in parts_s.values()), default=0.0)
    more = sorted((p for p in parts_s if parts_s[p] > NEGLIGIBLE * size), key=lambda p: -parts_s[p])
    less = sorted((p for p in parts_s if parts_s[p] < -NEGLIGIBLE * size), key=lambda p: parts_s[p])
    gains = [f"{seconds_text(parts_s[p])} more of {PARTS.get(p, p)}" for p in more[:MOST_PARTS]]
    losses = [f"{seconds_text(-parts_s[p])} less of {PARTS.get(p, p)}" for p in less[:MOST_PARTS]]
    if difference_s == 0:
        told = "costs the same" if not gains else f"costs the same: {listed(gains)}, made up by {listed(losses)}"
    elif difference_s > 0:
        told = f"loses by {listed(gains)}" + (f", against {listed(losses)}" if losses else "")
    else:
        told = f"is better by {listed(losses)}" + (f", against {listed(gains)}" if gains else "")
    return told
