"""When the instructions of a step ran; no PyTorch is needed to read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Timed", "TimedKind"]

TimedKind = Literal["forward", "backward", "value", "gradient", "received", "other"]


@dataclass(frozen=True, slots=True)
class Timed:
    """Something that a rank did in a step, in seconds since the step began.

    `kind`: `forward` and `backward` of the operator `name`; redistributions of the `value` or the `gradient` of the
    tensor `name`; what a pass `received` from other stages, waiting included; `other`: loads, seeds, what is let go.
    `part`: of a backward pass in two parts, `values` or `weights`.
    """

    kind: TimedKind
    name: str
    part: str
    micro_batch: int
    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s
