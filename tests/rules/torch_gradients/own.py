"""The planner's own operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from tests.rules.torch_gradients.subject import Subject, f, indices, p, subject

__all__ = ["own"]


def own() -> Iterator[Subject]:
    yield subject(
        "planner::SwiGLUMatMul",
        [f(2, 6, 4), f(4, 12), f(4, 12)],
        lambda x, gate, up: functional.silu(functional.linear(x, gate.T)) * functional.linear(x, up.T),
        opset=1,
    )

    def added(x: Any, at: Any) -> Any:
        return torch.zeros(6, 4, dtype=x.dtype).index_add(0, at, x)

    yield subject("planner::SegmentSum", [f(12, 4), indices(6, 12)], added, opset=1, num_segments=6)
    yield from _deformed()


def _deformed() -> Iterator[Subject]:
    """Every element of the kernel reads its own displaced volume; the columns are those of a plain convolution."""

    def meaning(x: Any, w: Any, offset: Any, b: Any, mask: Any) -> torch.Tensor:
        space = x.shape[2:]
        lines = [torch.arange(-1, size - 1) for size in space]  # the first element of a kernel of three lies one before
        taps = []
        for t, element in enumerate(torch.cartesian_prod(*[torch.arange(3)] * 3)):
            first = torch.stack(torch.meshgrid(*lines, indexing="ij"), -1) + element
            places = first + offset[:, 3 * t : 3 * t + 3].movedim(1, -1)
            unit = 2 * places / (torch.tensor(space) - 1) - 1
            read = functional.grid_sample(x, unit.flip(-1), mode="bilinear", padding_mode="zeros", align_corners=True)
            taps.append(read * mask[:, t, None])
        return torch.einsum("oct,tncdhw->nodhw", w.flatten(2), torch.stack(taps)) + b[:, None, None, None]

    offset, mask = f(2, 81, 2, 4, 2), p(2, 27, 2, 4, 2)
    operands = [f(2, 2, 2, 4, 2), f(4, 2, 3, 3, 3), offset, f(4), mask]
    yield subject("planner::DeformConv3D", operands, meaning, opset=1, pads=(1,) * 6)
