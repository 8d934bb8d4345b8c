"""Figures as people read them; exact ones stand beside them or in the plan."""

from __future__ import annotations

from planner.planning.document import RedistributionDocument, StepDocument

__all__ = ["MEMORY", "exact_bytes", "memory_text", "move_text", "step_text", "time_text"]

# Kinds of memory → what people call them.
MEMORY = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "weight_copies": "gathered weights",
    "activations": "activations",
}


def time_text(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns" if seconds else "0 s"


def memory_text(size: float) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size:.0f} B"


def exact_bytes(size: int) -> str:
    return f"{size:,} bytes"


def step_text(step: StepDocument) -> str:
    """`all-gather over x.y`."""
    over = f" over {'.'.join(step.axes)}" if step.axes else ""
    return f"{step.kind.replace('_', '-')}{over}"


def move_text(move: RedistributionDocument) -> str:
    """Collectives in order; those that only relabel or slice what is there are last named."""
    return ", ".join(step_text(s) for s in move.steps) or "nothing moved"
