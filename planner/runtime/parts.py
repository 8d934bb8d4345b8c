"""The part of a whole value that lies on a rank."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from planner.ir import DeviceMesh, Layout
from planner.kernels.shards import Array

__all__ = ["local_part", "tensor_of"]


def local_part(value: Array | Tensor, layout: Layout, mesh: DeviceMesh, place: int) -> Tensor:
    """This rank's part of a whole value, whatever is pending: a copy of its own."""
    tensor = value if isinstance(value, Tensor) else tensor_of(value)
    shape, plain = layout.unfolded(tuple(tensor.shape))
    piece = tensor.reshape(shape)[plain.region(shape, mesh, place)]
    return piece.reshape(layout.local_shape(tuple(tensor.shape), mesh)).clone(memory_format=torch.contiguous_format)


def tensor_of(value: Array) -> Tensor:
    """A copy; of types that numpy alone does not know, from the same bits."""
    value = np.array(value, order="C", copy=True)
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(value)
