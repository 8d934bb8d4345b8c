"""Peak bytes of a training step on each pipeline rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.evaluate.configuration import Configuration
from planner.evaluate.stages import chunks_of
from planner.evaluate.workload import Workload

__all__ = ["Held", "chunk_activation_bytes", "elements", "held_bytes"]

_STATE = {"adam": 8, "momentum": 4, "sgd": 0}


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes on one device, by what they are for."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    transient: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations + self.transient


def elements(workload: Workload, c: Configuration, chunks: Sequence[Sequence[int]], device: int) -> tuple[float, float]:
    """(ordinary weights, experts' weights) that a pipeline rank holds."""
    mine = chunks_of(c, device)
    units = [i for k in mine for i in chunks[k]]
    ordinary = sum(workload.units[i].weights for i in units)
    if len(chunks) - 1 in mine and 0 not in mine:
        ordinary += workload.tied_weights
    return float(ordinary), float(sum(workload.units[i].expert_weights for i in units))


def chunk_activation_bytes(workload: Workload, c: Configuration, chunk: Sequence[int]) -> float:
    """Activations that one micro-batch keeps in a chunk between its passes.

    With full recomputation a block keeps what enters it; with selective recomputation what the core of attention
    alone keeps is dropped.
    """
    kept = 0.0
    for i in chunk:
        u = workload.units[i]
        if c.recompute == "full" and workload.repeated[i]:
            kept += c.recompute_blocks * u.entering_bytes + (1 - c.recompute_blocks) * u.saved_bytes
        elif c.recompute == "products" and workload.repeated[i]:
            kept += min(u.saved_bytes, u.entering_bytes + u.result_bytes / 2)
        elif c.recompute == "selective":
            kept += u.saved_bytes - u.core_bytes
        else:
            kept += u.saved_bytes
    return kept


def held_bytes(
    workload: Workload, c: Configuration, chunks: Sequence[Sequence[int]], device: int, activations: float
) -> Held:
    """Peak of one pipeline rank; `activations` are those in flight, by the schedule.

    The peak is the larger of two moments: a block's backward pass with what it computes again, and the end of the
    model, whose losses are computed in single precision.
    """
    ordinary, experts = elements(workload, c, chunks, device)
    shard = c.shard_ranks or c.dp * c.cp
    width = 4 if c.precision == "fp32" else 2

    def divided(level: int) -> float:
        return ordinary / shard + experts / max(1.0, shard / c.ep) if c.zero >= level else ordinary + experts

    numbers = [i for k in chunks_of(c, device) for i in chunks[k]]
    mine = [workload.units[i] for i in numbers]
    blocks = [i for i in numbers if workload.repeated[i]]
    again = 0.0
    if blocks and c.recompute == "full":
        again = max(workload.units[i].saved_bytes for i in blocks)
    elif blocks and c.recompute == "products":
        again = max(workload.units[i].saved_bytes - workload.units[i].result_bytes / 2 for i in blocks)
    elif blocks and c.recompute == "selective":
        again = max(workload.units[i].core_bytes for i in blocks)
    gathered = 0.0
    if c.zero == 3:
        # The weights of the unit that runs and of the next one, and the gradient of the one before.
        largest = max(u.weights + u.expert_weights for u in mine)
        gathered = largest * (2 * width + c.gradient_bytes)
    # Scores as they are, in single precision, their log-softmax and its gradient (torch's own cross-entropy).
    loss = 0.0 if c.fused_loss else max((u.score_bytes for u in mine), default=0.0) / width * 12
    # A product's weight gradient is made in the activations' width and cast before it is added to the sum.
    made = 0.0 if c.frozen else max((workload.units[i].widest_weights for i in blocks), default=0)
    master = 0 if width == 4 else 4
    return Held(
        divided(3) * width,
        0.0 if c.frozen else divided(2) * c.gradient_bytes,
        0.0 if c.frozen else divided(1) * (master + _STATE[c.optimizer]),
        activations,
        max(again, loss, *(u.transient_bytes for u in mine)) + gathered + made * (width + c.gradient_bytes),
    )
