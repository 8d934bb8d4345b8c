"""Figures and names as people read them; exact ones stand beside them or in the plan."""

from __future__ import annotations

from typing import Final

from planner.planning.document import RedistributionDocument, StepDocument
from planner.terminal import plain

__all__ = [
    "CLOCK_NAMES",
    "MEMORY_NAMES",
    "PART_NAMES",
    "STEP_NAMES",
    "gib_text",
    "memory_text",
    "move_text",
    "printable",
    "step_text",
    "time_text",
]

# Parts of the objective → what people call them.
PART_NAMES: Final = {
    "compute_forward": "forward",
    "compute_backward": "backward",
    "inside_operators": "inside operators",
    "activations": "activations moved",
    "activation_gradients": "their gradients",
    "parameters": "parameters gathered",
    "parameter_gradients": "gradients synchronised",
    "optimizer": "optimizer",
}
# Parts of the step.
STEP_NAMES: Final = {
    "compute": "computing",
    "collectives": "collectives not hidden",
    "host": "waiting for the host",
    "optimizer": "optimizer",
    "outside": "outside the model",
}
# Parts of the step of a known configuration.
CLOCK_NAMES: Final = {
    "compute": "computing",
    "recompute": "recomputation",
    "host": "waiting for the host",
    "tensor_collectives": "collectives of the passes",
    "offload": "copies to the host not hidden",
    "bubble": "pipeline bubble",
    "gathering": "waiting for gathered weights",
    "scattering": "waiting for summed gradients",
    "exchange": "exchange at the step's end",
    "update": "optimizer",
    "overhead": "outside the model",
}
MEMORY_NAMES: Final = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "weight_copies": "gathered weights",
    "activations": "activations",
    "activation_copies": "redistributed activations",
    "activation_gradients": "gradients of activations",
    "buffers": "collectives' buffers",
    "inputs": "inputs and constants",
    "transient": "what comes and goes",
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


def gib_text(size: float) -> str:
    """In GiB with two digits, as figures of devices are given; in smaller units where nothing of it would be seen."""
    return f"{size / 2**30:.2f} GiB" if size >= 0.005 * 2**30 or not size else memory_text(size)


def printable(text: str, most: int = 72) -> str:
    """Without what a terminal would obey or hide; the middle of long ones left out."""
    plain_text = plain(text)
    half = (most - 1) // 2
    return plain_text if len(plain_text) <= most else f"{plain_text[:half]}…{plain_text[-half:]}"


def step_text(step: StepDocument) -> str:
    """`all-gather over x.y`."""
    over = f" over {'.'.join(step.axes)}" if step.axes else ""
    return f"{step.kind.replace('_', '-')}{over}"


def move_text(move: RedistributionDocument) -> str:
    """Its steps in order."""
    return ", ".join(step_text(s) for s in move.steps) or "nothing moved"
