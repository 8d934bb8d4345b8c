"""Operators that only move elements.

Transposed activations are made contiguous, as the cost model has it; a transposed weight stays a view, which matrix
products read as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from planner.runtime.registry import Call, operator

__all__: list[str] = []


@operator("Flatten", "Reshape", "Squeeze", "Unsqueeze")
def _reshape(c: Call) -> Tensor:
    return c.x.reshape(c.shape())


@operator("Transpose")
def _transpose(c: Call) -> Tensor:
    perm = c.attr("perm") or tuple(reversed(range(c.x.ndim)))
    y = c.x.permute(tuple(perm))
    return y if c.weights_only else y.contiguous()


@operator("Expand")
def _expand(c: Call) -> Tensor:
    return c.x.expand(c.shape()).contiguous()


@operator("Split")
def _split(c: Call) -> Sequence[Tensor]:
    axis = c.axis(0)
    sizes = [c.shape(j)[axis] for j in range(len(c.op.outputs))]
    return [part.contiguous() for part in torch.split(c.x, sizes, dim=axis)]


@operator("Concat")
def _concat(c: Call) -> Tensor:
    return torch.cat([x for x in c.inputs if x is not None], dim=c.axis(0))
