"""What a simulation of a pipeline gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["KIND_NAMES", "Pass", "PipelineCost", "PipelineRun", "Timeline"]

KIND_NAMES: Final = ("F", "B", "W")


class Pass(NamedTuple):
    """One pass of one micro-batch through one chunk.

    `kind` is "F", "B" (the whole backward pass, or the gradient of the input where it is split) or "W".
    """

    device: int
    kind: str
    micro_batch: int
    chunk: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """All passes as columns of shape (passes,), device by device, in the order they run."""

    device: NDArray[np.int64]
    kind: NDArray[np.int64]
    micro_batch: NDArray[np.int64]
    chunk: NDArray[np.int64]
    begin_s: NDArray[np.float64]
    end_s: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.device)

    def __iter__(self) -> Iterator[Pass]:
        columns = (self.device, self.kind, self.micro_batch, self.chunk, self.begin_s, self.end_s)
        for device, kind, micro_batch, chunk, begin, end in zip(*(c.tolist() for c in columns), strict=True):
            yield Pass(device, KIND_NAMES[kind], micro_batch, chunk, begin, end)


@dataclass(frozen=True, slots=True)
class PipelineCost:
    """What a search asks of a pipeline.

    Attributes:
        total_s: seconds from the first pass to the end of the last.
        in_flight: per device, the most micro-batch-chunks between the begin of F and the end of B.
        activation_bytes: per device, the most bytes held at once, by the bytes of each chunk.
    """

    total_s: float
    in_flight: tuple[int, ...]
    activation_bytes: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PipelineRun:
    """A simulated step of a pipeline.

    Attributes:
        total_s, in_flight, activation_bytes: as in `PipelineCost`.
        busy_s: per device, seconds computing.
        sending_s: per device, seconds held up by its own sends; 0 where transfers are overlapped.
        bubble_s: per device, seconds of `total_s` that are neither.
        waiting_backward, waiting_weight: per device and chunk, micro-batches held at the peak of activation bytes:
            until B, and after B until W. Where no chunk has bytes, at the peak of their number.
        timeline: all passes.
    """

    total_s: float
    busy_s: tuple[float, ...]
    sending_s: tuple[float, ...]
    bubble_s: tuple[float, ...]
    in_flight: tuple[int, ...]
    activation_bytes: tuple[float, ...]
    waiting_backward: tuple[tuple[int, ...], ...]
    waiting_weight: tuple[tuple[int, ...], ...]
    timeline: Timeline

    @property
    def bubble_fraction(self) -> float:
        """Share of all device seconds that are bubble; 0 for an empty step."""
        return sum(self.bubble_s) / (len(self.bubble_s) * self.total_s) if self.total_s else 0.0
