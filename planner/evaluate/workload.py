"""What one rank does for one micro-batch: kernels and transfers, by unit of the model.  No machine, no seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cost_models.kernels import Kernel

__all__ = ["AXES", "Axis", "Transfer", "TransferKind", "Unit", "Workload"]

Axis = Literal["tensor", "context", "expert"]
AXES: tuple[Axis, ...] = ("expert", "context", "tensor")
TransferKind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective over an axis; bytes in the convention of `cost_models.link` (the whole tensor of the group).

    `hidden` transfers may run beside the computing around them whatever the framework: rings of attention, and the
    gathering of a product's input again in the backward pass.
    """

    kind: TransferKind
    axis: Axis
    bytes: float
    hidden: bool = False

    @property
    def gathers_operands(self) -> bool:
        """Whether tensor-parallel ranks gather what products read."""
        return self.kind == "all_gather" and self.axis == "tensor"


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A block of the model, or what stands before, between or after blocks.

    Attributes:
        forward, backward: kernels of the two passes → how often.
        of_weights: those of the backward kernels that make gradients of weights.
        core: kernels of the attention core in the forward pass, run again with selective recomputation.
        sent_forward, sent_backward, sent_core: transfers → how often.
        saved_bytes: activations kept for the backward pass; core_bytes: those of them that belong to the core alone.
        entering_bytes: what units before hand over, as it lies on one rank.
        transient_bytes: the largest working set of one operator beyond what is kept.
        widest_weights: the most elements of weights that multiply one activation, whose gradients are made at once.
        result_bytes: results of products and of attention, the latter counted twice (see `Recompute`).
        score_bytes: what the loss reads: one value per class.
        weights, expert_weights: elements on one rank, of ordinary weights and of those divided among experts' ranks.
        frozen_bytes: what weights take on one rank that no optimizer changes: quantised ones, and their scales.
    """

    forward: Mapping[Kernel, int]
    backward: Mapping[Kernel, int]
    core: Mapping[Kernel, int]
    of_weights: Mapping[Kernel, int]
    sent_forward: Mapping[Transfer, int]
    sent_backward: Mapping[Transfer, int]
    sent_core: Mapping[Transfer, int]
    saved_bytes: float
    core_bytes: float
    entering_bytes: float
    transient_bytes: float
    widest_weights: int
    result_bytes: float
    score_bytes: float
    weights: int
    expert_weights: int
    frozen_bytes: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """`units` in the order of the graph; `repeated[i]` says whether unit i is a block of a run of equal ones.

    `tied_weights` are elements that the first and the last unit share (an embedding used again by the output
    layer); `parameters` are elements of the whole model, `samples` the first dimension of its first input.
    """

    units: tuple[Unit, ...]
    repeated: tuple[bool, ...]
    tied_weights: int
    parameters: int
    samples: int
