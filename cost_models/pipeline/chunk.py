"""`ChunkTimes`: what one virtual stage costs per micro-batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

__all__ = ["ChunkTimes"]


@dataclass(frozen=True, slots=True)
class ChunkTimes:
    """Seconds and bytes of one model chunk (virtual stage) for one micro-batch.

    Attributes:
        forward_s: seconds of the forward pass.
        backward_s: seconds of the whole backward pass, recomputation included; what schedules use that do not
            split it.
        backward_input_s, backward_weight_s: seconds of the gradient of the chunk's input and of its weights,
            which zero-bubble schedules run apart. They need not add up to `backward_s`.
        activation_bytes: bytes held from the forward pass to the end of the backward pass (of the input
            gradient, where split).
        weight_gradient_bytes: of these, the bytes that stay until the weight gradient is done; None: all.

    Raises:
        ValueError: a negative or non-finite figure, half a split, or more bytes held for the weight gradient
            than for the input gradient.
    """

    forward_s: float
    backward_s: float
    backward_input_s: float | None = None
    backward_weight_s: float | None = None
    activation_bytes: float = 0.0
    weight_gradient_bytes: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"chunk: {field.name}: expected a finite figure of at least 0, found {value}")
        if (self.backward_input_s is None) != (self.backward_weight_s is None):
            raise ValueError("chunk: expected both backward_input_s and backward_weight_s, or neither; found one")
        if self.weight_gradient_bytes is not None and self.weight_gradient_bytes > self.activation_bytes:
            raise ValueError(
                f"chunk: weight_gradient_bytes: expected at most activation_bytes = {self.activation_bytes}, "
                f"found {self.weight_gradient_bytes}"
            )

    @property
    def split(self) -> bool:
        """Whether the two halves of the backward pass are known."""
        return self.backward_input_s is not None

    @property
    def weight_bytes(self) -> float:
        """Bytes held until the weight gradient is done."""
        return self.activation_bytes if self.weight_gradient_bytes is None else self.weight_gradient_bytes
